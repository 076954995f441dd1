//! A disk without a machine, whose queue holds anything: for fuzz targets.

use std::path::Path;
use std::sync::Arc;

use exoprobe_guest::GuestRam;
use exoprobe_guest::memory::{MemoryError, RamRange};
use virtio_queue::{Queue, QueueT as _};
use vm_memory::{Bytes as _, GuestAddress};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::request::serve;
use super::{Disk, DiskError};
use crate::config::DiskMode;
use crate::devices::virtio::QueueHandle;
use crate::devices::virtio::device::Interrupt;
use crate::devices::virtio::worker::drain;

/// Bytes of RAM.
const RAM: u64 = 1 << 16;
/// Descriptors of the queue, and where its parts are.
const SIZE: u16 = 16;
const DESCRIPTORS: u32 = 0;
const AVAILABLE: u32 = 0x100;
const USED: u32 = 0x200;

/// The disk, and RAM of 64 KiB: 16 descriptors at 0, the available ring at 0x100, the used ring at
/// 0x200.
pub struct DrivenBlk {
    disk: Disk,
    ram: GuestRam,
}

struct Nowhere;

impl Interrupt for Nowhere {
    fn raise(&self) {}
}

impl DrivenBlk {
    /// The disk of a file.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn open(file: &Path) -> Result<Self, DiskError> {
        let disk = Disk::open(file, DiskMode::ReadWrite)?;
        Ok(Self { disk, ram: Self::ram().expect("64 KiB") })
    }

    fn ram() -> Result<GuestRam, MemoryError> {
        GuestRam::anonymous(&[RamRange { start: exoprobe_guest::Gpa(0), len: RAM }])
    }

    /// Puts `bytes`, of 64 KiB at most, at the beginning of RAM, and serves what they ask for.
    ///
    /// # Errors
    /// The queue's, when it is broken.
    ///
    /// # Panics
    /// When there are more bytes, or no descriptor of a file is left.
    pub fn drive(&self, bytes: &[u8]) -> Result<(), virtio_queue::Error> {
        let memory = self.ram.as_memory();
        memory.write_slice(bytes, GuestAddress(0)).expect("64 KiB at most");
        let mut queue = Queue::new(SIZE)?;
        queue.set_desc_table_address(Some(DESCRIPTORS), Some(0));
        queue.set_avail_ring_address(Some(AVAILABLE), Some(0));
        queue.set_used_ring_address(Some(USED), Some(0));
        queue.set_ready(true);
        let kick = EventFd::new(EFD_NONBLOCK).expect("a descriptor");
        let mut handle = QueueHandle { queue, kick, interrupt: Arc::new(Nowhere) };
        drain(&mut handle, memory, |chain| serve(&self.disk, "disk0", memory, chain))
    }
}
