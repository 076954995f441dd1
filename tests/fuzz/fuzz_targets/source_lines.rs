//! Source lines from an arbitrary ELF file, at the addresses where its text may be.
#![no_main]

use exoprobe_introspect::SourceLines;
use exoprobe_vmm::Gva;
use libfuzzer_sys::fuzz_target;

/// Where the seeds have their text, and how much of it.
const TEXT: u64 = 0xffff_ffff_8100_0000;
const BYTES: u64 = 0x88;

fuzz_target!(|data: &[u8]| {
    let Ok(lines) = SourceLines::from_elf(data.to_vec()) else { return };
    let addresses = (0..BYTES).step_by(4).map(|offset| Gva(TEXT + offset));
    for at in addresses.chain([Gva(0), Gva(u64::MAX)]) {
        let (Ok(location), Ok(places)) = (lines.lookup(at, 0), lines.places([at], 0)) else {
            continue;
        };
        if let (Some(location), [Some(place)]) = (location, &places[..]) {
            assert!(location.place == *place && place.line > 0);
        }
    }
});
