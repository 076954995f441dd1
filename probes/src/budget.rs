//! A budget of the host's memory, and parts of it that go back on drop.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory that may be taken, in bytes. Parts are taken under the engine's lock, and given back at
/// any time.
#[derive(Debug)]
pub(crate) struct Budget {
    taken: Arc<AtomicUsize>,
    most: usize,
}

/// A part of a budget.
#[derive(Debug)]
pub(crate) struct Share {
    taken: Arc<AtomicUsize>,
    bytes: usize,
}

/// A budget has not so much left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exceeded {
    pub(crate) wanted: usize,
    pub(crate) taken: usize,
    pub(crate) most: usize,
}

impl Budget {
    pub(crate) fn new(most: usize) -> Self {
        Self { taken: Arc::default(), most }
    }

    /// Checks that so many bytes are left.
    ///
    /// # Errors
    /// [`Exceeded`]
    fn check(&self, bytes: usize) -> Result<(), Exceeded> {
        let taken = self.taken.load(Ordering::Relaxed);
        match taken.checked_add(bytes) {
            Some(all) if all <= self.most => Ok(()),
            _ => Err(Exceeded { wanted: bytes, taken, most: self.most }),
        }
    }

    /// Takes so many bytes.
    ///
    /// # Errors
    /// [`Exceeded`]
    pub(crate) fn take(&self, bytes: usize) -> Result<Share, Exceeded> {
        self.check(bytes)?;
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        Ok(Share { taken: Arc::clone(&self.taken), bytes })
    }
}

impl Share {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_go_back_when_they_are_dropped() {
        let budget = Budget::new(100);
        let most = budget.take(90).unwrap();
        let refused = budget.take(11).unwrap_err();
        assert_eq!(refused, Exceeded { wanted: 11, taken: 90, most: 100 });
        assert!(budget.check(usize::MAX).is_err() && budget.check(10).is_ok());
        let rest = budget.take(10).unwrap();
        drop(most);
        assert!(budget.take(91).is_err());
        drop(rest);
        assert!(budget.take(100).is_ok());
    }
}
