//! The whole way of a record out of the guest: from a vCPU's ring to the store that readers read.
//!
//! A guest fills its ring once, with real hits. Then the same bytes are put there again and again, as the guest
//! would have written them, for a guest whose kernel is emulated cannot write five million a second.

use std::time::Instant;

use exoprobe_tests::TestGuest;

use crate::figure::figure;

const EVENT: &str = "filled";
/// Bytes of a record with four arguments.
const RECORD: u64 = 64;
const WORD: u64 = 8;
/// From a ring's head to its first record.
const DATA: u64 = 64;
const LAPS: u32 = 200;

/// A ring in hidden memory.
struct Ring {
    head: u64,
    len: u64,
}

impl Ring {
    /// The one that is full: its head has come to the limit behind it, and that is its length.
    fn full(guest: &TestGuest) -> Self {
        let hidden = guest.vm.hidden();
        let window = hidden.rings_window().expect("a probe is optimized");
        let words = (window.offset..window.offset + window.len - WORD).step_by(8);
        let is_full = |at: &u64| {
            let [head, limit] = [*at, at + WORD].map(|at| hidden.load_u64(at));
            head == limit && head.is_power_of_two() && head > 4096
        };
        let head = words.into_iter().find(is_full).expect("the ring is full");
        Self { head, len: hidden.load_u64(head) }
    }
}

pub(crate) fn run() {
    let guest = TestGuest::restored(1);
    guest.probe(&format!("p:{EVENT} __x64_sys_getpid %di %si %dx %cx"));
    guest.optimize(EVENT);
    // Nothing is read before the ring is full.
    let _ = guest.work("getpid 66000");
    let ring = Ring::full(&guest);
    let (hidden, records) = (guest.vm.hidden(), ring.len / RECORD);
    let mut data = vec![0; usize::try_from(ring.len).expect("some MiB")];
    hidden.read(ring.head + DATA, &mut data);
    let mut least = f64::INFINITY;
    for lap in 1..=LAPS {
        let begun = Instant::now();
        guest.engine.drain();
        least = least.min(begun.elapsed().as_secs_f64());
        assert_eq!(guest.status(EVENT).recorded, records * u64::from(lap), "all were read");
        hidden.write(ring.head + DATA, &data);
        hidden.store_u64(ring.head, ring.len * u64::from(lap + 1));
    }
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    let rate = records as f64 / least;
    figure("records into the store, on one core", &format!("{:.1} M/s", rate * 1e-6), ">= 5 M/s");
    let store = guest.engine.events();
    assert!(store.read(1, 1).events.len() == 1, "they are events to whoever reads");
}
