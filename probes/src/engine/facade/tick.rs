//! The engine's regular work, in one call.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::engine::facade::engine::Engine;

/// Longest stay of hits in the rings while there are probes.
const DRAIN_BUSY: Duration = Duration::from_millis(5);
/// After so many hits at once the next are not waited for: a ring holds 4,000 records of four
/// arguments.
const MANY: usize = 500;
/// The same after [`QUIET`] calls without a hit, if each of the detours' rings holds more than that
/// of a million records a second: an idle service wakes less often.
const DRAIN_QUIET: Duration = Duration::from_millis(25);
const RECORDS_QUIET: u64 = 32_000;
const QUIET: u32 = 20;
/// Longest time until probes that were just registered are seen.
const DRAIN_IDLE: Duration = Duration::from_millis(50);
/// Between two looks at the guest's text and at probes that could be placed or optimized.
const PATROL: Duration = Duration::from_millis(100);

impl Engine {
    /// Does what the engine must do again and again: moves hits to the store ([`Self::drain`]) and,
    /// ten times a second, looks after the probes' text ([`Self::patrol`]), optimizes
    /// ([`Self::optimize`]) and reads the detours' counters. Returns the time after which to call
    /// it again, at most 50 ms. One thread of the VMM's does it for as long as the engine lives:
    ///
    /// ```no_run
    /// # fn regular_work(engine: std::sync::Arc<exoprobe_probes::Engine>) {
    /// std::thread::spawn(move || loop {
    ///     std::thread::sleep(engine.tick());
    /// });
    /// # }
    /// ```
    ///
    /// It waits for vCPUs, so it must not be called on a vCPU's thread. A late call loses nothing
    /// unless a ring is full: hits without room are counted as lost.
    #[must_use = "the time after which to call it again"]
    pub fn tick(&self) -> Duration {
        let moved = self.drain();
        if self.is_patrol_due() {
            self.patrol();
            self.optimize();
            let mut control = self.lock();
            self.count_optimized(&mut control);
        }
        let (is_busy, is_roomy) = {
            let control = self.lock();
            let registry = &control.registry;
            let is_busy = !registry.probes.is_empty() || !registry.samplers.is_empty();
            (is_busy, control.rings.have_room_for(RECORDS_QUIET))
        };
        let quiet = match moved {
            0 => self.quiet.load(Ordering::Relaxed).saturating_add(1),
            _ => 0,
        };
        self.quiet.store(quiet, Ordering::Relaxed);
        match is_busy {
            true if moved > MANY => Duration::ZERO,
            true if quiet > QUIET && is_roomy => DRAIN_QUIET,
            true => DRAIN_BUSY,
            false => DRAIN_IDLE,
        }
    }

    /// Returns true once each [`PATROL`].
    fn is_patrol_due(&self) -> bool {
        let mut patrolled = self.patrolled.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = patrolled.is_none_or(|last: Instant| last.elapsed() >= PATROL);
        if is_due {
            *patrolled = Some(Instant::now());
        }
        is_due
    }
}
