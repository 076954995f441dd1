//! An exception table at arbitrary bounds in arbitrary memory that is mapped one to one.

use exoprobe_guest::Gva;
use exoprobe_introspect::image::sample::{MODE, SAME, TABLES, with_content};
use exoprobe_introspect::{ExceptionTable, VirtualMemory};

pub(crate) fn run(data: &[u8]) {
    let Some((head, content)) = data.split_first_chunk::<4>() else { return };
    let image = with_content(content, &[SAME]);
    let virt = VirtualMemory::with_mode(&image, MODE);
    let offset = u64::from(u16::from_le_bytes([head[0], head[1]]));
    let len = u64::from(u16::from_le_bytes([head[2], head[3]]));
    let start = Gva(SAME + TABLES as u64 + offset);
    let Ok(table) = ExceptionTable::read_range(&virt, start, start.wrapping_add(len)) else {
        return;
    };
    assert_eq!(table.len() as u64 * 12, len);
    assert!(table.fixups().all(|fixup| table.find(fixup.instruction).is_some()));
}
