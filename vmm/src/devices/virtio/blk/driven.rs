//! A disk without a machine, whose queue holds anything: for fuzz targets.

use std::path::Path;

use super::host_file::Waiting;
use super::request::serve;
use super::{Disk, DiskError};
use crate::config::DiskMode;
use crate::devices::virtio::driven::DrivenRam;
use crate::devices::virtio::worker::drain;

/// The disk, and RAM of 64 KiB: 16 descriptors at 0, the available ring at 0x100, the used ring at
/// 0x200.
pub struct DrivenBlk {
    disk: Disk,
    ram: DrivenRam,
}

impl DrivenBlk {
    /// The disk of a file.
    ///
    /// # Errors
    /// [`DiskError`].
    ///
    /// # Panics
    /// When there is no memory.
    pub fn open(file: &Path) -> Result<Self, DiskError> {
        let disk = Disk::open(file, DiskMode::ReadWrite)?;
        Ok(Self { disk, ram: DrivenRam::new().expect("64 KiB") })
    }

    /// Puts `bytes`, of 64 KiB at most, at the beginning of RAM, and serves what they ask for.
    ///
    /// # Errors
    /// The queue's, when it is broken.
    ///
    /// # Panics
    /// When there are more bytes, or no descriptor of a file is left.
    pub fn drive(&self, bytes: &[u8]) -> Result<(), virtio_queue::Error> {
        let memory = self.ram.fill(bytes);
        let mut handle = DrivenRam::queue(0)?;
        drain(&mut handle, memory, |chain| {
            // A request that would wait is carried out again.
            let serve = |waiting| serve(&self.disk, "disk0", memory, &chain, waiting);
            serve(Waiting::Refused).or_else(|| serve(Waiting::Allowed)).expect("an outcome")
        })
    }
}
