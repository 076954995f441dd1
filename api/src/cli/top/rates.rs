//! Hits per second.

use std::time::Duration;

use crate::cli::show::ProbeRow;

/// Hits per second of each probe of `now` since `before`, which is `elapsed` ago. `None` where that
/// cannot be said: no time has passed, or the probe's number went to another one, as it does when
/// the service is started again.
pub(super) fn rates(before: &[ProbeRow], now: &[ProbeRow], elapsed: Duration) -> Vec<Option<f64>> {
    let rate = |probe: &ProbeRow| {
        let hits = match before.iter().find(|old| old.id == probe.id) {
            Some(old) if old.name() == probe.name() => probe.hits.checked_sub(old.hits)?,
            Some(_) => return None,
            // It was added since: all its hits are.
            None => probe.hits,
        };
        per_second(hits, elapsed)
    };
    now.iter().map(rate).collect()
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53 within an interval")]
fn per_second(hits: u64, elapsed: Duration) -> Option<f64> {
    (!elapsed.is_zero()).then(|| hits as f64 / elapsed.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::tests::probe;

    const SECONDS: Duration = Duration::from_secs(2);

    #[test]
    fn rates_are_hits_by_the_time_that_passed() {
        let before = [probe(1, "a", 100), probe(2, "b", 7), probe(3, "gone", 9)];
        let now = [probe(2, "b", 7), probe(1, "a", 105)];
        assert_eq!(rates(&before, &now, SECONDS), [Some(0.0), Some(2.5)]);
        assert_eq!(rates(&before, &[], SECONDS), []);
    }

    #[test]
    fn a_probe_that_was_added_has_all_its_hits_since() {
        let again = rates(&[probe(1, "a", 100)], &[probe(2, "a", 10)], SECONDS);
        assert_eq!(again, [Some(5.0)], "deleted and made again: it has another number");
    }

    #[test]
    fn what_cannot_be_said_is_not() {
        let before = [probe(1, "a", 100)];
        assert_eq!(rates(&before, &[probe(1, "a", 99)], SECONDS), [None], "counts went back");
        assert_eq!(rates(&before, &[probe(1, "b", 200)], SECONDS), [None], "it is another probe");
        assert_eq!(rates(&before, &[probe(1, "a", 200)], Duration::ZERO), [None], "no time passed");
        assert_eq!(rates(&[], &[probe(1, "a", 200)], Duration::ZERO), [None]);
    }
}
