//! The lock of control, for threads that wait for it and for vCPUs, which must not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::engine::control::state::Control;

/// Control, for one thread at a time.
pub(crate) struct ControlLock {
    control: Mutex<Control>,
    /// A vCPU did not get the lock, and no vCPU has had it at a breakpoint since. A second one that
    /// was turned away sets it again at its next try.
    turned_away: AtomicBool,
}

impl ControlLock {
    pub(crate) fn new(control: Control) -> Self {
        Self { control: Mutex::new(control), turned_away: AtomicBool::new(false) }
    }

    /// Waits for control. A vCPU that was turned away goes first: threads that take the lock again
    /// and again would keep it for good from a guest that has no host CPU of its own.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Control> {
        give_way(&self.turned_away, || std::thread::sleep(PAUSE));
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns control unless another thread has it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Control>> {
        match self.control.try_lock() {
            Ok(control) => Some(control),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// As [`Self::try_lock`], for a vCPU at a breakpoint. Without control it must come there again,
    /// and other threads give way to it.
    pub(crate) fn try_lock_on_vcpu(&self) -> Option<MutexGuard<'_, Control>> {
        let control = self.try_lock();
        self.turned_away.store(control.is_none(), Ordering::Relaxed);
        control
    }
}

/// Waits until the vCPU has come again that was turned away. One that does not come is waited for
/// only once.
fn give_way(turned_away: &AtomicBool, pause: impl FnMut()) {
    if !ends_soon(|| !turned_away.load(Ordering::Relaxed), pause) {
        turned_away.store(false, Ordering::Relaxed);
    }
}

/// Between two looks at what a vCPU does.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// Waits with pauses, for a short time, until a vCPU has ended what it does: it may be paused, or
/// its guest may do something else. Returns true if it has ended.
pub(super) fn ends_soon(has_ended: impl Fn() -> bool, mut pause: impl FnMut()) -> bool {
    const TRIES: u32 = 100;
    (0..TRIES).any(|_| {
        let ended = has_ended();
        if !ended {
            pause();
        }
        ended
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vcpu_goes_first_and_one_that_does_not_come_is_waited_for_once() {
        let turned_away = AtomicBool::new(true);
        let mut pauses = 0;
        give_way(&turned_away, || {
            pauses += 1;
            turned_away.store(pauses < 3, Ordering::Relaxed);
        });
        assert_eq!(pauses, 3, "until it came");
        turned_away.store(true, Ordering::Relaxed);
        let mut pauses = 0;
        for _ in 0..2 {
            give_way(&turned_away, || pauses += 1);
        }
        assert_eq!(pauses, 100, "and then no more");
    }
}
