//! Entries of folders.

use fuser::FileType;

/// One entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FolderItem {
    pub(super) name: String,
    pub(super) kind: FileType,
    /// Permissions.
    pub(super) mode: u16,
}
