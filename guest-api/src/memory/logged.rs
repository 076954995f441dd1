//! Places in RAM that were looked up once, for several accesses.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::addr::Gpa;
use crate::dirty::HostWrites;

/// An aligned word.
#[derive(Clone, Copy, Debug)]
pub struct LoggedWord<'a> {
    word: &'a AtomicU64,
    gpa: Gpa,
    host_writes: &'a HostWrites,
}

impl<'a> LoggedWord<'a> {
    #[inline]
    pub(super) fn new(word: &'a AtomicU64, gpa: Gpa, host_writes: &'a HostWrites) -> Self {
        Self { word, gpa, host_writes }
    }

    /// Its value.
    #[inline]
    #[must_use]
    pub fn load(&self) -> u64 {
        self.word.load(Ordering::SeqCst)
    }

    /// Replaces it in a single access.
    #[inline]
    pub fn store(&self, word: u64) {
        self.word.store(word, Ordering::SeqCst);
        self.host_writes.mark(self.gpa, size_of::<u64>());
    }
}

/// Bytes that follow one another.
#[derive(Clone, Copy, Debug)]
pub struct LoggedBytes<'a> {
    bytes: &'a [AtomicU8],
    gpa: Gpa,
    host_writes: &'a HostWrites,
}

impl<'a> LoggedBytes<'a> {
    #[inline]
    pub(super) fn new(bytes: &'a [AtomicU8], gpa: Gpa, host_writes: &'a HostWrites) -> Self {
        Self { bytes, gpa, host_writes }
    }

    /// Their values, each loaded in a single access.
    #[inline]
    pub fn load(&self) -> impl Iterator<Item = u8> {
        self.bytes.iter().map(|byte| byte.load(Ordering::SeqCst))
    }

    /// Replaces the first of them, each in a single access. Does nothing with bytes that it has no
    /// place for.
    #[inline]
    pub fn store(&self, bytes: &[u8]) {
        for (place, byte) in self.bytes.iter().zip(bytes) {
            place.store(*byte, Ordering::SeqCst);
        }
        self.host_writes.mark(self.gpa, self.bytes.len());
    }
}
