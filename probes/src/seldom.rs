//! A shared value that a hit seldom finds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;

/// A value that is seldom there. It costs a reader one load to see that there is none.
#[derive(Debug)]
pub(crate) struct Seldom<T> {
    value: ArcSwapOption<T>,
    /// Cached from `value`.
    is_there: AtomicBool,
}

impl<T> Default for Seldom<T> {
    fn default() -> Self {
        Self { value: ArcSwapOption::empty(), is_there: AtomicBool::new(false) }
    }
}

impl<T> Seldom<T> {
    /// The value, if there is one.
    #[inline]
    pub(crate) fn load(&self) -> Option<Arc<T>> {
        match self.is_there.load(Ordering::Acquire) {
            true => self.value.load_full(),
            false => None,
        }
    }

    /// Replaces the value. One thread does so at a time.
    pub(crate) fn store(&self, value: Option<Arc<T>>) {
        // A reader that sees the flag sees the value.
        let is_there = value.is_some();
        if is_there {
            self.value.store(value);
        }
        self.is_there.store(is_there, Ordering::SeqCst);
        if !is_there {
            self.value.store(None);
        }
    }
}
