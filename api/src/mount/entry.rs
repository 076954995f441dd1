//! Entries of folders.

use fuser::FileType;

/// What a folder says of one thing in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) kind: FileType,
    /// Permissions.
    pub(super) mode: u16,
}
