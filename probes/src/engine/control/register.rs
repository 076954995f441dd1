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
use crate::engine::control::reconcile::{ArmError, Wait};
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

/// A probe to register.
pub(crate) struct Member {
    pub(crate) probe: NewProbe,
    /// The probe is left out if it is refused; else its refusal is that of the batch.
    pub(crate) is_optional: bool,
}

/// The result of registering a batch some of whose probes may be left out.
#[derive(Debug)]
pub struct Admission {
    /// The probes that are registered, in order.
    pub registered: Vec<Registration>,
    /// The probes that were left out, each with the reason.
    pub refused: Vec<BatchError>,
}

/// The probes of a batch that the registry has taken.
#[derive(Default)]
pub(crate) struct Added {
    pub(crate) probes: Vec<AddedProbe>,
    pub(crate) refused: Vec<BatchError>,
}

/// A probe of a batch, in the registry.
pub(crate) struct AddedProbe {
    /// Index in the batch.
    index: usize,
    pub(crate) id: u32,
    is_optional: bool,
}

impl Added {
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.probes.iter().map(|probe| probe.id).collect()
    }
}

/// Selects whether a batch is armed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    /// The probes join their sites.
    Arm,
    /// The probes are only checked: no site and no slot is made.
    Check,
}

impl Control {
    /// Registers a batch in one change of the guest. Without a kernel the probes wait for it. A
    /// refused probe is left out if it is optional; else nothing is registered.
    pub(crate) fn add_all(
        &mut self,
        guest: &dyn Guest,
        members: Vec<Member>,
        there: OnDuplicate,
    ) -> Result<Admission, BatchError> {
        let mut added = self.add_each(guest, members, there, Intent::Arm)?;
        if added.probes.is_empty() {
            return Ok(Admission { registered: Vec::new(), refused: added.refused });
        }
        self.learn_orc();
        let marks = self.update_marks(guest, Wait::ForVcpus);
        while !added.probes.is_empty() {
            let mut places = marks.clone();
            places.extend(self.places_with_covering(&added));
            let Err(unarmed) = self.reconcile(guest, &places, Wait::ForVcpus) else { break };
            self.drop_unarmed(guest, &mut added, unarmed)?;
        }
        let probes = &self.registry.probes;
        let registered = added.ids().iter().map(|id| Registration::of(&probes[id])).collect();
        Ok(Admission { registered, refused: added.refused })
    }

    /// Adds probes to the registry, and arms nothing.
    pub(crate) fn add_each(
        &mut self,
        guest: &dyn Guest,
        members: Vec<Member>,
        there: OnDuplicate,
        intent: Intent,
    ) -> Result<Added, BatchError> {
        let mut added = Added::default();
        for (index, Member { probe, is_optional }) in members.into_iter().enumerate() {
            let name = probe.definition().event_name();
            match self.add(guest, probe, there, intent) {
                Ok(id) => added.probes.push(AddedProbe { index, id, is_optional }),
                Err(error) if is_optional => added.refused.push(BatchError { index, name, error }),
                Err(error) => {
                    // Nothing of the batch is armed yet, so only the registry is undone.
                    self.forget(&added.ids());
                    return Err(BatchError { index, name, error });
                }
            }
        }
        Ok(added)
    }

    /// The places of new probes, and the sites whose jmps cover them, which are taken out in the
    /// same stop.
    fn places_with_covering(&self, added: &Added) -> BTreeSet<Gva> {
        let probes = added.probes.iter().map(|probe| &self.registry.probes[&probe.id]);
        let placed: BTreeSet<Gva> = probes.filter_map(Registered::placed).collect();
        let covering = placed.iter().filter_map(|at| self.optimizer.covering(*at));
        covering.chain(placed.iter().copied()).collect()
    }

    /// Handles probes that could not be armed: removes them if they are optional, else all that was
    /// added.
    fn drop_unarmed(
        &mut self,
        guest: &dyn Guest,
        added: &mut Added,
        unarmed: ArmError,
    ) -> Result<(), BatchError> {
        let ArmError { at, error } = unarmed;
        let probes = &self.registry.probes;
        let is_at_fault =
            |added: &AddedProbe| at.is_none_or(|at| probes[&added.id].placed() == Some(at));
        let found = added.probes.iter().position(is_at_fault);
        let first = found.unwrap_or_default();
        let is_optional = found.is_some() && at.is_some() && added.probes[first].is_optional;
        let AddedProbe { index, id, .. } = added.probes[first];
        let name = probes[&id].probe.event.to_string();
        let refused = BatchError { index, name, error };
        let undone = match is_optional {
            true => vec![added.probes.remove(first).id],
            false => added.ids(),
        };
        if let Err(undo) = self.disarm_all(guest, &undone) {
            tracing::error!(%undo, "undoing a refused batch");
        }
        self.forget_all(guest, &undone);
        if !is_optional {
            return Err(refused);
        }
        added.refused.push(refused);
        Ok(())
    }

    /// Adds one probe to the registry. Returns its number.
    fn add(
        &mut self,
        guest: &dyn Guest,
        mut probe: NewProbe,
        there: OnDuplicate,
        intent: Intent,
    ) -> Result<u32, ProbeError> {
        self.rewrite(probe.definition_mut())?;
        check::check(&mut probe)?;
        let definition = probe.definition();
        let name = (definition.group().to_owned(), definition.event_name());
        let _room = Some(self.registry.room.take(room::cost(&probe, guest.vcpus()))?);
        let kernel = self.kernel.running.clone();
        let (found, waits_for) = self.find_place(definition)?;
        let is_entry = found.symbol.is_some() && found.offset == 0;
        let probe = Arc::new(Probe::new(self.registry.take_id(), probe, is_entry, guest.vcpus()));
        probe.set_at(found.at);
        if let (Some(kernel), None) = (&kernel, &waits_for) {
            self.learn_arguments(kernel, &probe, &found)?;
        }
        // Last, as in the kernel: another fault of the definition is reported first.
        let is_taken = match there {
            OnDuplicate::Refused => self.registry.has_event(&name.0, &name.1),
            OnDuplicate::Joined => self.registry.synthetic_of(&name.0, &name.1).is_some(),
        };
        if is_taken {
            return Err(ProbeError::NameTaken(format!("{}/{}", name.0, name.1)));
        }
        self.registry.join(&probe, self.symbols())?;
        let state = match (kernel, waits_for) {
            (Some(_), Some(module)) => State::Pending(module.to_string()),
            (Some(kernel), None) => match self.place(guest, &kernel, &probe, intent) {
                Err(error @ ProbeError::NotFinal(_)) => State::Pending(error.to_string()),
                placed => State::Placed(placed?),
            },
            (None, _) => State::Pending(NOT_BEGUN.to_owned()),
        };
        let id = probe.id;
        let Place { at, symbol, offset } = found;
        let addr = at.to_string().into();
        let origin = RefCell::default();
        self.registry.insert(Registered { probe, symbol, offset, addr, state, _room, origin });
        Ok(id)
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

    /// Adds a probe to the site for its address, or only checks that it could be. Returns the
    /// site's address. A jmp that covers it stays: the caller takes it out
    /// ([`Self::reconcile`]).
    pub(crate) fn place(
        &mut self,
        guest: &dyn Guest,
        kernel: &Kernel,
        probe: &Arc<Probe>,
        intent: Intent,
    ) -> Result<Gva, ProbeError> {
        let at = place::after_rewritten(self.text(), kernel, probe.at());
        let Self { registry, optimizer, .. } = self;
        let site = place::vet(&registry.sites, optimizer.installed(), guest, kernel, at, probe)?;
        match intent {
            Intent::Arm => place::join(registry, guest, at, site, probe)?,
            Intent::Check => {}
        }
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
