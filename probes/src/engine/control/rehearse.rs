//! Probes that are only checked: whether they would have a jmp.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use exoprobe_guest::{Guest, Gva};

use crate::engine::control::place::{self, Vetted};
use crate::engine::control::state::Control;
use crate::engine::kernel::running::Kernel;
use crate::engine::optimize::rings::Rings;
use crate::engine::probe::registered::PlacedProbe;
use crate::engine::probe::site::{Displacement, Sites};

impl Control {
    /// The places of probes that were checked which would keep their int3s if the probes were
    /// registered together, each with the reason. The guest may still be without room for all jmps.
    /// Changes nothing in the guest.
    pub(crate) fn rehearse(&mut self, guest: &dyn Guest, ids: &[u32]) -> HashMap<Gva, Arc<str>> {
        let Some(kernel) = self.kernel.running.clone() else { return HashMap::new() };
        let (sites, places) = self.sites_with(guest, &kernel, ids);
        let refused = |why: &str| places.iter().map(|at| (*at, Arc::from(why))).collect();
        if !kernel.has_booted() || kernel.has_init_text() {
            return refused("booting: the guest has not booted yet");
        }
        self.inform_hits(guest);
        let env = match Rings::probed_kernel(guest, &kernel) {
            Ok(env) => env,
            Err(why) => return refused(why),
        };
        let (on, optimizer) = (self.registry.switched_on, &mut self.optimizer);
        let reason = |at: &Gva| {
            let rehearsed = optimizer.rehearse(&sites, on, &kernel, &env, &sites[at]);
            Some((*at, rehearsed.err()?))
        };
        places.iter().filter_map(reason).collect()
    }

    /// All sites as they would be with these probes, and the places of the probes.
    fn sites_with(
        &self,
        guest: &dyn Guest,
        kernel: &Kernel,
        ids: &[u32],
    ) -> (Sites, BTreeSet<Gva>) {
        let (mut sites, mut places) = (Sites::default(), BTreeSet::new());
        sites.extend(self.registry.sites.iter().map(|(at, site)| (*at, Arc::clone(site))));
        let jumps = self.optimizer.installed();
        for registered in ids.iter().map(|id| &self.registry.probes[id]) {
            let (probe, Some(at)) = (&registered.probe, registered.placed()) else { continue };
            let site = match place::vet(&sites, jumps, guest, kernel, at, probe) {
                Ok(Vetted::Present(site)) => site,
                // The instruction runs nowhere: a slot would never be free again.
                Ok(Vetted::Possible(new)) => Arc::new(new.site(Displacement::Emulate)),
                Err(_) => continue,
            };
            let site = Arc::make_mut(sites.entry(at).or_insert(site));
            site.probes.push(PlacedProbe::new(probe));
            site.armed |= probe.wants_breakpoint();
            places.insert(at);
        }
        (sites, places)
    }
}
