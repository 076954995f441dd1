//! The registered probes, and their sites.

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

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
use crate::synthetic::SYNTHETIC_GROUP;

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
    /// The events that are, or were, changed in trace instances.
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
        let of_event = self.names.entry(name).or_default();
        of_event.push(probe.id);
        probe.set_event_id(of_event[0]);
        self.probes.insert(probe.id, registered);
    }

    /// Removes probes. Their sites are disarmed, or have other probes.
    pub(crate) fn forget(&mut self, ids: &[u32]) {
        let ids: HashSet<u32> = ids.iter().copied().collect();
        let gone: Vec<_> = ids.iter().filter_map(|id| self.probes.remove(id)).collect();
        for gone in gone {
            let name = (Arc::clone(&gone.probe.group), Arc::clone(&gone.probe.event));
            if let Entry::Occupied(mut of_event) = self.names.entry(name) {
                of_event.get_mut().retain(|id| !ids.contains(id));
                for left in of_event.get().iter().filter_map(|id| self.probes.get(id)) {
                    left.probe.set_event_id(of_event.get()[0]);
                }
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
