//! The first tasks in arbitrary memory that is mapped one to one, and again as a kernel is.
#![no_main]

use exoprobe_introspect::{MemoryImage, TaskLayout, VirtualMemory};
use exoprobe_vmm::paging::{PTE_LARGE, PTE_PRESENT, PagingMode};
use exoprobe_vmm::{Gpa, Gva};
use libfuzzer_sys::fuzz_target;

/// Where the memory begins, behind two page tables.
const BASE: usize = 0x2000;
const KERNEL: u64 = 0xffff_ffff_8000_0000;

fuzz_target!(|data: &[u8]| {
    let Some((head, content)) = data.split_first_chunk::<2>() else { return };
    let mut memory = vec![0; BASE];
    for entry in [0, 511] {
        memory[entry * 8..][..8].copy_from_slice(&(0x1000 | PTE_PRESENT).to_le_bytes());
    }
    for entry in [0, 510] {
        let mapped = (PTE_PRESENT | PTE_LARGE).to_le_bytes();
        memory[0x1000 + entry * 8..][..8].copy_from_slice(&mapped);
    }
    memory.extend_from_slice(content);
    let mode = PagingMode { cr3: 0, levels: 4 };
    let image = MemoryImage::new(Gpa(0), memory, mode);
    let virt = VirtualMemory::with_mode(&image, mode);
    let init_task = Gva(KERNEL + BASE as u64 + u64::from(u16::from_le_bytes(*head)));
    if let Ok(layout) = TaskLayout::find(&virt, init_task) {
        let task = layout.read(&virt, init_task).expect("it was read before");
        assert!(task.pid == 0 && task.name().starts_with("swapper"));
        if let Ok(processes) = layout.processes(&virt, init_task) {
            assert!(processes.len() <= exoprobe_introspect::task::TASKS_MAX);
        }
    }
});
