//! Makes the guest's text agree with the registry: the only place that arms, disarms and replaces
//! the hit path's table.

use crate::definition::ReturnMode;
use crate::engine::control::registry::Registry;
use crate::engine::control::state::Control;
use crate::engine::hit::table::InGuestProbes;
use crate::engine::hit::table::Table;
use crate::engine::patch::error::TextError;
use crate::engine::patch::text;
use crate::engine::probe::registered::{Probe, unwatch_all};
use crate::error::ProbeError;
use exoprobe_guest::Guest;
use std::collections::BTreeSet;
use std::sync::Arc;

use exoprobe_guest::Gva;

/// Whether a change waits until every vCPU has seen it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    ForVcpus,
    /// For changes on a vCPU's own thread, and for changes that only arm.
    No,
}

/// A site that could not be armed or disarmed.
pub(crate) struct ArmError {
    /// The address of the site; `None` if a vCPU did not answer.
    pub(crate) at: Option<Gva>,
    pub(crate) error: ProbeError,
}

impl Control {
    /// Makes the int3s at `places` agree with the registry. The order loses no hit and takes no
    /// int3 of the guest's own: table, int3s; then, for removed int3s: byte, wait, table. Continues
    /// after an error and returns the first one.
    pub(crate) fn reconcile(
        &mut self,
        guest: &dyn Guest,
        places: &BTreeSet<Gva>,
        wait: Wait,
    ) -> Result<(), ArmError> {
        self.optimizer.note_change();
        // vCPUs' threads reconcile only marks and return sites, which are never optimized.
        if wait == Wait::ForVcpus {
            self.unoptimize(guest, places.iter());
            self.await_write();
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
        // If the bytes differ, an int3 there is the guest's own, even if only for a moment.
        arming.retain(|at| {
            let site = &self.registry.sites[at];
            let fit = text::check(guest.ram(), site.gpa, *at, &site.own_text());
            let is_fit = fit.is_ok();
            let noted = self.registry.note(*at, false, fit);
            first = std::mem::replace(&mut first, Ok(())).and(noted);
            is_fit
        });
        for at in &arming {
            self.registry.change(*at, |site| {
                (site.armed, site.clobbered, site.catches_returns) = (true, false, false);
            });
        }
        self.publish(guest);
        for at in arming {
            let site = &self.registry.sites[&at];
            let armed = text::arm(guest.ram(), site.gpa, at, &site.own_text());
            first = first.and(self.registry.note(at, false, armed));
        }
        for at in &disarming {
            let site = &self.registry.sites[at];
            let disarmed = text::disarm(guest.ram(), site.gpa, *at, &site.own_text());
            first = first.and(self.registry.note(*at, true, disarmed));
        }
        // A vCPU that is on its way to the hit path finds the table that still has the sites.
        let synced = match wait {
            Wait::ForVcpus => guest.sync_vcpus(),
            Wait::No => Ok(()),
        };
        if wait == Wait::ForVcpus {
            self.registry.release_calls();
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

    /// Takes the jmps of these sites out. When this returns, their int3s are back, and every task
    /// that ran in their detours has left them, unless it is switched out. Must not be called on a
    /// vCPU's thread.
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

    /// Handles text that is about to go, or has gone: removes the jmps and int3s that are still in
    /// it, and marks its probes as gone. On a vCPU's thread there must be no jmps.
    pub(crate) fn text_gone(&mut self, guest: &dyn Guest, lost: &[Gva], wait: Wait) {
        if wait == Wait::ForVcpus {
            self.unoptimize(guest, lost.iter());
        }
        for at in lost {
            let site = &self.registry.sites[at];
            // The memory may be mapped again unchanged, and then no site would answer the int3 in
            // it.
            if site.armed
                && text::holds(guest.ram(), site.gpa, site.insn.original()) == text::Holds::Int3
                && let Err(error) = text::disarm(guest.ram(), site.gpa, *at, &site.own_text())
            {
                tracing::debug!(%error, "text that has gone");
            }
        }
        // A vCPU that took one of these breakpoints before they went still finds them in the table.
        if wait == Wait::ForVcpus
            && !lost.is_empty()
            && let Err(error) = guest.sync_vcpus()
        {
            tracing::debug!(%error, "text that has gone");
        }
        self.optimizer.forget_sites(lost);
        self.registry.lose(lost);
    }

    /// Publishes the present sites to the hit path.
    pub(crate) fn publish(&self, guest: &dyn Guest) {
        let view = self.kernel.running.as_ref().map(|kernel| kernel.view.clone());
        let returns_to_sites = |probe: &&Arc<Probe>| {
            probe.returns().is_some_and(|returns| returns.mode == ReturnMode::Site)
        };
        let watching = self.registry.return_probes().filter(returns_to_sites).cloned().collect();
        let (sites, on) = (self.registry.sites.values(), self.registry.switched_on);
        let tasks = self.kernel.running.as_ref().and_then(|kernel| kernel.tasks().cloned());
        let table = Table::new(sites, guest.hidden(), view, tasks, watching, on);
        let in_guest = InGuestProbes::new(self.optimizer.in_guest());
        in_guest.set_enabled(guest.hidden(), on);
        let mut table =
            table.with_detours(self.optimizer.doorbells(&self.registry.sites), in_guest);
        table.symbols = self.symbols().cloned();
        table.orc = self.kernel.running.as_ref().and_then(|kernel| kernel.orc().cloned());
        self.hits.table.store(table);
    }
}

impl Registry {
    /// Ends the watch over calls of return probes in the mode `site` that are disabled or being
    /// removed: their returns are no longer handled. No vCPU can be about to begin such a watch.
    fn release_calls(&self) {
        for probe in
            self.return_probes().filter(|probe| !(self.switched_on && probe.wants_breakpoint()))
        {
            if let Some(returns) = probe.returns() {
                unwatch_all(&returns.watched);
            }
        }
    }

    /// Records the result of a write to a site's text; `armed` is the site's state if the write
    /// succeeded.
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
