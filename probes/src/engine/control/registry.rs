//! Everything that registration changes, behind one lock.

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use exoprobe_guest::{Gva, HiddenMemory, KernelEntry};
use exoprobe_introspect::{Btf, SymbolTable, VirtualReadError};

use crate::definition::{Action, ProbeKind};
use crate::engine::control::room::Room;
use crate::engine::kernel::modules::Modules;
use crate::engine::kernel::running::Kernel;
use crate::engine::optimize::optimizer::Optimizer;
use crate::engine::patch::slots::Slots;
use crate::engine::patch::text;
use crate::engine::probe::registered::Probe;
use crate::engine::probe::site::Site;
use crate::events::Origin;
use crate::status::{ProbeState, ProbeStatus, StatusFlag};

/// Longest function that is decoded, in bytes.
const FUNCTION_MAX: u64 = 1 << 20;

/// The books of one engine.
pub(crate) struct Registry {
    pub(crate) probes: BTreeMap<u32, Registered>,
    pub(crate) sites: HashMap<Gva, Arc<Site>>,
    /// The probes of each event, in order of registration.
    pub(crate) names: HashMap<(Arc<str>, Arc<str>), Vec<u32>>,
    pub(crate) slots: Slots,
    pub(crate) optimizer: Optimizer,
    pub(crate) kernel: Option<Arc<Kernel>>,
    /// The global switch (kprobes/enabled).
    pub(crate) switched_on: bool,
    /// How the kernel began, where the machine told.
    pub(crate) entry: Option<KernelEntry>,
    /// The running kernel's own symbols, where none were given.
    pub(crate) own_symbols: Option<SymbolTable>,
    /// Its own types, once they were asked for.
    pub(crate) own_types: Option<Arc<Btf>>,
    /// The types that were found near its file are another kernel's, which was logged.
    pub(crate) found_foreign: bool,
    pub(crate) modules: Modules,
    /// Where calls return to that cannot be watched.
    pub(crate) unwatchable: HashSet<Gva>,
    /// The memory that the probes may take.
    pub(crate) room: Room,
    next_id: u32,
}

/// A probe and where it ended up.
pub(crate) struct Registered {
    pub(crate) probe: Arc<Probe>,
    pub(crate) symbol: Option<Arc<str>>,
    pub(crate) offset: u64,
    /// The address as text, as its events show it.
    pub(crate) addr: Arc<str>,
    pub(crate) state: State,
    /// The memory that it may take, in bytes.
    pub(crate) cost: usize,
    /// What its events have in common, as of the last ones.
    pub(crate) origin: RefCell<Option<Arc<Origin>>>,
}

/// What has become of a probe.
pub(crate) enum State {
    /// Waits for its text, and why.
    Pending(String),
    /// It has its site, which is there.
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
    /// The books of no probe; all together may take `memory` bytes.
    pub(crate) fn new(memory: usize) -> Self {
        Self {
            probes: BTreeMap::new(),
            sites: HashMap::new(),
            names: HashMap::new(),
            slots: Slots::default(),
            optimizer: Optimizer::new(),
            kernel: None,
            switched_on: true,
            entry: None,
            own_symbols: None,
            own_types: None,
            found_foreign: false,
            modules: Modules::default(),
            unwatchable: HashSet::new(),
            room: Room::new(memory),
            next_id: 1,
        }
    }

    pub(crate) fn take_id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id - 1
    }

    pub(crate) fn is_of_kind(&self, id: u32, kind: Option<ProbeKind>) -> bool {
        let found = self.probes.get(&id).map(|registered| registered.probe.definition.kind);
        found.is_some_and(|found| kind.is_none_or(|kind| kind == found))
    }

    pub(crate) fn insert(&mut self, registered: Registered) {
        let probe = &registered.probe;
        let name = (Arc::clone(&probe.group), Arc::clone(&probe.event));
        self.room.take(registered.cost);
        self.names.entry(name).or_default().push(probe.id);
        self.probes.insert(probe.id, registered);
    }

    /// Takes probes, whose sites are disarmed or have others, out of the books.
    pub(crate) fn forget(&mut self, ids: &[u32]) {
        self.optimizer.forget(ids);
        let ids: HashSet<u32> = ids.iter().copied().collect();
        for gone in ids.iter().filter_map(|id| self.probes.remove(id)) {
            self.room.give_back(gone.cost);
            let name = (Arc::clone(&gone.probe.group), Arc::clone(&gone.probe.event));
            if let Entry::Occupied(mut of_event) = self.names.entry(name) {
                of_event.get_mut().retain(|id| !ids.contains(id));
                if of_event.get().is_empty() {
                    of_event.remove();
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
            if site.probes.iter().all(|probe| probe.post_handler().is_none()) {
                site.step = None;
            }
        }
        self.sweep();
    }

    /// Sites that have something to do with some of these probes: their own, and those that their calls return
    /// to.
    pub(crate) fn places_of(&self, ids: &[u32]) -> BTreeSet<Gva> {
        let ids: HashSet<u32> = ids.iter().copied().collect();
        let concerns = |site: &&Arc<Site>| site.concerned().any(|probe| ids.contains(&probe.id));
        self.sites.values().filter(concerns).map(|site| site.at).collect()
    }

    /// Drops sites that nobody needs.
    pub(crate) fn sweep(&mut self) {
        self.sites.retain(|_, site| site.armed || !site.is_unused());
    }

    pub(crate) fn change(&mut self, at: Gva, change: impl FnOnce(&mut Site)) {
        if let Some(site) = self.sites.get_mut(&at) {
            change(Arc::make_mut(site));
        }
    }

    /// Is an int3 to be at a site?
    pub(crate) fn is_wanted(&self, site: &Site) -> bool {
        let probed = site.probes.iter().any(|probe| probe.is_enabled());
        let returns = site.returning.iter().any(|probe| probe.is_enabled());
        !site.marks.is_empty() || (self.switched_on && (probed || returns))
    }

    /// The guest's own text from `start` to `end`, a function or a part of it, at most [`FUNCTION_MAX`] bytes.
    ///
    /// # Errors
    /// [`VirtualReadError`] where nothing is mapped.
    pub(crate) fn original_text(
        &self,
        kernel: &Kernel,
        start: Gva,
        end: Gva,
    ) -> Result<Vec<u8>, VirtualReadError> {
        let len = end.0.wrapping_sub(start.0).min(FUNCTION_MAX);
        let mut bytes = vec![0; usize::try_from(len).expect("at most 1 MiB")];
        kernel.memory().read(start, &mut bytes)?;
        self.without_breakpoints(start, &mut bytes);
        Ok(bytes)
    }

    /// Puts the original bytes of armed sites back into `bytes`, which were read at `start`.
    pub(crate) fn without_breakpoints(&self, start: Gva, bytes: &mut [u8]) {
        for (offset, byte) in (0u64..).zip(bytes.iter_mut()) {
            if *byte == text::INT3
                && let Some(site) = self.sites.get(&start.wrapping_add(offset))
                && site.armed
            {
                *byte = site.insn.original()[0];
            }
        }
        self.optimizer.without_jumps(start, bytes);
    }

    /// Has the kernel's ORC tables read once a probe takes back-traces; says whether that is new. Not in a hit: it may
    /// be megabytes.
    pub(crate) fn learn_orc(&self) -> bool {
        let takes = |Registered { probe, .. }: &Registered| {
            probe.actions.contains(&Action::Stack) || probe.wants_stack()
        };
        let wanted = self.probes.values().any(takes);
        wanted && self.kernel.as_ref().is_some_and(|kernel| kernel.learn_orc())
    }

    /// Return probes, for whoever ends a task.
    pub(crate) fn return_probes(&self) -> impl Iterator<Item = &Arc<Probe>> {
        self.probes.values().map(|r| &r.probe).filter(|probe| probe.returns().is_some())
    }

    pub(crate) fn status(&self, registered: &Registered, hidden: &HiddenMemory) -> ProbeStatus {
        let Registered { probe, symbol, offset, state, .. } = registered;
        let books = &probe.books;
        // Recorded, filtered and lost first: a hit is counted before it goes into one of them.
        let [recorded, filtered, lost] =
            [&books.recorded, &books.filtered, &books.lost].map(|b| b.load(Ordering::Acquire));
        let (addr, reason) = match state {
            State::Pending(reason) => (None, Some(reason.clone())),
            State::Placed(_) | State::Gone => (Some(probe.at()), None),
        };
        let site = registered.placed().and_then(|at| self.sites.get(&at));
        let optimized = site.is_some_and(|site| self.optimizer.is_installed(site.at));
        let flags = [
            (StatusFlag::Gone, matches!(state, State::Gone)),
            (StatusFlag::Pending, matches!(state, State::Pending(_))),
            (StatusFlag::Disabled, !probe.is_enabled()),
            (StatusFlag::Optimized, optimized && probe.is_enabled()),
            (StatusFlag::Clobbered, site.is_some_and(|site| site.clobbered)),
        ];
        let flags: Vec<_> = flags.into_iter().filter(|(_, is)| *is).map(|(flag, _)| flag).collect();
        let state = ProbeState::of(&flags, self.switched_on);
        let why_not = || Some(self.optimizer.why_not(registered.placed()?)?.to_string());
        let returns = probe.returns();
        let of_event = self.ids(&probe.group, &probe.event).map_or(1, <[u32]>::len);
        ProbeStatus {
            id: probe.id,
            kind: probe.definition.kind,
            group: probe.group.to_string(),
            event: probe.event.to_string(),
            symbol_name: symbol.as_deref().map(str::to_owned),
            offset: *offset,
            addr,
            enabled: probe.is_shown(),
            triggers: probe.triggers().map_or(0, |triggers| triggers.list().len()),
            state,
            flags,
            reason,
            unoptimized_reason: (state == ProbeState::Armed).then(why_not).flatten(),
            hits: books.hits.load(Ordering::Acquire),
            nmissed: books.nmissed.load(Ordering::Acquire),
            recorded,
            filtered,
            lost,
            maxactive: returns.map(|returns| returns.maxactive),
            active: returns.map(|returns| returns.active_with(hidden)),
            latency: returns.map(|returns| returns.timed.read()),
            return_mode: returns.map(|returns| returns.mode),
            actions: probe.actions.clone(),
            filter: probe.written_filter().map(|filter| filter.to_string()),
            instruction: site.map(|site| site.insn.text()),
            displaced: site.map(|site| site.displaced_by()),
            definition: probe.definition.to_string(),
            sites: u32::try_from(of_event).unwrap_or(u32::MAX),
        }
    }
}
