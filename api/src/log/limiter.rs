//! Limits how often a message is written.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Messages of one kind that are written in a window; others of it are counted.
pub(super) const BURST: u32 = 5;
/// Length of a window. It begins with a message, and the first message after its end begins
/// another.
pub(super) const WINDOW: Duration = Duration::from_secs(30);

/// Counts messages by kind. Kinds are texts of the program's own, so there are not many.
pub(super) struct Limiter {
    windows: Mutex<BTreeMap<&'static str, Window>>,
}

struct Window {
    begun: Instant,
    written: u32,
    left_out: u64,
}

impl Limiter {
    pub(super) const fn new() -> Self {
        Self { windows: Mutex::new(BTreeMap::new()) }
    }

    fn windows(&self) -> MutexGuard<'_, BTreeMap<&'static str, Window>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether to write a message of `kind`: `Some` with the number of those left out before it
    /// that were not reported yet, or `None`, and it is counted as left out.
    pub(super) fn admit(&self, kind: &'static str, now: Instant) -> Option<u64> {
        let mut windows = self.windows();
        let window = windows.entry(kind).or_insert(Window { begun: now, written: 0, left_out: 0 });
        if now.saturating_duration_since(window.begun) >= WINDOW {
            (window.begun, window.written) = (now, 0);
        }
        if window.written == BURST {
            window.left_out += 1;
            return None;
        }
        window.written += 1;
        Some(std::mem::take(&mut window.left_out))
    }

    /// Takes the counts of windows that are over at `now`.
    pub(super) fn overdue(&self, now: Instant) -> Vec<(&'static str, u64)> {
        self.take(|window| now.saturating_duration_since(window.begun) >= WINDOW)
    }

    /// Takes all counts.
    pub(super) fn all(&self) -> Vec<(&'static str, u64)> {
        self.take(|_| true)
    }

    fn take(&self, is_due: impl Fn(&Window) -> bool) -> Vec<(&'static str, u64)> {
        let mut windows = self.windows();
        let due = windows.iter_mut().filter(|(_, window)| window.left_out > 0 && is_due(window));
        due.map(|(kind, window)| (*kind, std::mem::take(&mut window.left_out))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_a_burst_and_the_next_one_the_count_of_those_left_out() {
        let (limiter, begin) = (Limiter::new(), Instant::now());
        let admitted = (0..1000).filter(|_| limiter.admit("a", begin).is_some()).count();
        assert_eq!(admitted, BURST as usize);
        assert_eq!(limiter.admit("b", begin), Some(0), "kinds have windows of their own");
        assert_eq!(limiter.overdue(begin), [], "the window is not over");
        let lost = 1000 - u64::from(BURST);
        assert_eq!(limiter.admit("a", begin + WINDOW), Some(lost));
        assert_eq!(limiter.admit("a", begin + WINDOW), Some(0), "reported once");
    }

    #[test]
    fn what_is_left_out_is_reported_also_when_no_other_message_comes() {
        let (limiter, begin) = (Limiter::new(), Instant::now());
        for _ in 0..BURST + 3 {
            limiter.admit("a", begin);
        }
        assert_eq!(limiter.overdue(begin + WINDOW), [("a", 3)]);
        assert_eq!(limiter.overdue(begin + WINDOW), []);
        assert_eq!(limiter.admit("a", begin), None);
        assert_eq!(limiter.all(), [("a", 1)]);
    }
}
