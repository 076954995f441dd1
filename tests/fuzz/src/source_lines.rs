//! Source lines from an arbitrary ELF file, at the addresses where its text may be.

use exoprobe_guest::Gva;
use exoprobe_introspect::SourceLines;

/// Where the seeds have their text, and how much of it.
const TEXT: u64 = 0xffff_ffff_8100_0000;
const BYTES: u64 = 0x88;
/// Names that the seeds' files end with.
const FILES: [&str; 2] = ["sys.c", "util.h"];

pub(crate) fn run(data: &[u8]) {
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
    for (file, line) in FILES.into_iter().flat_map(|file| (1..60).map(move |line| (file, line))) {
        for at in lines.code(file, line, 0).unwrap_or_default() {
            let found = lines.lookup(at, 0).ok().flatten().expect("it was looked up there");
            assert!(found.place.line == line && found.place.file.ends_with(file));
        }
    }
}
