//! The progress of a file that is being written, and its early end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The write was ended before the file was whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteEnded;

/// A snapshot or dump that is being written, as other threads see it: its progress, and a way to
/// end it.
#[derive(Debug, Default)]
pub struct WriteProgress {
    written: AtomicU64,
    size: AtomicU64,
    ended: AtomicBool,
}

impl WriteProgress {
    /// Ends the write: it fails, and leaves no file unless that has its name already.
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
    pub(crate) fn advance(&self, bytes: u64) -> Result<(), WriteEnded> {
        self.written.fetch_add(bytes, Ordering::Relaxed);
        self.check()
    }

    /// # Errors
    /// [`WriteEnded`] if it was ended.
    pub(crate) fn check(&self) -> Result<(), WriteEnded> {
        if self.ended.load(Ordering::Relaxed) { Err(WriteEnded) } else { Ok(()) }
    }
}
