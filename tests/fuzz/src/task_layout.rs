//! The first tasks in arbitrary memory that is mapped one to one, and again as a kernel is.

use exoprobe_guest::Gva;
use exoprobe_introspect::image::sample::{KERNEL, MODE, SAME, TABLES, with_content};
use exoprobe_introspect::task_list::{ListReading, TASKS_MAX};
use exoprobe_introspect::{TaskLayout, VirtualMemory};

pub(crate) fn run(data: &[u8]) {
    let Some((head, content)) = data.split_first_chunk::<2>() else { return };
    let image = with_content(content, &[SAME, KERNEL]);
    let virt = VirtualMemory::with_mode(&image, MODE);
    let init_task = Gva(KERNEL + TABLES as u64 + u64::from(u16::from_le_bytes(*head)));
    if let Ok(layout) = TaskLayout::find(&virt, init_task) {
        let task = layout.read(&virt, init_task).expect("it was read before");
        assert!(task.pid == 0 && task.name().starts_with("swapper"));
        for reading in [ListReading::Still, ListReading::Running] {
            if let Ok(processes) = layout.processes(&virt, init_task, reading) {
                assert!(processes.len() <= TASKS_MAX);
            }
        }
    }
}
