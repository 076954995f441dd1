//! How long a test waits for what is sure to come.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long anything may take that is sure to come: it only ends a test that would hang, so it is
/// right for machines far slower than this one.
pub const PATIENCE: Duration = Duration::from_secs(20 * 60);

/// The same after a guest was waited for in vain. The run has failed by then: a broken probe path
/// can stop the guests of a hundred tests, and their names are worth more than their answers.
const PATIENCE_AFTER_A_SILENT_GUEST: Duration = Duration::from_secs(60);

static WITH_GUESTS: Patience = Patience { lost: AtomicBool::new(false) };

/// Whether a guest that has been waited for since `begun` will not answer any more.
pub(crate) fn is_over(begun: Instant) -> bool {
    WITH_GUESTS.is_over_after(begun.elapsed())
}

struct Patience {
    lost: AtomicBool,
}

impl Patience {
    fn is_over_after(&self, waited: Duration) -> bool {
        let lost = self.lost.load(Ordering::Relaxed);
        let over = waited > if lost { PATIENCE_AFTER_A_SILENT_GUEST } else { PATIENCE };
        self.lost.fetch_or(over, Ordering::Relaxed);
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_guests_are_waited_for_less_once_one_was_silent() {
        let patience = Patience { lost: AtomicBool::new(false) };
        let seconds = |seconds| patience.is_over_after(Duration::from_secs(seconds));
        assert!(!seconds(61) && !seconds(20 * 60));
        assert!(seconds(20 * 60 + 1));
        assert!(seconds(61) && !seconds(60));
    }
}
