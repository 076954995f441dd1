//! Tables of the guest's kernel, as the tests read them.

use exoprobe_guest::Gva;
use exoprobe_tests::{TestGuest, kernel_symbols};

/// The addresses in one of the kernel's tables of place-relative entries, as this test reads them.
pub(crate) fn table_of(guest: &TestGuest, start: &str, stop: &str, entry: usize) -> Vec<Gva> {
    let symbols = kernel_symbols();
    let edge = |name| symbols.lookup(name).unwrap().address;
    let (start, stop) = (edge(start), edge(stop));
    let bytes = guest.bytes(start, usize::try_from(stop.0 - start.0).unwrap());
    let entries = bytes.chunks_exact(entry).zip((0..).step_by(entry));
    let address = |(bytes, at): (&[u8], u64)| {
        let relative = i32::from_le_bytes(bytes[..4].try_into().unwrap());
        start.wrapping_add(at).wrapping_add(i64::from(relative).cast_unsigned())
    };
    entries.map(address).collect()
}
