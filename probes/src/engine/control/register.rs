//! Registration and removal of probes.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use exoprobe_guest::Gva;
use exoprobe_introspect::modules::has_modules;
use exoprobe_introspect::{LookupError, NoModules};

use crate::definition::ProbeDefinition;
use crate::engine::control::place::Place;
use crate::engine::control::reconcile::Wait;
use crate::engine::control::registry::NOT_BEGUN;
use crate::engine::control::registry::{Registered, State};
use crate::engine::control::siblings::OnDuplicate;
use crate::engine::control::state::Control;
use crate::engine::control::{place, room};
use crate::engine::kernel::running::Kernel;
use crate::engine::probe::check;
use crate::engine::probe::handlers::NewProbe;
use crate::engine::probe::registered::Probe;
use crate::error::{BatchError, ProbeError};
use exoprobe_guest::Guest;

/// A registered probe: the argument of unregistering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Number of the probe, never used again.
    pub id: u32,
    /// The probed address; as linked while the kernel has not begun.
    pub addr: Option<Gva>,
}

impl Registration {
    pub(crate) fn of(registered: &Registered) -> Self {
        let at = registered.probe.at();
        Self { id: registered.probe.id, addr: (at != Gva::default()).then_some(at) }
    }
}

impl Control {
    /// Registers all or none. Without a kernel the probes wait for it.
    pub(crate) fn add_all(
        &mut self,
        guest: &dyn Guest,
        probes: Vec<NewProbe>,
        there: OnDuplicate,
    ) -> Result<Vec<Registration>, BatchError> {
        if probes.is_empty() {
            return Ok(Vec::new());
        }
        let (mut registrations, mut added) = (Vec::new(), Vec::with_capacity(probes.len()));
        for (index, probe) in probes.into_iter().enumerate() {
            let name = probe.definition().event_name();
            match self.add(guest, probe, there) {
                Ok(registration) => {
                    added.push(registration.id);
                    registrations.push(registration);
                }
                Err(error) => {
                    // Nothing of the batch is armed yet, so only the registry is undone.
                    self.forget(&added);
                    return Err(BatchError { index, name, error });
                }
            }
        }
        self.learn_orc();
        let mut places: BTreeSet<Gva> =
            added.iter().filter_map(|id| self.registry.probes[id].placed()).collect();
        places.extend(self.update_marks(guest, Wait::ForVcpus));
        if let Err(refused) = self.reconcile(guest, &places, Wait::ForVcpus) {
            let at_fault = |id: &u32| {
                refused.at.is_none_or(|at| self.registry.probes[id].placed() == Some(at))
            };
            let index = added.iter().position(at_fault).unwrap_or_default();
            let name = self.registry.probes[&added[index]].probe.event.to_string();
            if let Err(undo) = self.disarm_all(guest, &added) {
                tracing::error!(%undo, "undoing a refused batch");
            }
            self.forget_all(guest, &added);
            return Err(BatchError { index, name, error: refused.error });
        }
        Ok(registrations)
    }

    /// Adds one probe to the registry.
    fn add(
        &mut self,
        guest: &dyn Guest,
        mut probe: NewProbe,
        there: OnDuplicate,
    ) -> Result<Registration, ProbeError> {
        self.rewrite(probe.definition_mut())?;
        check::check(&mut probe)?;
        let definition = probe.definition();
        let name = (definition.group().to_owned(), definition.event_name());
        let cost = room::cost(&probe, guest.vcpus());
        self.registry.room.check(cost)?;
        let kernel = self.kernel.running.clone();
        let (found, waits_for) = self.find_place(definition)?;
        let is_entry = found.symbol.is_some() && found.offset == 0;
        let probe = Arc::new(Probe::new(self.registry.take_id(), probe, is_entry, guest.vcpus()));
        probe.set_at(found.at);
        if let (Some(kernel), None) = (&kernel, &waits_for) {
            self.learn_arguments(kernel, &probe, &found)?;
        }
        // Last, as in the kernel: another fault of the definition is reported first.
        if there == OnDuplicate::Refused && self.registry.ids(&name.0, &name.1).is_ok() {
            return Err(ProbeError::NameTaken(format!("{}/{}", name.0, name.1)));
        }
        self.registry.join(&probe)?;
        let state = match (kernel, waits_for) {
            (Some(_), Some(module)) => State::Pending(module.to_string()),
            (Some(kernel), None) => match self.place(guest, &kernel, &probe) {
                Err(error @ ProbeError::NotFinal(_)) => State::Pending(error.to_string()),
                placed => State::Placed(placed?),
            },
            (None, _) => State::Pending(NOT_BEGUN.to_owned()),
        };
        let Place { at, symbol, offset } = found;
        let addr = at.to_string().into();
        let origin = RefCell::default();
        let registered = Registered { probe, symbol, offset, addr, state, cost, origin };
        let registration = Registration::of(&registered);
        self.registry.insert(registered);
        Ok(registration)
    }

    /// Finds the place of a new probe as far as it is known, and the error that only the loading of
    /// a module can resolve.
    pub(crate) fn find_place(
        &self,
        definition: &ProbeDefinition,
    ) -> Result<(Place, Option<LookupError>), ProbeError> {
        let kernel = self.kernel.running.as_ref();
        let symbols = kernel.map(|kernel| &kernel.symbols).or(self.kernel.symbols.as_ref());
        let by_name = Place {
            at: definition.addr.unwrap_or_default(),
            symbol: definition.symbol_name.as_deref().map(Arc::from),
            offset: definition.offset,
        };
        match (kernel, definition.addr, symbols) {
            // The address is of the running kernel, whose base is not known yet (KASLR).
            (None, Some(_), _) => Ok((Place { offset: 0, ..by_name }, None)),
            (_, _, Some(symbols)) => match place::find(symbols, definition) {
                Err(ProbeError::Symbol(error @ LookupError::NoModule { .. })) => {
                    if !has_modules(symbols) {
                        return Err(NoModules::NoList.into());
                    }
                    self.kernel.can_wait_for_module()?;
                    Ok((by_name, Some(error)))
                }
                found => Ok((found?, None)),
            },
            // The kernel's own symbols are not known yet.
            (_, _, None) => Ok((by_name, None)),
        }
    }

    /// Adds a probe to the site for its address. Returns the site's address.
    pub(crate) fn place(
        &mut self,
        guest: &dyn Guest,
        kernel: &Kernel,
        probe: &Arc<Probe>,
    ) -> Result<Gva, ProbeError> {
        let at = place::after_rewritten(self.text(), kernel, probe.at());
        if let Some(optimized) = self.optimizer.covering(at) {
            self.unoptimize(guest, std::iter::once(&optimized));
        }
        let jumps = self.optimizer.installed();
        place::join(&mut self.registry, jumps, guest, kernel, at, probe)?;
        Ok(at)
    }

    /// Disables probes and removes their int3s. Continues after an error and returns the first one.
    pub(crate) fn disarm_all(&mut self, guest: &dyn Guest, ids: &[u32]) -> Result<(), ProbeError> {
        for id in ids {
            let probe = &self.registry.probes[id].probe;
            probe.enabled.store(false, Ordering::SeqCst);
            probe.set_triggers(None);
        }
        let places = self.registry.places_of(ids);
        let settled = self.reconcile(guest, &places, Wait::ForVcpus);
        settled.map_err(|unsettled| unsettled.error)
    }

    /// Removes disarmed probes from the registry.
    pub(crate) fn forget_all(&mut self, guest: &dyn Guest, ids: &[u32]) {
        self.forget(ids);
        self.advance(guest, Wait::ForVcpus);
        self.publish(guest);
    }
}
