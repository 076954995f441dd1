//! RAM and queues without a machine, which hold anything: for fuzz targets.

use std::sync::Arc;

use exoprobe_guest::memory::{MemoryError, RamRange};
use exoprobe_guest::{Gpa, GuestRam};
use virtio_queue::{Queue, QueueT as _};
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::QueueHandle;
use super::device::Interrupt;

/// Bytes of RAM.
const RAM: u64 = 1 << 16;
/// Descriptors of a queue, and where its parts are.
const SIZE: u16 = 16;
const DESCRIPTORS: u32 = 0;
const AVAILABLE: u32 = 0x100;
const USED: u32 = 0x200;

/// RAM of 64 KiB; in it, for each queue, 16 descriptors, the available ring 0x100 later and the
/// used ring 0x200 later.
pub(super) struct DrivenRam(GuestRam);

struct Nowhere;

impl Interrupt for Nowhere {
    fn raise(&self) {}
}

impl DrivenRam {
    pub(super) fn new() -> Result<Self, MemoryError> {
        GuestRam::anonymous(&[RamRange { start: Gpa(0), len: RAM }]).map(Self)
    }

    /// Puts `bytes`, of 64 KiB at most, at the beginning.
    pub(super) fn fill(&self, bytes: &[u8]) -> &GuestMemoryMmap {
        let memory = self.0.as_memory();
        memory.write_slice(bytes, GuestAddress(0)).expect("64 KiB at most");
        memory
    }

    /// A queue whose parts begin at `start`.
    pub(super) fn queue(start: u32) -> Result<QueueHandle, virtio_queue::Error> {
        let mut queue = Queue::new(SIZE)?;
        queue.set_desc_table_address(Some(start + DESCRIPTORS), Some(0));
        queue.set_avail_ring_address(Some(start + AVAILABLE), Some(0));
        queue.set_used_ring_address(Some(start + USED), Some(0));
        queue.set_ready(true);
        let kick = EventFd::new(EFD_NONBLOCK).expect("a descriptor");
        Ok(QueueHandle { queue, kick, interrupt: Arc::new(Nowhere) })
    }
}
