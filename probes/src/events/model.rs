//! A model of the ring of a vCPU: its thread writes records while another one drains them.

use std::sync::Arc;

use shuttle::sync::atomic::AtomicU64;
use shuttle::thread;

use super::Ring;
use super::ring::tests::{push, record};
use crate::shuttled::check;

/// Words of the ring: two records.
const WORDS: usize = 16;
/// More than the ring holds, so that it is full at times.
const RECORDS: u64 = 5;

#[test]
fn a_ring_gives_each_record_once_and_whole_while_a_vcpu_writes() {
    check(1_000, || {
        let ring = Arc::new(Ring::<AtomicU64>::new(WORDS));
        let vcpu = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                for n in 0..RECORDS {
                    while !push(&ring, &record(7, n, &[n, !n, n, !n])) {
                        thread::yield_now();
                    }
                }
            })
        };
        let mut next = 0;
        while next < RECORDS {
            ring.drain(|taken| {
                assert_eq!(taken, record(7, next, &[next, !next, next, !next]));
                next += 1;
            });
            thread::yield_now();
        }
        vcpu.join().unwrap();
        ring.drain(|taken| panic!("{taken:?} was not written"));
    });
}
