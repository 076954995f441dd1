//! An exception table at arbitrary bounds in arbitrary memory that is mapped one to one.
#![no_main]

use exoprobe_introspect::{ExceptionTable, MemoryImage, VirtualMemory};
use exoprobe_vmm::paging::{PTE_LARGE, PTE_PRESENT, PagingMode};
use exoprobe_vmm::{Gpa, Gva};
use libfuzzer_sys::fuzz_target;

/// Where the memory begins, behind two page tables.
const BASE: usize = 0x2000;

fuzz_target!(|data: &[u8]| {
    let Some((head, content)) = data.split_first_chunk::<4>() else { return };
    let mut memory = vec![0; BASE];
    memory[..8].copy_from_slice(&(0x1000 | PTE_PRESENT).to_le_bytes());
    memory[0x1000..0x1008].copy_from_slice(&(PTE_PRESENT | PTE_LARGE).to_le_bytes());
    memory.extend_from_slice(content);
    let mode = PagingMode { cr3: 0, levels: 4 };
    let image = MemoryImage::new(Gpa(0), memory, mode);
    let virt = VirtualMemory::with_mode(&image, mode);
    let offset = u64::from(u16::from_le_bytes([head[0], head[1]]));
    let len = u64::from(u16::from_le_bytes([head[2], head[3]]));
    let start = Gva(BASE as u64 + offset);
    let Ok(table) = ExceptionTable::read_range(&virt, start, start.wrapping_add(len)) else {
        return;
    };
    assert_eq!(table.len() as u64 * 12, len);
    assert!(table.fixups().all(|fixup| table.find(fixup.instruction).is_some()));
});
