//! A pass of the optimizer, with the tables that it needs.

use crate::engine::control::state::Control;
use crate::engine::optimize::candidate::OptimizedSite;
use crate::engine::optimize::optimizer::Optimization;
use crate::engine::optimize::pass::{Installation, Pass};
use crate::engine::optimize::search::Search;
use exoprobe_guest::Guest;

impl Control {
    /// Begins a pass: makes detours for the sites that may have one. `None` if there is none. Must
    /// not be called on a vCPU's thread.
    pub(crate) fn begin_pass(&mut self, guest: &dyn Guest) -> Option<Pass> {
        let booted = self.kernel.running.clone();
        let kernel = booted
            .filter(|kernel| kernel.has_booted() && !kernel.has_init_text() && !guest.stopped())?;
        self.inform_hits(guest);
        let Self { registry, optimizer, rings, .. } = self;
        let on = registry.switched_on;
        let candidates = optimizer.prepare(&registry.sites, on, guest, &kernel, rings);
        (!candidates.is_empty()).then(|| optimizer.pass(&registry.sites, candidates))
    }

    /// A pass over retired code alone; `None` if there is none.
    pub(crate) fn begin_collection(&self) -> Option<Pass> {
        let is_needed = self.optimizer.has_retired();
        is_needed.then(|| self.optimizer.pass(&self.registry.sites, Vec::new()))
    }

    /// Ends a pass, unless something has changed since it began: publishes the doorbells of new
    /// detours, installs their jmps, and frees code that no table contains after that.
    pub(crate) fn finish_pass(
        &mut self,
        guest: &dyn Guest,
        pass: Pass,
        search: &mut Search<'_>,
    ) -> Optimization {
        // The guest would write over a jmp that comes now.
        if self.hits.guest_writes() {
            self.optimizer.note_change();
        }
        let candidates = pass.candidates().len();
        let mut done = Optimization { waiting: candidates, ..Optimization::default() };
        match self.optimizer.outdated(pass) {
            Ok(pass) => {
                done.optimized = self.install(guest, pass, search);
                done.waiting -= done.optimized;
            }
            Err(code) => self.optimizer.free(guest.hidden(), &mut self.rings, code),
        }
        done.total = self.optimizer.total();
        done
    }

    fn install(&mut self, guest: &dyn Guest, pass: Pass, search: &mut Search<'_>) -> usize {
        let candidates: &[OptimizedSite] = pass.candidates();
        self.optimizer.announce(&self.registry.sites, candidates);
        if !candidates.is_empty() {
            self.publish(guest);
        }
        let is_held = || self.hits.is_held();
        let Installation { written, freed } = self.optimizer.install(guest, &is_held, pass, search);
        if !freed.is_empty() {
            self.publish(guest);
        }
        self.optimizer.free(guest.hidden(), &mut self.rings, freed);
        written
    }
}
