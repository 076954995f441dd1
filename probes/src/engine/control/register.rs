//! Registration, removal, arming.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use exoprobe_guest::Gva;
use exoprobe_introspect::modules::has_modules;
use exoprobe_introspect::{LookupError, NoModules};

use crate::definition::ProbeDefinition;
use crate::engine::control::boot::NOT_BEGUN;
use crate::engine::control::place::Place;
use crate::engine::control::registry::{Registered, Registry, State};
use crate::engine::control::siblings::NameThere;
use crate::engine::control::{place, room};
use crate::engine::hit::path::HitPath;
use crate::engine::hit::table::Followers;
use crate::engine::hit::table::Table;
use crate::engine::kernel::running::Kernel;
use crate::engine::patch::text;
use crate::engine::probe::check;
use crate::engine::probe::handlers::NewProbe;
use crate::engine::probe::registered::Probe;
use crate::engine::probe::registered::unwatch_all;
use crate::error::{BatchError, ProbeError};
use exoprobe_guest::Guest;

/// A probe that was registered: what unregistering takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Number of the probe, never used again.
    pub id: u32,
    /// The probed address; as linked while the kernel has not begun. Unregistering clears it where there
    /// is no such probe.
    pub addr: Option<Gva>,
}

/// Whether a change waits until every vCPU has seen it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    ForVcpus,
    /// For changes from a vCPU's own thread, and those that only arm.
    No,
}

/// A site that could not be armed or disarmed.
pub(crate) struct Unsettled {
    /// Which; none when a vCPU did not answer.
    pub(crate) at: Option<Gva>,
    pub(crate) error: ProbeError,
}

impl HitPath {
    /// Registers all or none; without a kernel they wait for it.
    pub(crate) fn add_all(
        &self,
        registry: &mut Registry,
        guest: &dyn Guest,
        probes: Vec<NewProbe>,
        there: NameThere,
    ) -> Result<Vec<Registration>, BatchError> {
        if probes.is_empty() {
            return Ok(Vec::new());
        }
        let (mut registrations, mut added) = (Vec::new(), Vec::with_capacity(probes.len()));
        for (index, probe) in probes.into_iter().enumerate() {
            let name = probe.definition().event_name();
            match self.add(registry, guest, probe, there) {
                Ok(registration) => {
                    added.push(registration.id);
                    registrations.push(registration);
                }
                Err(error) => {
                    // Nothing of the batch is armed yet, so that there is only the books to undo.
                    registry.forget(&added);
                    return Err(BatchError { index, name, error });
                }
            }
        }
        registry.learn_orc();
        let mut places: BTreeSet<Gva> =
            added.iter().filter_map(|id| registry.probes[id].placed()).collect();
        places.extend(self.want_marks(registry, guest, Wait::ForVcpus));
        if let Err(refused) = self.settle(registry, guest, &places, Wait::ForVcpus) {
            let at_fault =
                |id: &u32| refused.at.is_none_or(|at| registry.probes[id].placed() == Some(at));
            let index = added.iter().position(at_fault).unwrap_or_default();
            let name = registry.probes[&added[index]].probe.event.to_string();
            if let Err(undo) = self.disarm_all(registry, guest, &added) {
                tracing::error!(%undo, "undoing a refused batch");
            }
            self.forget_all(registry, guest, &added);
            return Err(BatchError { index, name, error: refused.error });
        }
        Ok(registrations)
    }

    /// Puts one probe into the books.
    fn add(
        &self,
        registry: &mut Registry,
        guest: &dyn Guest,
        mut probe: NewProbe,
        there: NameThere,
    ) -> Result<Registration, ProbeError> {
        self.rewrite(registry, probe.definition_mut())?;
        check::check(&mut probe)?;
        let definition = probe.definition();
        let name = (definition.group().to_owned(), definition.event_name());
        let cost = room::cost(&probe, guest.vcpus());
        registry.room.check(cost)?;
        let kernel = registry.kernel.clone();
        let (found, waits_for) = self.find_place(registry, definition)?;
        let is_entry = found.symbol.is_some() && found.offset == 0;
        let probe = Arc::new(Probe::new(registry.take_id(), probe, is_entry, guest.vcpus()));
        probe.set_at(found.at);
        if let (Some(kernel), None) = (&kernel, &waits_for) {
            self.learn_arguments(registry, kernel, &probe, &found)?;
        }
        // Last, as in the kernel: a definition with another fault has that one reported.
        if there == NameThere::Refused && registry.ids(&name.0, &name.1).is_ok() {
            return Err(ProbeError::NameTaken(format!("{}/{}", name.0, name.1)));
        }
        registry.join(&probe)?;
        let state = match (kernel, waits_for) {
            (Some(_), Some(module)) => State::Pending(module.to_string()),
            (Some(kernel), None) => match self.place(registry, guest, &kernel, &probe) {
                Err(error @ ProbeError::NotFinal(_)) => State::Pending(error.to_string()),
                placed => State::Placed(placed?),
            },
            (None, _) => State::Pending(NOT_BEGUN.to_owned()),
        };
        let addr = (found.at != Gva::default()).then_some(found.at);
        let registration = Registration { id: probe.id, addr };
        let Place { at, symbol, offset } = found;
        let addr = at.to_string().into();
        let origin = RefCell::default();
        registry.insert(Registered { probe, symbol, offset, addr, state, cost, origin });
        Ok(registration)
    }

    /// Where a new probe is to be, as far as that is known, and the error that only a module's coming will mend.
    pub(crate) fn find_place(
        &self,
        registry: &Registry,
        definition: &ProbeDefinition,
    ) -> Result<(Place, Option<LookupError>), ProbeError> {
        let kernel = registry.kernel.as_ref();
        let symbols = kernel.map(|kernel| &kernel.symbols).or(self.symbols.as_ref());
        let by_name = Place {
            at: definition.addr.unwrap_or_default(),
            symbol: definition.symbol_name.as_deref().map(Arc::from),
            offset: definition.offset,
        };
        match (kernel, definition.addr, symbols) {
            // Addresses are the running kernel's, which nobody knows yet (KASLR).
            (None, Some(_), _) => Ok((Place { offset: 0, ..by_name }, None)),
            (_, _, Some(symbols)) => match place::find(symbols, definition) {
                Err(ProbeError::Symbol(error @ LookupError::NoModule { .. })) => {
                    if !has_modules(symbols) {
                        return Err(NoModules::NoList.into());
                    }
                    registry.can_wait_for_module()?;
                    Ok((by_name, Some(error)))
                }
                found => Ok((found?, None)),
            },
            // Its names will be the kernel's own.
            (_, _, None) => Ok((by_name, None)),
        }
    }

    /// Makes a probe part of the site for its address; gives where that is.
    pub(crate) fn place(
        &self,
        registry: &mut Registry,
        guest: &dyn Guest,
        kernel: &Kernel,
        probe: &Arc<Probe>,
    ) -> Result<Gva, ProbeError> {
        let behind = place::behind_ftrace(registry, kernel, probe.at());
        if let Some(optimized) = registry.optimizer.covering(behind) {
            self.unoptimize(registry, guest, std::iter::once(&optimized));
        }
        place::join(registry, guest, kernel, behind, probe)?;
        Ok(behind)
    }

    /// Makes the int3s at `places` agree with what is wanted there, in the order that loses no hit and
    /// takes no int3 of the guest's own: table, int3s, and for those that go byte, wait, table.
    /// Everything possible is done; the first error is given.
    pub(crate) fn settle(
        &self,
        registry: &mut Registry,
        guest: &dyn Guest,
        places: &BTreeSet<Gva>,
        wait: Wait,
    ) -> Result<(), Unsettled> {
        registry.optimizer.note_change();
        // On vCPUs' threads nothing is settled that could be optimized: marks, and return sites.
        if wait == Wait::ForVcpus {
            self.unoptimize(registry, guest, places.iter());
        }
        let (mut arming, mut disarming) = (Vec::new(), Vec::new());
        for at in places {
            let Some(site) = registry.sites.get(at) else { continue };
            match (registry.is_wanted(site), site.armed) {
                (true, false) => arming.push(*at),
                (false, true) => disarming.push(*at),
                _ => {}
            }
        }
        let mut first = Ok(());
        // Where something else is, an int3 is the guest's own, also for a moment.
        arming.retain(|at| {
            let site = &registry.sites[at];
            let fit = text::check(guest.ram(), site.gpa, *at, site.insn.original());
            let is_fit = fit.is_ok();
            let noted = registry.note(*at, false, fit);
            first = std::mem::replace(&mut first, Ok(())).and(noted);
            is_fit
        });
        for at in &arming {
            registry.change(*at, |site| (site.armed, site.clobbered) = (true, false));
        }
        self.publish(registry, guest);
        for at in arming {
            let site = &registry.sites[&at];
            let armed = text::arm(guest.ram(), site.gpa, at, site.insn.original());
            first = first.and(registry.note(at, false, armed));
        }
        for at in &disarming {
            let site = &registry.sites[at];
            let disarmed = text::disarm(guest.ram(), site.gpa, *at, site.insn.original());
            first = first.and(registry.note(*at, true, disarmed));
        }
        // Whatever was on its way to the hit path finds the table that still has the sites.
        let synced = match wait {
            Wait::ForVcpus => guest.sync_vcpus(),
            Wait::No => Ok(()),
        };
        if wait == Wait::ForVcpus {
            registry.let_calls_go();
        }
        let is_settled = disarming.is_empty() && first.is_ok();
        for at in disarming {
            registry.change(at, |site| site.armed = false);
        }
        registry.sweep();
        if !is_settled {
            self.publish(registry, guest);
        }
        first.and(synced.map_err(|error| Unsettled { at: None, error: error.into() }))
    }

    /// Disables probes and takes their int3s out; the first error is given after all are done.
    pub(crate) fn disarm_all(
        &self,
        registry: &mut Registry,
        guest: &dyn Guest,
        ids: &[u32],
    ) -> Result<(), ProbeError> {
        for id in ids {
            let probe = &registry.probes[id].probe;
            probe.enabled.store(false, Ordering::SeqCst);
            probe.set_triggers(None);
        }
        let places = registry.places_of(ids);
        let settled = self.settle(registry, guest, &places, Wait::ForVcpus);
        settled.map_err(|unsettled| unsettled.error)
    }

    /// Takes disarmed probes out of the books.
    pub(crate) fn forget_all(&self, registry: &mut Registry, guest: &dyn Guest, ids: &[u32]) {
        registry.forget(ids);
        self.advance(registry, guest, Wait::ForVcpus);
        self.publish(registry, guest);
    }

    /// Makes the hit path see the sites as they are now.
    pub(crate) fn publish(&self, registry: &Registry, guest: &dyn Guest) {
        let view = registry.kernel.as_ref().map(|kernel| kernel.view.clone());
        let watching = registry.return_probes().cloned().collect();
        let (sites, on) = (registry.sites.values(), registry.switched_on);
        let tasks = registry.kernel.as_ref().and_then(|kernel| kernel.tasks().cloned());
        let table = Table::new(sites, guest.hidden(), view, tasks, watching, on);
        let followers = Followers::new(registry.optimizer.followers());
        followers.set_enabled(guest.hidden(), on);
        let mut table =
            table.with_detours(registry.optimizer.doorbells(&registry.sites), followers);
        table.symbols = registry.kernel.as_ref().map(|kernel| kernel.symbols.clone());
        table.orc = registry.kernel.as_ref().and_then(|kernel| kernel.orc().cloned());
        self.table.store(Arc::new(table));
    }
}

impl Registry {
    /// Ends the watch over calls of return probes in the mode `site` that are off, or are being removed:
    /// their returns are not seen any more. No vCPU can be about to begin such a watch.
    fn let_calls_go(&self) {
        for probe in self.return_probes().filter(|probe| !(self.switched_on && probe.is_enabled()))
        {
            if let Some(returns) = probe.returns() {
                unwatch_all(&returns.watched);
            }
        }
    }

    /// Notes in the books that a write to a site's text failed, if it did; `armed` is what it is then.
    fn note(
        &mut self,
        at: Gva,
        armed: bool,
        written: Result<(), ProbeError>,
    ) -> Result<(), Unsettled> {
        written.map_err(|error| {
            let clobbered = matches!(error, ProbeError::Clobbered { .. });
            self.change(at, |site| (site.armed, site.clobbered) = (armed, clobbered));
            Unsettled { at: Some(at), error }
        })
    }
}
