//! The parts of tables and rings that several threads change at the same time. These are generic
//! over them, so that a model can put in parts at each of whose accesses another thread may go on.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::atomic::AtomicCell;

/// A set of parts.
pub(crate) trait Parts {
    /// A 64-bit word.
    type Word: Word;
    /// A place for a value.
    type Cell<T: Send>: Cell<T>;
}

/// A 64-bit word; methods as those of [`AtomicU64`].
pub(crate) trait Word: Send + Sync {
    fn new(value: u64) -> Self;
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn swap(&self, value: u64, order: Ordering) -> u64;
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64;
    fn fetch_or(&self, value: u64, order: Ordering) -> u64;
    /// Returns true if the word was `current`, and is `new` now.
    fn replace(&self, current: u64, new: u64, order: Ordering) -> bool;
}

/// A place for a value, none at first.
pub(crate) trait Cell<T>: Send + Sync {
    fn new() -> Self;
    fn store(&self, value: Option<T>);
    fn take(&self) -> Option<T>;
}

/// The parts that hits use.
pub(crate) struct Real;

impl Parts for Real {
    type Word = AtomicU64;
    type Cell<T: Send> = AtomicCell<Option<T>>;
}

/// Implements [`Word`] for an `AtomicU64`, the standard library's or a model's.
macro_rules! word {
    ($atomic:ty) => {
        impl Word for $atomic {
            fn new(value: u64) -> Self {
                Self::new(value)
            }

            fn load(&self, order: Ordering) -> u64 {
                self.load(order)
            }

            fn store(&self, value: u64, order: Ordering) {
                self.store(value, order);
            }

            fn swap(&self, value: u64, order: Ordering) -> u64 {
                self.swap(value, order)
            }

            fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_add(value, order)
            }

            fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_sub(value, order)
            }

            fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_or(value, order)
            }

            fn replace(&self, current: u64, new: u64, order: Ordering) -> bool {
                self.compare_exchange(current, new, order, Ordering::Relaxed).is_ok()
            }
        }
    };
}
#[cfg(test)]
pub(crate) use word;

word!(AtomicU64);

impl<T: Send> Cell<T> for AtomicCell<Option<T>> {
    fn new() -> Self {
        Self::new(None)
    }

    fn store(&self, value: Option<T>) {
        self.store(value);
    }

    fn take(&self) -> Option<T> {
        self.take()
    }
}
