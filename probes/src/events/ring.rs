//! A single-producer, single-consumer ring of records: the producer is one vCPU's thread, the
//! consumer whoever holds the store's drain lock.
//!
//! A record is a run of 64-bit words: probe id and argument count, guest time, RIP, arguments.

use std::sync::atomic::{AtomicU64, Ordering};

const HEADER_WORDS: usize = 3;

/// One hit, as read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) probe: u32,
    /// Guest time-stamp counter.
    pub(crate) time: u64,
    pub(crate) rip: u64,
    pub(crate) args: Vec<u64>,
}

/// The ring of one vCPU.
pub(crate) struct Ring {
    words: Box<[AtomicU64]>,
    /// Words ever written; only the producer stores it.
    head: AtomicU64,
    /// Words ever read; only the consumer stores it.
    tail: AtomicU64,
}

impl Ring {
    /// A ring of `capacity` words, rounded up to a power of two.
    pub(crate) fn new(capacity: usize) -> Self {
        let len = capacity.next_power_of_two();
        let words = (0..len).map(|_| AtomicU64::new(0)).collect();
        Self { words, head: AtomicU64::new(0), tail: AtomicU64::new(0) }
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        let mask = self.words.len() as u64 - 1;
        &self.words[usize::try_from(at & mask).expect("below the ring's length")]
    }

    /// Writes a record; `false` when there is no room for it. To be called by one thread only.
    pub(crate) fn push(
        &self,
        probe: u32,
        time: u64,
        rip: u64,
        args: impl ExactSizeIterator<Item = u64>,
    ) -> bool {
        let count = args.len() as u64;
        let needed = HEADER_WORDS as u64 + count;
        let head = self.head.load(Ordering::Relaxed);
        let used = head - self.tail.load(Ordering::Acquire);
        if used + needed > self.words.len() as u64 {
            return false;
        }
        let header = [u64::from(probe) << 32 | count, time, rip];
        for (at, word) in (head..).zip(header.into_iter().chain(args)) {
            self.word(at).store(word, Ordering::Relaxed);
        }
        // The record's words come before the new head for whoever acquires it.
        self.head.store(head + needed, Ordering::Release);
        true
    }

    /// Takes all whole records. To be called by one thread at a time.
    pub(crate) fn drain(&self, mut take: impl FnMut(Record)) {
        let head = self.head.load(Ordering::Acquire);
        let mut tail = self.tail.load(Ordering::Relaxed);
        while tail < head {
            let word = |offset: u64| self.word(tail + offset).load(Ordering::Relaxed);
            let header = word(0);
            let count = header & u64::from(u32::MAX);
            let probe = u32::try_from(header >> 32).expect("32 bits");
            let args = (0..count).map(|i| word(HEADER_WORDS as u64 + i)).collect();
            take(Record { probe, time: word(1), rip: word(2), args });
            tail += HEADER_WORDS as u64 + count;
            self.tail.store(tail, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_full_ring_refuses_and_goes_on_after_a_drain() {
        let ring = Ring::new(8);
        assert!(ring.push(1, 2, 3, [4, 5].into_iter()));
        assert!(ring.push(1, 2, 3, [].into_iter()));
        assert!(!ring.push(9, 9, 9, [].into_iter()), "8 words hold 5 and 3");
        let mut got = Vec::new();
        ring.drain(|r| got.push(r));
        assert_eq!(got[0], Record { probe: 1, time: 2, rip: 3, args: vec![4, 5] });
        assert_eq!(got.len(), 2);
        assert!(ring.push(9, 9, 9, [].into_iter()));
    }

    #[test]
    fn nothing_is_lost_or_torn_between_two_threads() {
        let ring = Ring::new(64);
        let total = 20_000u64;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..total {
                    while !ring.push(7, n, !n, [n, n + 1].into_iter()) {
                        std::thread::yield_now();
                    }
                }
            });
            let mut next = 0;
            while next < total {
                ring.drain(|r| {
                    let args = vec![next, next + 1];
                    assert_eq!(r, Record { probe: 7, time: next, rip: !next, args });
                    next += 1;
                });
            }
        });
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(batches: Vec<(u32, u64, Vec<u64>)>) {
            let ring = Ring::new(32);
            for (probe, time, mut args) in batches {
                args.truncate(20);
                prop_assert!(ring.push(probe, time, 0, args.iter().copied()));
                let mut got = Vec::new();
                ring.drain(|r| got.push(r));
                prop_assert_eq!(got, vec![Record { probe, time, rip: 0, args }]);
            }
        }
    }
}
