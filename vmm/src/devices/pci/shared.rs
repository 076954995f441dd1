//! Helpers of the bus and of its functions.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks state that is whole between any two accesses of it, also if a thread panicked meanwhile.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lower half of a 64-bit number.
pub(crate) fn low(number: u64) -> u32 {
    u32::try_from(number & 0xffff_ffff).expect("32 bits")
}
