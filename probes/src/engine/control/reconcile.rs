//! Makes the guest's text agree with the registry: the one place that arms and disarms, and that
//! replaces the hit path's table.

use crate::engine::control::registry::Registry;
use crate::engine::control::state::Control;
use crate::engine::hit::table::Followers;
use crate::engine::hit::table::Table;
use crate::engine::patch::error::TextError;
use crate::engine::patch::text;
use crate::engine::probe::registered::unwatch_all;
use crate::error::ProbeError;
use exoprobe_guest::Guest;
use std::collections::BTreeSet;
use std::sync::Arc;

use exoprobe_guest::Gva;

/// Whether a change waits until every vCPU has seen it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    ForVcpus,
    /// For changes from a vCPU's own thread, and those that only arm.
    No,
}

/// A site that could not be armed or disarmed.
pub(crate) struct ArmError {
    /// Which; none when a vCPU did not answer.
    pub(crate) at: Option<Gva>,
    pub(crate) error: ProbeError,
}

impl Control {
    /// Makes the int3s at `places` agree with what is wanted there, in the order that loses no hit
    /// and takes no int3 of the guest's own: table, int3s, and for those that go byte, wait, table.
    /// Everything possible is done; the first error is given.
    pub(crate) fn reconcile(
        &mut self,
        guest: &dyn Guest,
        places: &BTreeSet<Gva>,
        wait: Wait,
    ) -> Result<(), ArmError> {
        self.optimizer.note_change();
        // On vCPUs' threads nothing is settled that could be optimized: marks, and return sites.
        if wait == Wait::ForVcpus {
            self.unoptimize(guest, places.iter());
        }
        let (mut arming, mut disarming) = (Vec::new(), Vec::new());
        for at in places {
            let Some(site) = self.registry.sites.get(at) else { continue };
            match (self.registry.is_wanted(site), site.armed) {
                (true, false) => arming.push(*at),
                (false, true) => disarming.push(*at),
                _ => {}
            }
        }
        let mut first = Ok(());
        // Where something else is, an int3 is the guest's own, also for a moment.
        arming.retain(|at| {
            let site = &self.registry.sites[at];
            let fit = text::check(guest.ram(), site.gpa, *at, site.insn.original());
            let is_fit = fit.is_ok();
            let noted = self.registry.note(*at, false, fit);
            first = std::mem::replace(&mut first, Ok(())).and(noted);
            is_fit
        });
        for at in &arming {
            self.registry.change(*at, |site| (site.armed, site.clobbered) = (true, false));
        }
        self.publish(guest);
        for at in arming {
            let site = &self.registry.sites[&at];
            let armed = text::arm(guest.ram(), site.gpa, at, site.insn.original());
            first = first.and(self.registry.note(at, false, armed));
        }
        for at in &disarming {
            let site = &self.registry.sites[at];
            let disarmed = text::disarm(guest.ram(), site.gpa, *at, site.insn.original());
            first = first.and(self.registry.note(*at, true, disarmed));
        }
        // Whatever was on its way to the hit path finds the table that still has the sites.
        let synced = match wait {
            Wait::ForVcpus => guest.sync_vcpus(),
            Wait::No => Ok(()),
        };
        if wait == Wait::ForVcpus {
            self.registry.let_calls_go();
        }
        let is_settled = disarming.is_empty() && first.is_ok();
        for at in disarming {
            self.registry.change(at, |site| site.armed = false);
        }
        self.registry.sweep();
        if !is_settled {
            self.publish(guest);
        }
        first.and(synced.map_err(|error| ArmError { at: None, error: error.into() }))
    }

    /// Takes the jmps of these sites out: their int3s are back when this returns, and every task
    /// that ran in their detours has left them, unless it is switched out. Not for vCPUs' threads.
    pub(crate) fn unoptimize<'a>(
        &mut self,
        guest: &dyn Guest,
        sites: impl Iterator<Item = &'a Gva>,
    ) {
        let places: Vec<Gva> = sites.copied().collect();
        let Self { registry, optimizer, .. } = self;
        let clobbered = optimizer.take_out(&registry.sites, &places, registry.switched_on, guest);
        for at in clobbered {
            registry.change(at, |site| (site.armed, site.clobbered) = (false, true));
        }
    }

    /// Text is about to go, or has gone: takes the int3s out that are in it still, and its probes
    /// are gone.
    pub(crate) fn text_gone(&mut self, guest: &dyn Guest, lost: &[Gva], wait: Wait) {
        for at in lost {
            let site = &self.registry.sites[at];
            // Its memory may be mapped again as it is, when no site would answer the int3 in it.
            if site.armed
                && text::holds(guest.ram(), site.gpa, site.insn.original()) == text::Holds::Int3
                && let Err(error) = text::disarm(guest.ram(), site.gpa, *at, site.insn.original())
            {
                tracing::debug!(%error, "text that has gone");
            }
        }
        // A vCPU that took one of these breakpoints before they went finds them in the table.
        if wait == Wait::ForVcpus
            && !lost.is_empty()
            && let Err(error) = guest.sync_vcpus()
        {
            tracing::debug!(%error, "text that has gone");
        }
        self.registry.lose(lost);
    }

    /// Makes the hit path see the sites as they are now.
    pub(crate) fn publish(&self, guest: &dyn Guest) {
        let view = self.kernel.running.as_ref().map(|kernel| kernel.view.clone());
        let watching = self.registry.return_probes().cloned().collect();
        let (sites, on) = (self.registry.sites.values(), self.registry.switched_on);
        let tasks = self.kernel.running.as_ref().and_then(|kernel| kernel.tasks().cloned());
        let table = Table::new(sites, guest.hidden(), view, tasks, watching, on);
        let followers = Followers::new(self.optimizer.followers());
        followers.set_enabled(guest.hidden(), on);
        let mut table =
            table.with_detours(self.optimizer.doorbells(&self.registry.sites), followers);
        table.symbols = self.kernel.running.as_ref().map(|kernel| kernel.symbols.clone());
        table.orc = self.kernel.running.as_ref().and_then(|kernel| kernel.orc().cloned());
        self.hits.table.store(Arc::new(table));
    }
}

impl Registry {
    /// Ends the watch over calls of return probes in the mode `site` that are off, or are being
    /// removed: their returns are not seen any more. No vCPU can be about to begin such a watch.
    fn let_calls_go(&self) {
        for probe in
            self.return_probes().filter(|probe| !(self.switched_on && probe.wants_breakpoint()))
        {
            if let Some(returns) = probe.returns() {
                unwatch_all(&returns.watched);
            }
        }
    }

    /// Notes in the books that a write to a site's text failed, if it did; `armed` is what it is
    /// then.
    fn note(
        &mut self,
        at: Gva,
        armed: bool,
        written: Result<(), TextError>,
    ) -> Result<(), ArmError> {
        written.map_err(|error| {
            let clobbered = matches!(error, TextError::Clobbered { .. });
            self.change(at, |site| (site.armed, site.clobbered) = (armed, clobbered));
            ArmError { at: Some(at), error: error.into() }
        })
    }
}
