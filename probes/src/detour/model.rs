//! Models of what vCPUs and the host do at the same time to memory that they share: shuttle runs
//! each many times and lets another thread go on at every access of a word.

use std::collections::HashSet;
use std::sync::Arc;

use exoprobe_guest::Gva;
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;

use super::ring::tests::{LEN, write};
use super::{FollowedCall, GuestRecord, GuestRing, Pool, PoolMemory, RecordShape, Words};
use crate::shuttled::check;

/// Words at each of whose accesses another thread may go on.
struct ModelWords(Vec<AtomicU64>);

impl ModelWords {
    fn new(bytes: u64) -> Self {
        Self((0..bytes / 8).map(|_| AtomicU64::new(0)).collect())
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        &self.0[usize::try_from(offset / 8).unwrap()]
    }
}

impl Words for ModelWords {
    fn load(&self, offset: u64) -> u64 {
        self.word(offset).load(Ordering::SeqCst)
    }

    fn store(&self, offset: u64, word: u64) {
        self.word(offset).store(word, Ordering::SeqCst);
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<(), u64> {
        let order = Ordering::SeqCst;
        self.word(offset).compare_exchange(current, new, order, order).map(drop)
    }
}

#[test]
fn a_ring_loses_no_record_while_a_vcpu_writes_and_the_host_reads() {
    /// More than the ring holds.
    const RECORDS: u64 = LEN / 48 + 12;
    check(300, || {
        let words = Arc::new(ModelWords::new(GuestRing::bytes(LEN)));
        let mut ring = GuestRing::new(&*words, 0, LEN);
        let guest = Arc::clone(&words);
        let vcpu = thread::spawn(move || {
            for record in 0..RECORDS {
                while write(&*guest, 2, &[record, !record]).is_none() {
                    thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < RECORDS {
            let take = |record: GuestRecord| {
                assert_eq!(record.args, [next, !next]);
                next += 1;
            };
            let shape = RecordShape { args: 2, ..RecordShape::default() };
            ring.drain(&*words, |_| Some(shape), take).unwrap();
            thread::yield_now();
        }
        vcpu.join().unwrap();
    });
}

#[test]
fn a_pool_gives_no_instance_to_two_calls() {
    const CAPACITY: u32 = 2;
    const VCPUS: u64 = 2;
    // Calls that each vCPU has at the same time: between another's look at the list's head and its
    // exchange, the head can change and change back.
    const CALLS: u64 = 2;
    check(3_000, || {
        let words = Arc::new(ModelWords::new(Pool::bytes(CAPACITY, 0)));
        let pool = Pool { at: Gva(0xffff_ffff_ff30_0000), capacity: CAPACITY, kept: 0 };
        let pool = PoolMemory::new(&*words, 0, pool, Gva(0xffff_ffff_ff28_0000));
        let owned = Arc::new(Mutex::new(HashSet::new()));
        let vcpus = (1..=VCPUS).map(|vcpu| {
            let (words, owned) = (Arc::clone(&words), Arc::clone(&owned));
            thread::spawn(move || {
                for _ in 0..2 {
                    let calls = (0..CALLS).map(|n| call(vcpu * 64 + n * 8));
                    let claimed: Vec<_> = calls
                        .filter_map(|call| pool.claim(&*words, call).map(|index| (index, call)))
                        .inspect(|(index, _)| assert!(owned.lock().unwrap().insert(*index)))
                        .collect();
                    for (index, call) in claimed {
                        assert_eq!(pool.call(&*words, index), Some(call));
                        owned.lock().unwrap().remove(&index);
                        pool.release(&*words, index);
                    }
                }
            })
        });
        let vcpus: Vec<_> = vcpus.collect();
        vcpus.into_iter().for_each(|vcpu| vcpu.join().unwrap());
        assert_eq!(pool.active(&*words), 0);
        // None was lost: all can be claimed again.
        let claimed = [0; CAPACITY as usize].map(|_| pool.claim(&*words, call(8)));
        assert!(claimed.iter().all(Option::is_some) && pool.claim(&*words, call(8)).is_none());
    });
}

fn call(key: u64) -> FollowedCall {
    let at = Gva(key);
    FollowedCall { key: at, return_to: at, shows: at, entered: key }
}
