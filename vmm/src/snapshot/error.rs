//! The errors of snapshots.

use std::path::PathBuf;

use crate::new_file::NewFileError;
use crate::progress::WriteEnded;

/// Format version. Raised whenever the layout, that of hidden memory, or the metadata changes.
pub(super) const VERSION: u32 = 10;

/// Why a snapshot could not be written or restored.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file cannot be read, or not be written to.
    #[error("snapshot {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The host's error.
        source: std::io::Error,
    },
    /// The file cannot be made, or get its name.
    #[error("snapshot: {0}")]
    File(#[from] NewFileError),
    /// The snapshot was ended before it was complete.
    #[error("the snapshot was ended before it was whole; there is no file of it")]
    Ended,
    /// The file has another format.
    #[error("{0} is no exoprobe snapshot")]
    NotASnapshot(PathBuf),
    /// The format is not this program's.
    #[error("{path} has snapshot format {found}; this program reads {expected}: take it anew", expected = VERSION)]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The file is cut off or damaged.
    #[error("{path} is damaged: its {part} {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damaged part.
        part: &'static str,
        /// The fault.
        what: &'static str,
    },
    /// Disks that a snapshot names are not opened by themselves.
    #[error(
        "the snapshot was taken with {taken} disk(s), and {given} are given: files that a snapshot names are \
         not opened, so give each again with --disk, in the same order ({names})"
    )]
    Disks {
        /// Disks of the guest in it.
        taken: usize,
        /// Disks that are given.
        given: usize,
        /// Their files at that time.
        names: String,
    },
    /// Nor are network interfaces.
    #[error(
        "the snapshot was taken with {taken} network interface(s), and {given} are given: what a snapshot \
         names is not opened, so give each again with --net, in the same order ({names})"
    )]
    Nets {
        /// Network interfaces of the guest in it.
        taken: usize,
        /// Network interfaces that are given.
        given: usize,
        /// Their host sides at that time.
        names: String,
    },
    /// Nor is the socket of a vsock device.
    #[error(
        "the snapshot was taken with a vsock device: what a snapshot names is not opened, so give its socket again \
         with --vsock SOCKET ({})", .0.display()
    )]
    Vsock(PathBuf),
    /// A vsock device is given that the guest does not have.
    #[error("the snapshot was taken without a vsock device: leave --vsock out")]
    NoVsock,
    /// The parts do not fit together.
    #[error("the snapshot's content is not valid: {0}")]
    Content(String),
    /// Memory could not be mapped.
    #[error(transparent)]
    Memory(#[from] exoprobe_guest::memory::MemoryError),
}

impl From<WriteEnded> for SnapshotError {
    fn from(WriteEnded: WriteEnded) -> Self {
        Self::Ended
    }
}
