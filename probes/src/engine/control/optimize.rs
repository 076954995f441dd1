//! A pass of the optimizer, with the tables that it needs.

use crate::engine::control::state::Control;
use crate::engine::optimize::candidate::OptimizedSite;
use crate::engine::optimize::optimizer::Optimization;
use exoprobe_guest::Guest;

impl Control {
    /// Runs one pass. Must not be called on a vCPU's thread.
    pub(crate) fn optimize(&mut self, guest: &dyn Guest) -> Optimization {
        let Some(kernel) =
            self.kernel.running.clone().filter(|kernel| {
                kernel.has_booted() && !kernel.has_init_text() && !guest.stopped()
            })
        else {
            return Optimization::default();
        };
        if kernel.learn_tasks(guest.vcpus()) {
            self.publish(guest);
        }
        // It would write over a jmp that comes now.
        if self.hits.guest_writes() {
            let total = self.optimizer.total();
            return Optimization { total, ..Optimization::default() };
        }
        let Self { registry, optimizer, rings, .. } = self;
        let on = registry.switched_on;
        let candidates = optimizer.prepare(&registry.sites, on, guest, &kernel, rings);
        let mut done = Optimization::default();
        if !candidates.is_empty() {
            (done.optimized, done.waiting) = self.install(guest, candidates);
        }
        done.total = self.optimizer.total();
        done
    }

    /// Publishes the doorbells of new detours, installs their jmps, and frees code that no table
    /// contains after that. Returns the number of jmps written and the number of sites that wait.
    fn install(&mut self, guest: &dyn Guest, candidates: Vec<OptimizedSite>) -> (usize, usize) {
        let total = candidates.len();
        self.optimizer.announce(&self.registry.sites, &candidates);
        if !candidates.is_empty() {
            self.publish(guest);
        }
        let is_held = || self.hits.is_held();
        let sites = &self.registry.sites;
        let (done, freed) = self.optimizer.install(sites, guest, &is_held, candidates);
        if !freed.is_empty() {
            self.publish(guest);
        }
        self.optimizer.free(guest.hidden(), &mut self.rings, freed);
        (done, total - done)
    }

    /// Frees the memory of detours that no task is in any more.
    pub(crate) fn collect_detours(&mut self, guest: &dyn Guest) {
        if self.optimizer.has_retired() {
            let _ = self.install(guest, Vec::new());
        }
    }
}
