//! The host's side of a disk: a raw file or a block device.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FlockOperation, flock};
use rustix::io::Errno;

use super::buffers::Buffers;
use super::host_file::{HostFile, Waiting};
use super::overlay::Overlay;
use crate::config::DiskMode;

/// Bytes of a sector, the unit of the device's addresses.
pub(super) const SECTOR: u64 = 512;

/// Why a disk cannot be used. Each names the file.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// It cannot be opened.
    #[error("disk {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is a folder, a pipe, or another thing without blocks.
    #[error("disk {}: neither a file nor a block device", .0.display())]
    Kind(PathBuf),
    /// Another machine has it.
    #[error(
        "disk {}: in use by another virtual machine; share it with readonly in both, or copy it",
        .0.display()
    )]
    InUse(PathBuf),
    /// There is no room for its temporary layer.
    #[error("disk {}: no temporary file for its overlay (TMPDIR names the folder): {source}", path.display())]
    Overlay {
        /// The file below.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Its content is not that of the snapshot.
    #[error(
        "disk {}: not as it was when the snapshot was taken (size, time of the last change, or readonly): \
         give a copy of that moment, made with `cp --preserve=timestamps`",
        .0.display()
    )]
    Changed(PathBuf),
    /// Its size is no multiple of a sector, or 0.
    #[error(
        "disk {}: {size} bytes are not a whole number of sectors of 512 bytes (`truncate -s %512 FILE` extends it)",
        path.display()
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// Its size, in bytes.
        size: u64,
    },
}

/// The marks by which a snapshot knows its disk: they change when the content does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct DiskIdentity {
    sectors: u64,
    mode: DiskMode,
    /// Time of the last change, in seconds and nanoseconds; a block device has none.
    modified: Option<(i64, i64)>,
}

/// Why an overlay has no identity.
const NO_SNAPSHOT: &str = "an overlay's changes are thrown away, so a snapshot cannot contain them: start the guest with the file itself";

/// A disk that is open, and locked for as long as it is: alone, or with other readers.
#[derive(Debug)]
pub(crate) struct Disk {
    content: Content,
    sectors: u64,
    mode: DiskMode,
}

/// Where the content is.
#[derive(Debug)]
enum Content {
    File(HostFile),
    BlockDevice(HostFile),
    Overlay(Overlay),
}

impl Disk {
    /// Opens and locks a disk.
    ///
    /// # Errors
    /// [`DiskError`].
    pub(crate) fn open(path: &Path, mode: DiskMode) -> Result<Self, DiskError> {
        let failed = |source| DiskError::Open { path: path.to_owned(), source };
        let is_written = mode == DiskMode::ReadWrite;
        let file = OpenOptions::new().read(true).write(is_written).open(path).map_err(failed)?;
        let kind = file.metadata().map_err(failed)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(DiskError::Kind(path.to_owned()));
        }
        let lock = match is_written {
            true => FlockOperation::NonBlockingLockExclusive,
            false => FlockOperation::NonBlockingLockShared,
        };
        match flock(&file, lock) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(DiskError::InUse(path.to_owned())),
            Err(errno) => return Err(failed(errno.into())),
        }
        // Of a block device the metadata has no size.
        let size = io::Seek::seek(&mut &file, io::SeekFrom::End(0)).map_err(failed)?;
        if size == 0 || !size.is_multiple_of(SECTOR) {
            return Err(DiskError::Size { path: path.to_owned(), size });
        }
        let file = HostFile::new(file).map_err(failed)?;
        let content = match mode {
            DiskMode::Overlay => Content::Overlay(
                Overlay::new(file, size)
                    .map_err(|source| DiskError::Overlay { path: path.to_owned(), source })?,
            ),
            _ if kind.is_file() => Content::File(file),
            _ => Content::BlockDevice(file),
        };
        Ok(Self { content, sectors: size / SECTOR, mode })
    }

    /// Its size, in sectors of 512 bytes. It does not change while the machine has it.
    pub(crate) fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Its marks now.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn identity(&self) -> io::Result<DiskIdentity> {
        let modified = match &self.content {
            Content::File(file) => {
                let metadata = file.file().metadata()?;
                Some((metadata.mtime(), metadata.mtime_nsec()))
            }
            Content::BlockDevice(_) => None,
            Content::Overlay(_) => return Err(io::Error::other(NO_SNAPSHOT)),
        };
        Ok(DiskIdentity { sectors: self.sectors, mode: self.mode, modified })
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.mode == DiskMode::ReadOnly
    }

    /// Reads at a byte offset, all or an error: a file that has become shorter is an I/O error.
    pub(super) fn read(&self, offset: u64, to: &Buffers<'_>, waiting: Waiting) -> io::Result<()> {
        match &self.content {
            Content::File(file) | Content::BlockDevice(file) => file.read(offset, to, waiting),
            Content::Overlay(overlay) => {
                to.fill(|at, part| overlay.read(offset + at, part, waiting))
            }
        }
    }

    /// Writes at a byte offset. A file that has become shorter is an I/O error, and stays so short.
    pub(super) fn write(
        &self,
        offset: u64,
        from: &Buffers<'_>,
        waiting: Waiting,
    ) -> io::Result<()> {
        self.check_length(offset + from.len() as u64)?;
        match &self.content {
            Content::File(file) | Content::BlockDevice(file) => file.write(offset, from, waiting),
            Content::Overlay(overlay) => {
                from.hand_out(|at, part| overlay.write(offset + at, part, waiting))
            }
        }
    }

    /// A file that has become shorter since it was opened must not grow again.
    fn check_length(&self, end: u64) -> io::Result<()> {
        let Content::File(file) = &self.content else { return Ok(()) };
        file.reaches(end)
    }

    /// Returns when all that was written is on the medium; of an overlay nothing needs to be.
    pub(crate) fn flush(&self) -> io::Result<()> {
        match &self.content {
            Content::File(file) | Content::BlockDevice(file) => file.file().sync_data(),
            Content::Overlay(_) => Ok(()),
        }
    }

    /// Drops the content of sectors; it then reads as zeroes. A hint for the host's file system:
    /// where it cannot, nothing changes.
    pub(crate) fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        // A block device would need another call.
        let Content::File(file) = &self.content else { return Ok(()) };
        self.check_length(offset + len)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(file.file(), flags, offset, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            result => result.map_err(io::Error::from),
        }
    }

    /// Makes sectors read as zeroes.
    pub(crate) fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        let Content::File(file) = &self.content else {
            return self.write_zeroes_by_hand(offset, len);
        };
        self.check_length(offset + len)?;
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(file.file(), flags, offset, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV) => {
                self.write_zeroes_by_hand(offset, len)
            }
            result => result.map_err(io::Error::from),
        }
    }

    fn write_zeroes_by_hand(&self, offset: u64, len: u64) -> io::Result<()> {
        static ZEROES: [u8; 1 << 16] = [0; 1 << 16];
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let part =
                usize::try_from(end - at).map_or(ZEROES.len(), |left| left.min(ZEROES.len()));
            match &self.content {
                Content::File(file) | Content::BlockDevice(file) => {
                    file.file().write_all_at(&ZEROES[..part], at)?;
                }
                Content::Overlay(overlay) => {
                    overlay.write(at, &ZEROES[..part], Waiting::Allowed)?;
                }
            }
            at += part as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
impl Disk {
    /// A disk of `sectors` on a medium that has no room.
    pub(super) fn on_a_full_medium(sectors: u64) -> Self {
        let full =
            std::fs::File::options().read(true).write(true).open("/dev/full").expect("a device");
        let full = HostFile::new(full).expect("a file system");
        // Not a file, whose length is checked.
        Self { content: Content::BlockDevice(full), sectors, mode: DiskMode::ReadWrite }
    }

    /// The disk, of which each read may wait.
    pub(super) fn without_nowait(self) -> Self {
        let content = match self.content {
            Content::File(file) => Content::File(file.without_nowait()),
            Content::BlockDevice(file) => Content::BlockDevice(file.without_nowait()),
            Content::Overlay(overlay) => Content::Overlay(overlay.without_nowait()),
        };
        Self { content, ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use vm_memory::VolatileSlice;

    use super::*;
    use DiskMode::{Overlay, ReadOnly, ReadWrite};
    use Waiting::{Allowed, Refused};

    fn buffers(bytes: &mut [u8]) -> Buffers<'_> {
        vec![VolatileSlice::from(bytes)].into()
    }

    fn image(dir: &Path, len: u64) -> PathBuf {
        let path = dir.join("disk");
        File::create(&path).unwrap().set_len(len).unwrap();
        path
    }

    #[test]
    fn what_is_no_disk_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let text = |result: Result<Disk, DiskError>| result.unwrap_err().to_string();
        assert!(text(Disk::open(&dir.path().join("none"), ReadOnly)).contains("No such file"));
        assert!(matches!(Disk::open(dir.path(), ReadOnly), Err(DiskError::Kind(_))));
        let odd = image(dir.path(), 1000);
        assert!(text(Disk::open(&odd, ReadOnly)).contains("1000 bytes"));
        assert!(matches!(Disk::open(&image(dir.path(), 0), ReadOnly), Err(DiskError::Size { .. })));
    }

    #[test]
    fn a_disk_has_one_writer_or_readers() {
        let dir = tempfile::tempdir().unwrap();
        let path = image(dir.path(), 1024);
        let writer = Disk::open(&path, ReadWrite).unwrap();
        for mode in [ReadOnly, ReadWrite, Overlay] {
            assert!(matches!(Disk::open(&path, mode), Err(DiskError::InUse(_))));
        }
        drop(writer);
        let reader = Disk::open(&path, ReadOnly).unwrap();
        assert!(Disk::open(&path, ReadOnly).is_ok() && Disk::open(&path, ReadWrite).is_err());
        assert_eq!((reader.sectors(), reader.is_read_only()), (2, true));
        let layer = Disk::open(&path, Overlay).unwrap();
        layer.write(0, &buffers(&mut [1; 512]), Allowed).unwrap();
        layer.write_zeroes(512, 512).unwrap();
        let mut found = [7; 1024];
        layer.read(0, &buffers(&mut found), Allowed).unwrap();
        assert!(found[..512] == [1; 512] && found[512..] == [0; 512]);
        assert!(layer.identity().unwrap_err().to_string().contains("thrown away"));
        assert_eq!(std::fs::read(&path).unwrap(), [0; 1024]);
    }

    #[test]
    fn content_is_written_read_and_zeroed() {
        let dir = tempfile::tempdir().unwrap();
        let path = image(dir.path(), 1 << 20);
        let disk = Disk::open(&path, ReadWrite).unwrap();
        disk.write(512, &buffers(&mut [7; 4096]), Allowed).unwrap();
        disk.discard(512, 512).unwrap();
        disk.write_zeroes(1024, 512).unwrap();
        disk.write_zeroes_by_hand(2048, 512).unwrap();
        disk.flush().unwrap();
        let mut found = vec![1; 4096];
        disk.read(512, &buffers(&mut found), Allowed).unwrap();
        let sectors: Vec<u8> = found.chunks(512).map(|sector| sector[0]).collect();
        assert_eq!(sectors, [0, 0, 7, 0, 7, 7, 7, 7]);
        File::options().write(true).open(&path).unwrap().set_len(512).unwrap();
        assert!(disk.read(1024, &buffers(&mut found), Allowed).is_err(), "it has become shorter");
        for waiting in [Allowed, Refused] {
            assert!(disk.write(0, &buffers(&mut found), waiting).is_err());
            assert!(disk.write(512, &buffers(&mut [1; 512]), waiting).is_err());
        }
        assert!(disk.write_zeroes(1024, 512).is_err() && disk.discard(1024, 512).is_err());
        disk.write(0, &buffers(&mut [1; 512]), Allowed).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [1; 512], "it has not become longer again");
    }

    #[test]
    fn an_access_that_may_not_wait_is_carried_out_or_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = image(dir.path(), 1 << 16);
        let would_wait = |result: io::Result<()>| {
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        };
        for mode in [ReadWrite, Overlay] {
            let disk = Disk::open(&path, mode).unwrap().without_nowait();
            let mut found = [7; 4096];
            would_wait(disk.read(0, &buffers(&mut found), Refused));
            // A part of a block, and of a page of the file.
            would_wait(disk.write(512, &buffers(&mut [1; 512]), Refused));
            disk.read(0, &buffers(&mut found), Allowed).unwrap();
            assert_eq!(found, [0; 4096]);
            disk.write(4096, &buffers(&mut [1; 4096]), Refused).unwrap();
            disk.read(4096, &buffers(&mut found), Allowed).unwrap();
            assert_eq!(found, [1; 4096]);
        }
    }

    /// cloud-hypervisor: the content of a raw disk becomes another format's header, which names a
    /// file of the host, and the disk is opened again.
    #[test]
    fn cve_2026_27211_content_is_no_format() {
        let dir = tempfile::tempdir().unwrap();
        let path = image(dir.path(), 1 << 16);
        // Of qcow2: version 3, the name of its backing file at 0x70, and so on.
        let name = b"/etc/passwd";
        let words = [3, 0, 0x70, u32::try_from(name.len()).unwrap(), 16, 0, 1 << 16];
        let mut header = b"QFI\xfb".to_vec();
        header.extend(words.into_iter().flat_map(u32::to_be_bytes));
        header.resize(0x70, 0);
        header.extend(name);
        header.resize(512, 0);
        Disk::open(&path, ReadWrite).unwrap().write(0, &buffers(&mut header), Allowed).unwrap();
        for mode in [ReadOnly, ReadWrite, Overlay] {
            let disk = Disk::open(&path, mode).unwrap();
            let mut found = vec![1; 1 << 16];
            disk.read(0, &buffers(&mut found), Allowed).unwrap();
            assert_eq!(disk.sectors(), 128);
            assert!(found[..512] == header && found[512..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_disk_below_an_overlay_that_becomes_shorter_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = image(dir.path(), 1 << 14);
        let layer = Disk::open(&path, Overlay).unwrap();
        layer.write(0, &buffers(&mut [1; 512]), Allowed).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(512).unwrap();
        let mut found = [7; 512];
        assert!(layer.read(8192, &buffers(&mut found), Allowed).is_err());
        let written = layer.write(8192, &buffers(&mut [1; 512]), Allowed);
        assert!(written.is_err(), "the rest of its block is gone");
        layer.read(0, &buffers(&mut found), Allowed).unwrap();
        assert_eq!(found, [1; 512], "it is in the layer");
    }
}
