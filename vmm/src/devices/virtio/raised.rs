//! Interrupts of a device under test.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::device::Interrupt;

/// Counts interrupts.
#[derive(Default)]
pub(super) struct Raised(AtomicUsize);

impl Raised {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Interrupt for Raised {
    fn raise(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
