//! Registration, removal, arming.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use exoprobe_vmm::Gva;

use super::hit::{Probe, Site, Way};
use super::kernel::Kernel;
use super::{Engine, Kprobe, Registered, Registry, text};
use crate::definition::{ARG_NAME_MAX, ARGS_MAX, Flag, NAME_MAX, ProbeDefinition, is_event_name};
use crate::error::{BatchError, ProbeError};
use crate::insn::{self, Displaced, SlotKind};

/// Longest function that is decoded to find instruction boundaries, in bytes.
const FUNCTION_MAX: u64 = 1 << 20;

/// A place that was found fit for a probe.
struct Place {
    at: Gva,
    symbol: Option<Arc<str>>,
    offset: u64,
}

impl Engine {
    pub(super) fn add_all(
        &self,
        registry: &mut Registry,
        kernel: &Kernel,
        probes: Vec<Kprobe>,
    ) -> Result<Vec<u32>, BatchError> {
        let mut added = Vec::with_capacity(probes.len());
        for (index, probe) in probes.into_iter().enumerate() {
            let name = probe.definition.event_name();
            match self.add(registry, kernel, probe) {
                Ok(id) => added.push(id),
                Err(error) => {
                    // Nothing of the batch is armed yet, so that there is only the books to undo.
                    for id in added {
                        registry.forget(id);
                    }
                    return Err(BatchError { index, name, error });
                }
            }
        }
        let places: BTreeSet<Gva> = added.iter().map(|id| registry.probes[id].at).collect();
        if let Err(refused) = self.settle(registry, &places) {
            let at_fault = |id: &u32| refused.at.is_none_or(|at| registry.probes[id].at == at);
            let index = added.iter().position(at_fault).unwrap_or_default();
            let name = registry.probes[&added[index]].probe.event.to_string();
            if let Err(undo) = self.remove_all(registry, &added) {
                tracing::error!(%undo, "undoing a refused batch");
            }
            return Err(BatchError { index, name, error: refused.error });
        }
        Ok(added)
    }

    /// Puts one probe into the books.
    fn add(
        &self,
        registry: &mut Registry,
        kernel: &Kernel,
        probe: Kprobe,
    ) -> Result<u32, ProbeError> {
        let Kprobe { definition, pre_handler, post_handler } = probe;
        check_definition(&definition)?;
        let name: (Arc<str>, Arc<str>) =
            (definition.group().into(), definition.event_name().into());
        if registry.names.contains_key(&name) {
            return Err(ProbeError::NameTaken(format!("{}/{}", name.0, name.1)));
        }
        let place = find_place(registry, kernel, &definition)?;
        let mut site = match registry.sites.get(&place.at) {
            Some(site) => site.as_ref().clone(),
            None => self.new_site(registry, kernel, place.at)?,
        };
        if post_handler.is_some() {
            site.insn.supports_post()?;
            if site.insn.emulation().is_none() {
                let (hidden, insn) = (self.guest.hidden(), Arc::clone(&site.insn));
                site.step = Some(registry.slots.get(hidden, &insn, SlotKind::Stepped)?);
            }
        }
        let id = registry.next_id;
        registry.next_id += 1;
        let enabled = !definition.flags.contains(&Flag::Disabled);
        let probe = Arc::new(Probe {
            id,
            definition,
            group: Arc::clone(&name.0),
            event: Arc::clone(&name.1),
            pre_handler,
            post_handler,
            enabled: AtomicBool::new(enabled),
            hits: AtomicU64::new(0),
            recorded: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        site.probes.push(Arc::clone(&probe));
        registry.sites.insert(place.at, Arc::new(site));
        registry.names.insert(name, id);
        let addr = place.at.to_string().into();
        let Place { at, symbol, offset } = place;
        registry.probes.insert(id, Registered { probe, at, symbol, offset, addr });
        Ok(id)
    }

    fn new_site(
        &self,
        registry: &mut Registry,
        kernel: &Kernel,
        at: Gva,
    ) -> Result<Site, ProbeError> {
        if let Some(reserved) = kernel.reserved(at) {
            return Err(ProbeError::Reserved { at, reserved });
        }
        let insn = Arc::new(check_instruction(registry, kernel, at)?);
        let found = kernel.memory().translate(at).map_err(|_| ProbeError::NotText(at))?;
        if !found.executable {
            return Err(ProbeError::NotText(at));
        }
        self.guest.ram().load_byte(found.gpa)?;
        let way = match insn.emulation() {
            Some(_) => Way::Emulate,
            None => Way::Slot(registry.slots.get(self.guest.hidden(), &insn, SlotKind::Boosted)?),
        };
        let (gpa, probes) = (found.gpa, Vec::new());
        Ok(Site { at, gpa, insn, way, step: None, probes, armed: false, clobbered: false })
    }

    /// Makes the int3s at `places` agree with the probes there, in the order that loses no hit and
    /// takes no int3 of the guest's own: table, int3s, and for those that go byte, wait, table.
    /// Everything possible is done; the first error is given.
    pub(super) fn settle(
        &self,
        registry: &mut Registry,
        places: &BTreeSet<Gva>,
    ) -> Result<(), Unsettled> {
        let (mut arming, mut disarming) = (Vec::new(), Vec::new());
        for at in places {
            let site = &registry.sites[at];
            match (site.is_wanted(), site.armed) {
                (true, false) => arming.push(*at),
                (false, true) => disarming.push(*at),
                _ => {}
            }
        }
        for at in &arming {
            registry.change(*at, |site| (site.armed, site.clobbered) = (true, false));
        }
        self.publish(registry);
        let mut first = Ok(());
        for at in arming {
            let site = &registry.sites[&at];
            let armed = text::arm(self.guest.ram(), site.gpa, at, site.insn.original());
            first = first.and(registry.note(at, false, armed));
        }
        for at in &disarming {
            let site = &registry.sites[at];
            let disarmed = text::disarm(self.guest.ram(), site.gpa, *at, site.insn.original());
            first = first.and(registry.note(*at, true, disarmed));
        }
        // Whatever was on its way to the hit path finds the table that still has the sites.
        let synced = self.guest.sync_vcpus();
        for at in disarming {
            registry.change(at, |site| site.armed = false);
        }
        self.publish(registry);
        self.drain_locked(registry);
        first.and(synced.map_err(|error| Unsettled { at: None, error: error.into() }))
    }

    pub(super) fn set_enabled(
        &self,
        group: &str,
        event: &str,
        enabled: bool,
    ) -> Result<(), ProbeError> {
        let mut registry = self.lock();
        let id = registry.id(group, event)?;
        let registered = &registry.probes[&id];
        let (probe, at) = (Arc::clone(&registered.probe), registered.at);
        if probe.enabled.swap(enabled, Ordering::SeqCst) == enabled {
            return Ok(());
        }
        let settled = self.settle(&mut registry, &BTreeSet::from([at]));
        if enabled && settled.is_err() {
            probe.enabled.store(false, Ordering::SeqCst);
        }
        settled.map_err(|unsettled| unsettled.error)
    }

    /// Disarms and removes; the first error is given after all are gone.
    pub(super) fn remove_all(
        &self,
        registry: &mut Registry,
        ids: &[u32],
    ) -> Result<(), ProbeError> {
        let mut places = BTreeSet::new();
        for id in ids {
            let registered = &registry.probes[id];
            registered.probe.enabled.store(false, Ordering::SeqCst);
            places.insert(registered.at);
        }
        let settled = self.settle(registry, &places);
        for id in ids {
            registry.forget(*id);
        }
        self.publish(registry);
        settled.map_err(|unsettled| unsettled.error)
    }
}

/// A site that could not be armed or disarmed.
pub(super) struct Unsettled {
    /// Which; none when a vCPU did not answer.
    at: Option<Gva>,
    error: ProbeError,
}

impl Registry {
    fn change(&mut self, at: Gva, change: impl FnOnce(&mut Site)) {
        let mut next = self.sites[&at].as_ref().clone();
        change(&mut next);
        self.sites.insert(at, Arc::new(next));
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

    /// Takes a probe, whose site is disarmed or has others, out of the books.
    fn forget(&mut self, id: u32) {
        let Some(gone) = self.probes.remove(&id) else { return };
        self.names.remove(&(Arc::clone(&gone.probe.group), Arc::clone(&gone.probe.event)));
        let Some(site) = self.sites.remove(&gone.at) else { return };
        let mut rest = site.as_ref().clone();
        rest.probes.retain(|probe| probe.id != id);
        if rest.probes.iter().all(|probe| probe.post_handler.is_none()) {
            rest.step = None;
        }
        if !rest.probes.is_empty() {
            self.sites.insert(gone.at, Arc::new(rest));
        }
    }

    /// Puts the original bytes of armed sites back into `bytes`, which were read at `start`.
    fn without_breakpoints(&self, start: Gva, bytes: &mut [u8]) {
        for (offset, byte) in (0u64..).zip(bytes.iter_mut()) {
            if *byte == text::INT3
                && let Some(site) = self.sites.get(&start.wrapping_add(offset))
                && site.armed
            {
                *byte = site.insn.original()[0];
            }
        }
    }
}

impl Site {
    fn is_wanted(&self) -> bool {
        self.probes.iter().any(|probe| probe.is_enabled())
    }
}

fn check_definition(definition: &ProbeDefinition) -> Result<(), ProbeError> {
    match (&definition.symbol_name, definition.addr) {
        (Some(_), Some(_)) => return Err(ProbeError::Place("both are given")),
        (None, None) => return Err(ProbeError::Place("neither is given")),
        (None, Some(_)) if definition.offset != 0 => {
            return Err(ProbeError::Place("an offset goes with a symbol; add it to the address"));
        }
        _ => {}
    }
    let bad = |what, name: &str| {
        let name = name.chars().take(NAME_MAX + 1).collect();
        Err(ProbeError::BadName { what, name })
    };
    for (what, name) in [("group", &definition.group), ("event", &definition.event)] {
        if let Some(name) = name
            && !is_event_name(name)
        {
            return bad(what, name);
        }
    }
    if definition.args.len() > ARGS_MAX {
        return Err(ProbeError::TooManyArgs(definition.args.len()));
    }
    let mut names = HashSet::new();
    for index in 0..definition.args.len() {
        let name = definition.arg_name(index);
        if name.len() > ARG_NAME_MAX || !is_event_name(&name) {
            return bad("argument", &name);
        }
        if !names.insert(name.clone()) {
            return Err(ProbeError::DuplicateArg(name));
        }
    }
    Ok(())
}

fn find_place(
    registry: &Registry,
    kernel: &Kernel,
    definition: &ProbeDefinition,
) -> Result<Place, ProbeError> {
    let at = match (&definition.symbol_name, definition.addr) {
        (Some(name), _) => {
            let symbol = kernel.symbols.lookup_function(name)?;
            let bounds = kernel.symbols.function_at(symbol.address);
            let size = bounds.map_or(symbol.size, |b| b.end.0 - symbol.address.0);
            if definition.offset >= size.max(1) {
                let (symbol, offset) = (name.clone(), definition.offset);
                return Err(ProbeError::OffsetBeyond { symbol, offset, size });
            }
            symbol.address.wrapping_add(definition.offset)
        }
        (None, addr) => addr.unwrap_or_default(),
    };
    if !kernel.symbols.text_contains(at) && !registry.sites.contains_key(&at) {
        return Err(ProbeError::NotText(at));
    }
    let named = definition.symbol_name.as_ref().map(|name| (name.as_str(), definition.offset));
    let found = kernel.symbols.resolve(at).map(|found| (found.name, found.offset));
    let (symbol, offset) = named.or(found).unzip();
    Ok(Place { at, symbol: symbol.map(Arc::from), offset: offset.unwrap_or_default() })
}

/// Reads the function around `at`, checks that an instruction starts there, and analyzes it.
fn check_instruction(
    registry: &Registry,
    kernel: &Kernel,
    at: Gva,
) -> Result<Displaced, ProbeError> {
    let bounds = kernel.symbols.function_at(at).ok_or(ProbeError::NotText(at))?;
    let len = (bounds.end.0 - bounds.start.0).min(FUNCTION_MAX);
    let mut bytes = vec![0; usize::try_from(len).expect("at most 1 MiB")];
    kernel.memory().read(bounds.start, &mut bytes)?;
    registry.without_breakpoints(bounds.start, &mut bytes);
    insn::check_boundary(bounds.start, &bytes, at).map_err(ProbeError::Boundary)?;
    let skip = usize::try_from(at.0 - bounds.start.0).expect("inside the function");
    Ok(insn::analyze(&bytes[skip..], at)?)
}
