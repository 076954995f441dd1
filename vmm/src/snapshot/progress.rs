//! The progress of a snapshot, and its early end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::error::SnapshotError;

/// A snapshot that is being written, as other threads see it: its progress, and a way to end it.
#[derive(Debug, Default)]
pub struct SnapshotProgress {
    written: AtomicU64,
    size: AtomicU64,
    ended: AtomicBool,
}

impl SnapshotProgress {
    /// Ends the snapshot: it fails with [`SnapshotError::Ended`] and leaves no file, unless it has
    /// its name already.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Bytes of memory written so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Bytes of memory to write; 0 before it begins.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    pub(crate) fn begin(&self, size: u64) {
        self.size.store(size, Ordering::Relaxed);
    }

    /// Adds bytes that were written.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) fn advance(&self, bytes: u64) -> Result<(), SnapshotError> {
        self.written.fetch_add(bytes, Ordering::Relaxed);
        self.check()
    }

    /// # Errors
    /// [`SnapshotError::Ended`] if it was ended.
    pub(crate) fn check(&self) -> Result<(), SnapshotError> {
        if self.ended.load(Ordering::Relaxed) { Err(SnapshotError::Ended) } else { Ok(()) }
    }
}
