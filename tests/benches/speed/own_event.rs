//! An optimized probe against the same by int3, and against the jump-optimized kprobe event of a
//! guest's own kernel: time of one hit, with four registers recorded each.

use std::time::{Duration, Instant};

use exoprobe_probes::Selection;
use exoprobe_tests::loops::{self, Loops};
use exoprobe_tests::{OwnEvent, TestGuest};

use crate::figure::figure;

const FUNCTION: &str = "sys_ni_syscall";
const ARGS: [&str; 4] = ["%di", "%si", "%dx", "%cx"];
const EVENT: &str = "event";
const TURNS: u64 = 2_000;
const ROUNDS: usize = 7;

/// A guest that calls the function in a loop.
struct Caller {
    loops: Loops<Instant>,
}

impl Caller {
    fn new(guest: TestGuest) -> Self {
        let function = guest.engine.address_of(FUNCTION).expect("every kernel has it");
        let code = loops::call(function);
        Self { loops: Loops::new(guest, &[&code], Instant::now) }
    }

    fn guest(&self) -> &TestGuest {
        self.loops.guest()
    }

    fn time(&self) -> Duration {
        let (begun, ended) = self.loops.run(0, TURNS);
        ended - begun
    }

    /// Cost of a hit: the least of the rounds with the event less that of those without.
    fn per_hit(&self, set: impl Fn(bool)) -> f64 {
        let (mut plain, mut with) = (Duration::MAX, Duration::MAX);
        for _ in 0..ROUNDS {
            set(false);
            plain = plain.min(self.time());
            set(true);
            with = with.min(self.time());
        }
        #[expect(clippy::cast_precision_loss, reason = "thousands")]
        let turns = TURNS as f64;
        with.saturating_sub(plain).as_secs_f64() / turns
    }
}

/// An exoprobe probe of the function, by int3 or optimized.
fn ours(caller: &Caller, optimized: bool) -> f64 {
    let engine = &caller.guest().engine;
    caller.guest().probe(&format!("p:{EVENT} {FUNCTION} {}", ARGS.join(" ")));
    let per_hit = caller.per_hit(|present| {
        engine.set_enabled(Selection::event("kprobes", EVENT), present).expect("it is registered");
        if present && optimized {
            caller.guest().optimize(EVENT);
        }
    });
    let hits = caller.guest().hits(EVENT);
    assert_eq!(hits, TURNS * ROUNDS as u64, "every turn is a hit");
    engine.unregister(Selection::event("kprobes", EVENT)).expect("it is registered");
    per_hit
}

pub(crate) fn run() {
    let caller = Caller::new(TestGuest::restored(1));
    let (by_int3, optimized) = (ours(&caller, false), ours(&caller, true));
    drop(caller);
    let (guest, event) = OwnEvent::boot(FUNCTION, &ARGS);
    let caller = Caller::new(guest);
    let own = caller.per_hit(|present| event.set(caller.guest(), present));
    let micros = |seconds: f64| format!("{:.2} us", seconds * 1e6);
    figure("a hit, optimized, four registers, with its call", &micros(optimized), "");
    figure("  the same by int3", &micros(by_int3), "");
    figure("  the guest's own jump-optimized event", &micros(own), "");
    figure(
        "  optimized, of the int3's time",
        &format!("{:.4}", optimized / by_int3),
        "<= 0.03 in the lab",
    );
    figure("  optimized, of the own event's time", &format!("1/{:.1}", own / optimized), "<= 1/20");
}
