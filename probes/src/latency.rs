//! Durations of a return probe's calls.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Number of buckets, each a power of two of nanoseconds.
const BUCKETS: usize = u64::BITS as usize;

/// Durations of calls, by powers of two of nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Latency {
    /// Number of timed calls: those whose return was recorded, also if only a trigger needed it.
    pub calls: u64,
    /// Sum of all durations, in nanoseconds.
    pub total_ns: u64,
    /// The longest duration, in nanoseconds.
    pub max_ns: u64,
    /// Calls by duration: bucket 0 is for 0 or 1 ns, bucket N for at least 2 to the power of N, and
    /// less than twice that. The last bucket is not 0.
    #[cfg_attr(
        feature = "schema",
        schema(example = json!([0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 3]))
    )]
    pub buckets: Vec<u64>,
}

impl Latency {
    /// The bucket of a duration: its binary logarithm, rounded down.
    #[must_use]
    pub fn bucket(nanoseconds: u64) -> usize {
        usize::try_from(nanoseconds.max(1).ilog2()).expect("less than 64")
    }

    /// The duration, in nanoseconds, that this many thousandths of the calls do not exceed, up to
    /// the width of a bucket; `None` without calls.
    #[must_use]
    pub fn quantile(&self, thousandths: u64) -> Option<u64> {
        let calls: u128 = self.buckets.iter().copied().map(u128::from).sum();
        let wanted = (calls * u128::from(thousandths.min(1000))).div_ceil(1000).max(1);
        let mut below = 0;
        let bucket = self.buckets.iter().position(|count| {
            below += u128::from(*count);
            below >= wanted
        })?;
        let end = u64::MAX >> (BUCKETS - 1 - bucket.min(BUCKETS - 1));
        Some(end.min(self.max_ns))
    }
}

/// The same, while it is updated.
pub(crate) struct Timed {
    total_ns: AtomicU64,
    max_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Timed {
    fn default() -> Self {
        let buckets = [const { AtomicU64::new(0) }; BUCKETS];
        Self { total_ns: AtomicU64::new(0), max_ns: AtomicU64::new(0), buckets }
    }
}

impl Timed {
    pub(crate) fn add(&self, nanoseconds: u64) {
        self.total_ns.fetch_add(nanoseconds, Ordering::Relaxed);
        self.max_ns.fetch_max(nanoseconds, Ordering::Relaxed);
        self.buckets[Latency::bucket(nanoseconds)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Latency {
        let mut buckets: Vec<u64> =
            self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        while buckets.pop_if(|last| *last == 0).is_some() {}
        Latency {
            calls: buckets.iter().sum(),
            total_ns: self.total_ns.load(Ordering::Relaxed),
            max_ns: self.max_ns.load(Ordering::Relaxed),
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_apart_by_powers_of_two() {
        let timed = Timed::default();
        assert_eq!(timed.read(), Latency::default());
        for nanoseconds in [0, 1, 2, 3, 4, 1023, 1024] {
            timed.add(nanoseconds);
        }
        let found = timed.read();
        assert_eq!(found.buckets, [2, 2, 1, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((found.calls, found.total_ns, found.max_ns), (7, 2057, 1024));
        timed.add(u64::MAX);
        assert_eq!(timed.read().buckets.len(), 64);
    }

    #[test]
    fn quantiles_are_the_ends_of_buckets() {
        let of = |buckets: &[u64], max_ns| Latency {
            max_ns,
            buckets: buckets.to_vec(),
            ..Latency::default()
        };
        assert_eq!(of(&[], 0).quantile(500), None);
        let found = of(&[0, 0, 98, 1, 0, 1], 40);
        assert_eq!(
            [0, 500, 980, 990, 1000].map(|q| found.quantile(q)),
            [7, 7, 7, 15, 40].map(Some)
        );
        assert_eq!(of(&[0; 64], 0).quantile(500), None);
        let mut last = [0; 64];
        last[63] = u64::MAX;
        assert_eq!(of(&last, u64::MAX).quantile(999), Some(u64::MAX), "whatever a service says");
    }
}
