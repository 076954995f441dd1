//! The kernel's own table of symbols, in each of its layouts, with bytes changed: a layout's
//! number, then offsets (16 bits) and bytes.

use std::sync::LazyLock;

use exoprobe_introspect::kallsyms::sample::{BASE, LAYOUTS, MODE, TABLES, image, symbols, tables};
use exoprobe_introspect::{VirtualMemory, kallsyms};

pub(crate) fn run(data: &[u8]) {
    let Some((which, changes)) = data.split_first() else { return };
    static WHOLE: LazyLock<Vec<Vec<u8>>> =
        LazyLock::new(|| LAYOUTS.iter().map(|(_, layout)| tables(*layout, &symbols())).collect());
    let mut bytes = WHOLE[usize::from(*which) % WHOLE.len()].clone();
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        if let Some(byte) = bytes.get_mut(at) {
            *byte = change[2];
        }
    }
    let image = image(&bytes, TABLES);
    if let Ok(table) = kallsyms::read(&VirtualMemory::with_mode(&image, MODE), BASE) {
        assert!(table.len() <= bytes.len(), "a symbol takes a byte at least");
        for symbol in table.iter() {
            let _ = table.resolve(symbol.address);
        }
    }
}
