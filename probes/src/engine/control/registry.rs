//! The registered probes, and their sites.

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use exoprobe_guest::Gva;

use crate::budget::{Budget, Share};
use crate::definition::ProbeKind;
use crate::engine::control::instances::InInstances;
use crate::engine::control::synthetic::Synthetic;
use crate::engine::patch::slots::Slots;
use crate::engine::probe::registered::Probe;
use crate::engine::probe::site::InternalBreakpoint;
use crate::engine::probe::site::{Site, Sites};
use crate::events::Origin;
use crate::synthetic::{SYNTHETIC_GROUP, SyntheticDefinition};
use crate::trigger::{
    EventSwitch, FoundVariable, HistChange, Live, SwitchSubject, SwitchedEvents, Triggers,
    VariableError, VariableName, Variables, switched_events,
};

/// The registered probes of one engine.
pub(crate) struct Registry {
    pub(crate) probes: BTreeMap<u32, Registered>,
    /// Probes of no place: their hits are samples of the vCPUs.
    pub(crate) samplers: BTreeMap<u32, Registered>,
    /// Synthetic events by name.
    pub(crate) synthetics: BTreeMap<Arc<str>, Arc<Synthetic>>,
    pub(crate) sites: Sites,
    /// The probes of each event, in order of registration.
    pub(crate) names: HashMap<(Arc<str>, Arc<str>), Vec<u32>>,
    /// The events that are, or were, enabled or filtered in trace instances.
    pub(crate) in_instances: InInstances,
    pub(crate) slots: Slots,
    /// The global switch (kprobes/enabled).
    pub(crate) switched_on: bool,
    /// Return addresses that cannot be watched.
    pub(crate) unwatchable: HashSet<Gva>,
    /// The memory that the probes may take.
    pub(crate) room: Budget,
    next_id: u32,
}

pub(crate) const NOT_BEGUN: &str = "the guest's kernel has not begun yet";

impl SwitchedEvents for Registry {
    fn is_due(&self, EventSwitch { subject, on, group, event }: &EventSwitch) -> bool {
        if let Some(found) = self.synthetic_of(group, event) {
            return *subject == SwitchSubject::Histograms || found.is_enabled() != *on;
        }
        let Ok(first) = self.first(group, event) else { return false };
        *subject == SwitchSubject::Histograms || first.probe.records_events() != *on
    }

    fn switch(&self, EventSwitch { subject, on, group, event }: &EventSwitch) {
        let ids = self.ids(group, event).unwrap_or_default();
        match (subject, self.synthetic_of(group, event)) {
            (SwitchSubject::Event, Some(synthetic)) => {
                synthetic.enabled.store(*on, Ordering::SeqCst);
            }
            (SwitchSubject::Event, None) => {
                for id in ids {
                    self.probes[id].probe.enabled.store(*on, Ordering::SeqCst);
                }
            }
            (SwitchSubject::Histograms, synthetic) => {
                let change = if *on { HistChange::Continue } else { HistChange::Pause };
                let triggers = match synthetic {
                    Some(synthetic) => Triggers::list_of(synthetic.triggers()),
                    None => self.triggers_of(ids),
                };
                triggers.iter().for_each(|live| live.change(change));
            }
        }
    }
}

impl Variables for Registry {
    fn find(&self, name: &VariableName) -> Result<FoundVariable, VariableError> {
        let mut found: Option<FoundVariable> = None;
        for (of_event, triggers) in self.triggered() {
            let of = name.event.as_ref();
            if of.is_some_and(|(group, event)| !of_event.is(group, event)) {
                continue;
            }
            let tables = triggers.list().iter().filter_map(|live| live.table());
            for other in tables.filter_map(|table| table.variable(&name.name)) {
                if found.as_ref().is_some_and(|found| !found.is_of_same(&other)) {
                    return Err(VariableError::Ambiguous(name.name.clone()));
                }
                found = Some(other);
            }
        }
        found.ok_or_else(|| VariableError::Unknown(name.clone()))
    }

    fn is_event(&self, group: &str, event: &str) -> bool {
        self.has_event(group, event)
    }

    fn synthetic(&self, name: &str) -> Option<Arc<SyntheticDefinition>> {
        self.synthetic_named(name).map(|found| Arc::clone(&found.definition))
    }
}

/// An event that has triggers.
struct TriggeredEvent<'a> {
    group: &'a Arc<str>,
    event: &'a Arc<str>,
    /// Of a probe, its number.
    probe: Option<u32>,
}

impl TriggeredEvent<'_> {
    fn is(&self, group: &str, event: &str) -> bool {
        (&**self.group, &**self.event) == (group, event)
    }
}

fn refer_to(triggers: &Triggers, live: &Live) -> bool {
    triggers.list().iter().any(|other| other.refers_to(live))
}

/// A probe and its place.
pub(crate) struct Registered {
    pub(crate) probe: Arc<Probe>,
    pub(crate) symbol: Option<Arc<str>>,
    pub(crate) offset: u64,
    /// The address as text, for its events.
    pub(crate) addr: Arc<str>,
    pub(crate) state: State,
    /// The most memory that it may take; a sampler has none.
    pub(crate) _room: Option<Share>,
    /// The common part of its events, as of the latest events.
    pub(crate) origin: RefCell<Option<Arc<Origin>>>,
}

/// The state of a probe.
pub(crate) enum State {
    /// Waits for its text; with the reason.
    Pending(String),
    /// Placed at the site with this address.
    Placed(Gva),
    /// Its text has gone.
    Gone,
}

impl Registered {
    pub(crate) fn placed(&self) -> Option<Gva> {
        match self.state {
            State::Placed(at) => Some(at),
            State::Pending(_) | State::Gone => None,
        }
    }
}

impl Registry {
    /// An empty registry whose probes may take `memory` bytes together.
    pub(crate) fn new(memory: usize) -> Self {
        Self {
            probes: BTreeMap::new(),
            samplers: BTreeMap::new(),
            synthetics: BTreeMap::new(),
            sites: Sites::default(),
            names: HashMap::new(),
            in_instances: InInstances::default(),
            slots: Slots::default(),
            switched_on: true,
            unwatchable: HashSet::new(),
            room: Budget::new(memory),
            next_id: 1,
        }
    }

    pub(crate) fn take_id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// The probe or sampler of a record.
    pub(crate) fn recorded(&self, id: u32) -> Option<&Registered> {
        self.probes.get(&id).or_else(|| self.samplers.get(&id))
    }

    /// The number of the next probe.
    pub(crate) fn next_id(&self) -> u32 {
        self.next_id
    }

    /// Removes probes that were only checked, and have no site. `next_id` is free again.
    pub(crate) fn forget_rehearsed(&mut self, ids: &[u32], next_id: u32) {
        self.forget(ids);
        self.next_id = next_id;
    }

    pub(crate) fn is_of_kind(&self, id: u32, kind: Option<ProbeKind>) -> bool {
        let found = self.probes.get(&id).map(|registered| registered.probe.definition.kind);
        found.is_some_and(|found| kind.is_none_or(|kind| kind == found))
    }

    pub(crate) fn insert(&mut self, registered: Registered) {
        let probe = &registered.probe;
        let name = (Arc::clone(&probe.group), Arc::clone(&probe.event));
        self.names.entry(name).or_default().push(probe.id);
        self.probes.insert(probe.id, registered);
    }

    /// Removes probes. Their sites are disarmed, or have other probes.
    pub(crate) fn forget(&mut self, ids: &[u32]) {
        let ids: HashSet<u32> = ids.iter().copied().collect();
        for gone in ids.iter().filter_map(|id| self.probes.remove(id)) {
            let name = (Arc::clone(&gone.probe.group), Arc::clone(&gone.probe.event));
            if let Entry::Occupied(mut of_event) = self.names.entry(name) {
                of_event.get_mut().retain(|id| !ids.contains(id));
                if of_event.get().is_empty() {
                    let ((group, event), _) = of_event.remove_entry();
                    self.in_instances.forget(&group, &event);
                }
            }
        }
        for site in self.sites.values_mut() {
            if !site.concerned().any(|probe| ids.contains(&probe.id)) {
                continue;
            }
            let site = Arc::make_mut(site);
            site.probes.retain(|probe| !ids.contains(&probe.id));
            site.returning.retain(|probe| !ids.contains(&probe.id));
            if !site.has_post_handler() {
                site.step = None;
            }
        }
        self.sweep();
    }

    /// Sites that concern some of these probes: their own, and those that their calls return to.
    pub(crate) fn places_of(&self, ids: &[u32]) -> BTreeSet<Gva> {
        let ids: HashSet<u32> = ids.iter().copied().collect();
        let concerns = |site: &&Arc<Site>| site.concerned().any(|probe| ids.contains(&probe.id));
        self.sites.values().filter(concerns).map(|site| site.at).collect()
    }

    /// Drops sites that have no use.
    pub(crate) fn sweep(&mut self) {
        self.sites.retain(|_, site| site.armed || !site.is_unused());
    }

    pub(crate) fn change(&mut self, at: Gva, change: impl FnOnce(&mut Site)) {
        if let Some(site) = self.sites.get_mut(&at) {
            change(Arc::make_mut(site));
        }
    }

    /// Returns true if the engine's breakpoint of this mark is in the guest's text.
    pub(crate) fn has_armed(&self, mark: InternalBreakpoint) -> bool {
        let is_there = |site: &Arc<Site>| {
            !site.marks.is_empty() && site.marks.contains(&mark) && site.armed && !site.clobbered
        };
        self.sites.values().any(is_there)
    }

    /// Returns true if a site needs an int3.
    pub(crate) fn is_wanted(&self, site: &Site) -> bool {
        let probed = site.probes.iter().any(|probe| probe.wants_breakpoint());
        let returns = site.returning.iter().any(|probe| probe.wants_breakpoint());
        !site.marks.is_empty() || (self.switched_on && (probed || returns))
    }

    /// The probes and synthetic events that have triggers, with these. It costs a load for each
    /// that has none.
    fn triggered(&self) -> impl Iterator<Item = (TriggeredEvent<'_>, Arc<Triggers>)> {
        let probes = self.probes.values().map(|registered| &*registered.probe);
        let triggered = probes.filter(|probe| probe.records_all());
        let probes = triggered.filter_map(|probe| {
            let Probe { id, group, event, .. } = probe;
            Some((TriggeredEvent { group, event, probe: Some(*id) }, probe.triggers()?))
        });
        let synthetics = self.synthetics.values().filter_map(|found| {
            let Synthetic { group, event, .. } = &**found;
            Some((TriggeredEvent { group, event, probe: None }, found.triggers()?))
        });
        probes.chain(synthetics)
    }

    /// The synthetic event of a name.
    pub(crate) fn synthetic_named(&self, name: &str) -> Option<&Arc<Synthetic>> {
        self.synthetics.get(name)
    }

    /// The synthetic event of a name, in the group of those.
    pub(crate) fn synthetic_of(&self, group: &str, event: &str) -> Option<&Arc<Synthetic>> {
        self.synthetic_named(event).filter(|_| group == SYNTHETIC_GROUP)
    }

    /// Returns true if there is an event of probes or a synthetic one.
    pub(crate) fn has_event(&self, group: &str, event: &str) -> bool {
        self.synthetic_of(group, event).is_some() || self.ids(group, event).is_ok()
    }

    /// Names of the synthetic events that triggers of other events switch.
    pub(crate) fn switched_synthetics(&self) -> HashSet<String> {
        let mut switched = HashSet::new();
        for (of_event, triggers) in self.triggered() {
            let all = triggers.list().iter().filter_map(|live| live.switch());
            let others = all.filter(|to| !of_event.is(&to.group, &to.event));
            let synthetic = others.filter(|to| to.group == SYNTHETIC_GROUP);
            switched.extend(synthetic.map(|to| to.event.clone()));
        }
        switched
    }

    /// Names of the synthetic events that triggers make, and of those that others switch.
    pub(crate) fn used_synthetics(&self) -> HashSet<String> {
        let mut used = self.switched_synthetics();
        for (_, triggers) in self.triggered() {
            used.extend(triggers.list().iter().flat_map(|live| live.makes()).map(str::to_owned));
        }
        used
    }

    /// The triggers of the event that some probes are of.
    pub(crate) fn triggers_of(&self, ids: &[u32]) -> Vec<Arc<Live>> {
        Triggers::list_of(ids.first().and_then(|id| self.probes[id].probe.triggers()))
    }

    /// A histogram of this name.
    pub(crate) fn histogram_named(&self, name: &str) -> Option<Arc<Live>> {
        let is_it = |live: &&Arc<Live>| live.name() == Some(name);
        self.triggered().find_map(|(_, triggers)| triggers.list().iter().find(is_it).cloned())
    }

    /// Returns true if a histogram has a handler that takes snapshots.
    pub(crate) fn takes_snapshots(&self) -> bool {
        let takes = |live: &Arc<Live>| live.snapshot_handlers() > 0;
        self.triggered().any(|(_, triggers)| triggers.list().iter().any(takes))
    }

    /// Returns true if a histogram refers to variables of this trigger's.
    pub(crate) fn is_referenced(&self, live: &Live) -> bool {
        self.triggered().any(|(_, triggers)| refer_to(&triggers, live))
    }

    /// Checks that no histogram is left that refers to variables of events that go with some
    /// probes.
    ///
    /// # Errors
    /// [`VariableError::Referenced`].
    pub(crate) fn check_unreferenced(&self, ids: &[u32]) -> Result<(), VariableError> {
        let going: HashSet<u32> = ids.iter().copied().collect();
        let (mut events, mut leaving) = (HashSet::new(), Vec::new());
        for probe in ids.iter().filter_map(|id| self.probes.get(id)).map(|found| &found.probe) {
            let Some(triggers) = probe.triggers() else { continue };
            let of_event = self.ids(&probe.group, &probe.event).unwrap_or_default();
            // An event keeps its triggers as long as it has a probe.
            if events.insert((&probe.group, &probe.event))
                && of_event.iter().all(|id| going.contains(id))
            {
                let named = triggers.list().iter().filter(|live| live.has_variables());
                leaving.extend(named.map(|live| (probe, Arc::clone(live))));
            }
        }
        if leaving.is_empty() {
            return Ok(());
        }
        let is_left =
            |other: &TriggeredEvent<'_>| other.probe.is_none_or(|id| !going.contains(&id));
        let mut left = self.triggered().filter(|(other, _)| is_left(other));
        let found = left
            .find_map(|(_, triggers)| leaving.iter().find(|(_, live)| refer_to(&triggers, live)));
        match found {
            Some((probe, _)) => Err(VariableError::Referenced(probe.event.to_string())),
            None => Ok(()),
        }
    }

    /// Returns true if a trigger of another event switches this one.
    pub(crate) fn is_switched(&self, group: &str, event: &str) -> bool {
        let is_it = |to: &EventSwitch| (&*to.group, &*to.event) == (group, event);
        self.triggered().any(|(of_event, triggers)| {
            let mut switches = triggers.list().iter().filter_map(|live| live.switch());
            !of_event.is(group, event) && switches.any(is_it)
        })
    }

    /// The events that triggers of some probes switch.
    pub(crate) fn switched_by(&self, ids: &[u32]) -> BTreeSet<(String, String)> {
        let triggers = ids.iter().filter_map(|id| self.probes.get(id)?.probe.triggers());
        triggers.flat_map(|all| switched_events(all.list()).collect::<Vec<_>>()).collect()
    }

    /// The events with triggers that switch other ones.
    pub(crate) fn events_with_switches(&self) -> BTreeSet<(Arc<str>, Arc<str>)> {
        let switch =
            |triggers: &Triggers| triggers.list().iter().any(|live| live.switch().is_some());
        let found = self.triggered().filter(|(_, triggers)| switch(triggers));
        found.map(|(of, _)| (Arc::clone(of.group), Arc::clone(of.event))).collect()
    }

    /// Return probes; their calls end with a task.
    pub(crate) fn return_probes(&self) -> impl Iterator<Item = &Arc<Probe>> {
        self.probes.values().map(|r| &r.probe).filter(|probe| probe.returns().is_some())
    }

    /// Marks sites as gone: their text and their int3s no longer exist.
    pub(crate) fn lose(&mut self, lost: &[Gva]) {
        let lost: HashSet<Gva> =
            lost.iter().copied().filter(|at| self.sites.remove(at).is_some()).collect();
        if lost.is_empty() {
            return;
        }
        let is_there = |r: &&mut Registered| r.placed().is_some_and(|at| lost.contains(&at));
        for registered in self.probes.values_mut().filter(is_there) {
            registered.state = State::Gone;
        }
    }

    /// Probes of those of these places that need an int3 and have none, and all other probes of
    /// their events.
    pub(crate) fn unarmed(&self, places: &BTreeSet<Gva>) -> HashSet<u32> {
        let sites = places.iter().filter_map(|at| self.sites.get(at));
        let unarmed = sites.filter(|site| !site.armed && self.is_wanted(site));
        let events = unarmed.flat_map(|site| site.concerned()).map(|probe| {
            let of_event = self.ids(&probe.group, &probe.event);
            of_event.unwrap_or_default().iter().copied()
        });
        events.flatten().collect()
    }

    /// Drops all places: the guest is booted again, and all probes wait.
    pub(crate) fn reset(&mut self) {
        self.sites.clear();
        self.slots = Slots::default();
        self.unwatchable.clear();
        for registered in self.probes.values_mut() {
            registered.state = State::Pending(NOT_BEGUN.to_owned());
        }
    }

    /// Drops a mark that is no longer needed. Returns its address.
    pub(crate) fn reached(&mut self, mark: InternalBreakpoint) -> Option<Gva> {
        let site = self.sites.values_mut().find(|site| site.marks.contains(&mark))?;
        Arc::make_mut(site).marks.retain(|other| *other != mark);
        Some(site.at)
    }
}
