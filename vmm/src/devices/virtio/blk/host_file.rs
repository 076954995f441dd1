//! A file of the host that is read and written for the guest, and whether an access would wait.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use super::buffers::Buffers;

/// Kinds of file systems whose content is in memory (`linux/magic.h`): tmpfs, ramfs, hugetlbfs.
const IN_MEMORY: [i64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];
/// A write of whole pages needs nothing of the medium.
const PAGE: u64 = 4096;

/// Whether an access may wait for the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    Allowed,
    /// An access that would wait fails with [`io::ErrorKind::WouldBlock`]. It can be repeated.
    Refused,
}

/// A file or a block device.
#[derive(Debug)]
pub(super) struct HostFile {
    file: File,
    is_in_memory: bool,
    /// Its file system does not say whether a read would wait (RWF_NOWAIT).
    lacks_nowait: AtomicBool,
}

impl HostFile {
    /// # Errors
    /// The system's.
    pub(super) fn new(file: File) -> io::Result<Self> {
        let kind = rustix::fs::fstatfs(&file)?.f_type;
        let is_in_memory = IN_MEMORY.contains(&kind);
        Ok(Self { file, is_in_memory, lacks_nowait: AtomicBool::new(false) })
    }

    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    /// Fills the buffers from a place of the file.
    ///
    /// # Errors
    /// The system's; also when the file ends before.
    pub(super) fn read(&self, offset: u64, to: &Buffers<'_>, waiting: Waiting) -> io::Result<()> {
        if waiting == Waiting::Allowed || self.is_in_memory {
            return to.read_from(&self.file, offset, 0);
        }
        if self.lacks_nowait.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        to.read_from(&self.file, offset, libc::RWF_NOWAIT).map_err(|error| {
            if Errno::from_io_error(&error) != Some(Errno::OPNOTSUPP) {
                return error;
            }
            self.lacks_nowait.store(true, Ordering::Relaxed);
            io::ErrorKind::WouldBlock.into()
        })
    }

    /// Writes the buffers to a place of the file. Whole pages go into the page cache without a look
    /// at the medium, and count as an access that does not wait; so does all in memory.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn write(
        &self,
        offset: u64,
        from: &Buffers<'_>,
        waiting: Waiting,
    ) -> io::Result<()> {
        let is_whole = offset.is_multiple_of(PAGE) && (from.len() as u64).is_multiple_of(PAGE);
        if waiting == Waiting::Refused && !is_whole && !self.is_in_memory {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        from.write_to(&self.file, offset)
    }

    /// Checks that the file has not become shorter than `end`: a write would extend it.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if it has.
    pub(super) fn reaches(&self, end: u64) -> io::Result<()> {
        let len = (&self.file).seek(SeekFrom::End(0))?;
        if len < end { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

#[cfg(test)]
impl HostFile {
    /// Of which each read that may not wait is refused.
    pub(super) fn without_nowait(self) -> Self {
        Self { lacks_nowait: AtomicBool::new(true), is_in_memory: false, ..self }
    }
}
