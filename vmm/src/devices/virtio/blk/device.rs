//! The device: its configuration, and its queue.

use std::io;
use std::path::Path;
use std::sync::Arc;

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO,
    VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;

use super::disk::{DiskIdentity, SECTOR};
use super::request::{DISCARD_SECTORS_MAX, SEG_MAX, SEGMENTS_MAX, SIZE_MAX, ZEROES_SECTORS_MAX};
use super::service::DiskService;
use super::{Disk, DiskError};
use crate::config::DiskMode;
use crate::devices::virtio::{Activation, QueueHandle, VirtioDevice, Worker};
use crate::threads::ThreadKind;

/// Descriptors of the queue.
const QUEUE_SIZE: u16 = 256;
/// Bytes of `struct virtio_blk_config` that this device has.
const CONFIG_LEN: usize = 60;

/// A disk of the guest.
pub(crate) struct Blk {
    disk: Arc<Disk>,
    id: String,
    worker: Worker,
}

impl Blk {
    /// Checks that the disk, of the file `path`, is as a snapshot has it.
    ///
    /// # Errors
    /// [`DiskError::Changed`].
    pub(crate) fn check(&self, path: &Path, saved: Option<&DiskIdentity>) -> Result<(), DiskError> {
        let failed = |source| DiskError::Open { path: path.to_owned(), source };
        let is_same = saved == Some(&self.disk.identity().map_err(failed)?);
        if is_same { Ok(()) } else { Err(DiskError::Changed(path.to_owned())) }
    }

    /// The disk as a snapshot knows it, with all that was written on the medium.
    ///
    /// # Errors
    /// The system's, of the flush.
    pub(crate) fn identity(&self) -> io::Result<DiskIdentity> {
        self.disk.flush()?;
        self.disk.identity()
    }

    /// The device of the file `path`, under `id` in the guest's `/sys/block/*/serial`: at most 20
    /// bytes of it.
    ///
    /// # Errors
    /// [`DiskError`].
    pub(crate) fn open(path: &Path, mode: DiskMode, id: &str) -> Result<Self, DiskError> {
        let disk = Arc::new(Disk::open(path, mode)?);
        Ok(Self { disk, id: id.to_owned(), worker: Worker::default() })
    }

    fn config(&self) -> [u8; CONFIG_LEN] {
        let mut config = [0; CONFIG_LEN];
        let mut set = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        set(0, &self.disk.sectors().to_le_bytes());
        set(8, &SIZE_MAX.to_le_bytes());
        set(12, &SEG_MAX.to_le_bytes());
        set(20, &u32::try_from(SECTOR).expect("512").to_le_bytes());
        // One queue.
        set(34, &1_u16.to_le_bytes());
        for (limits, sectors) in [(36, DISCARD_SECTORS_MAX), (48, ZEROES_SECTORS_MAX)] {
            set(limits, &sectors.to_le_bytes());
            set(limits + 4, &SEGMENTS_MAX.to_le_bytes());
        }
        // Discards of single sectors are as good as any.
        set(44, &1_u32.to_le_bytes());
        // Zeroes may give up the space.
        set(56, &[1]);
        config
    }
}

impl VirtioDevice for Blk {
    fn device_type(&self) -> u16 {
        u16::try_from(VIRTIO_ID_BLOCK).expect("2")
    }

    fn features(&self) -> u64 {
        let always = [
            VIRTIO_BLK_F_SIZE_MAX,
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_FLUSH,
        ];
        let by_kind: &[u32] = match self.disk.is_read_only() {
            true => &[VIRTIO_BLK_F_RO],
            false => &[VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES],
        };
        always.iter().chain(by_kind).fold(0, |features, bit| features | 1 << bit)
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE]
    }

    fn config_generation(&self) -> u8 {
        0
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let config = self.config();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(CONFIG_LEN);
        data.fill(0);
        for (to, from) in data.iter_mut().zip(&config[start..]) {
            *to = *from;
        }
    }

    fn start(&self, activation: Activation) -> io::Result<()> {
        let (disk, id) = (Arc::clone(&self.disk), self.id.clone());
        let service = DiskService::new(disk, id, activation.ram.clone(), &activation.threads)?;
        let source = service.source();
        self.worker.start(ThreadKind::Disk, activation, Some(source), service)
    }

    fn stop(&self) -> Vec<(usize, QueueHandle)> {
        self.worker.stop()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn a_disk_that_has_changed_since_a_snapshot_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let file = File::create(&path).unwrap();
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let make = |sectors: u64, modified: SystemTime| {
            file.set_len(sectors * SECTOR).unwrap();
            file.set_modified(modified).unwrap();
        };
        make(8, then);
        let open = |mode| Blk::open(&path, mode, "disk0").unwrap();
        let saved = open(DiskMode::ReadWrite).identity().unwrap();
        let is_taken = |mode| open(mode).check(&path, Some(&saved)).is_ok();
        assert!(is_taken(DiskMode::ReadWrite));
        assert!(!is_taken(DiskMode::ReadOnly), "another mode");
        for (sectors, modified) in [
            (8, then + Duration::from_nanos(1)),
            (8, then - Duration::from_secs(1)),
            (7, then),
            (9, then),
        ] {
            make(sectors, modified);
            assert!(!is_taken(DiskMode::ReadWrite), "{sectors} {modified:?}");
        }
        make(8, then);
        assert!(is_taken(DiskMode::ReadWrite), "as it was");
        let error = open(DiskMode::ReadWrite).check(&path, None).unwrap_err().to_string();
        assert!(error.contains("not as it was when the snapshot was taken"), "{error}");
        let layer = open(DiskMode::Overlay).check(&path, Some(&saved)).unwrap_err().to_string();
        assert!(layer.contains("thrown away"), "{layer}");
    }
}
