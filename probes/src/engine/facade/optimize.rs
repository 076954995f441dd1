//! Searches of RAM, and what waits for them: jmps, and the end of detours.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use exoprobe_guest::Gva;

use crate::engine::facade::engine::Engine;
use crate::engine::optimize::liveness::Addresses;
use crate::engine::optimize::optimizer::{LOOK, LOOKS, Optimization};
use crate::engine::optimize::pass::Pass;
use crate::engine::optimize::search::{Search, SearchStatistics};

/// Stops of the guest since the engine was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopStatistics {
    /// Number of stops.
    pub stops: u64,
    /// The longest, from the first kick to the last vCPU's release.
    pub longest: Duration,
    /// Searches of RAM.
    pub searches: SearchStatistics,
}

impl Engine {
    /// Puts jmps in place of the int3s of those probes that may have one, and says of the others
    /// why not ([`crate::ProbeStatus::unoptimized_reason`]). To be called now and then; not by
    /// handlers. RAM is searched meanwhile, while the guest runs and other methods work; if probes
    /// change in that time, the next call makes another attempt.
    pub fn optimize(&self) -> Optimization {
        let mut statistics = self.lock_searches();
        let pass = self.lock().begin_pass(self.guest.as_ref());
        self.carry_out(&mut statistics, pass)
    }

    /// Frees the memory of detours that no task is in any more.
    pub(crate) fn collect_detours(&self) {
        let mut statistics = self.lock_searches();
        let pass = self.lock().begin_collection();
        self.carry_out(&mut statistics, pass);
    }

    fn carry_out(&self, statistics: &mut SearchStatistics, pass: Option<Pass>) -> Optimization {
        let guest = self.guest.as_ref();
        let Some(mut pass) = pass else {
            let total = self.lock().optimizer.total();
            return Optimization { total, ..Optimization::default() };
        };
        let inside = std::mem::take(&mut pass.inside);
        let mut search = Search::new(guest, &inside, statistics);
        // This thread may be the one that drains and patrols: see `tick`. A vCPU that waits for a
        // jmp to go must not wait for the search.
        search.settle(&mut || {
            let mut control = self.lock();
            self.drain_in(&mut control);
            control.make_way(guest);
        });
        self.lock().finish_pass(guest, pass, &mut search)
    }

    /// Waits until no task is in this code, to which nothing leads: at most for some looks, because
    /// a task that is switched out may be in it for long, as may be a word that only resembles an
    /// address. Control must not be locked.
    pub(crate) fn await_left(&self, code: &[(Gva, Gva)]) {
        let mut statistics = self.lock_searches();
        let mut inside = Addresses::default();
        for (number, (start, end)) in code.iter().enumerate() {
            inside.add(*start, *end, number);
        }
        let mut search = Search::new(self.guest.as_ref(), &inside, &mut statistics);
        for _ in 0..LOOKS {
            let mut left = true;
            match search.stop(&mut |found| left = found.is_empty()) {
                Ok(()) if left => break,
                Ok(()) => std::thread::sleep(LOOK),
                Err(error) => return tracing::debug!(%error, "waiting for detours' last hits"),
            }
        }
    }

    /// The longest stop of the guest so far. Waits for nothing.
    #[must_use]
    pub fn longest_stop(&self) -> Duration {
        self.timed.stops().1
    }

    /// How often and for how long the engine has stopped the guest. Waits for a search that is
    /// under way.
    #[must_use]
    pub fn stop_statistics(&self) -> StopStatistics {
        let (stops, longest) = self.timed.stops();
        StopStatistics { stops, longest, searches: self.lock_searches().clone() }
    }

    fn lock_searches(&self) -> MutexGuard<'_, SearchStatistics> {
        self.searches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
