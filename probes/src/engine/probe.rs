//! A registered probe: what the hit path and the registry share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use exoprobe_vmm::Gva;

use super::arguments::Arguments;
use super::follower::Follower;
use super::handlers::{
    EntryHandler, FaultHandler, Kprobe, Kretprobe, NewProbe, PostHandler, PreHandler, ReturnHandler,
};
use super::returns::{Instances, Watch};
use crate::definition::{Action, Field, Filter, Flag, ProbeDefinition, ReturnMode};
use crate::latency::Timed;
use crate::trigger::Triggers;

/// Default maxactive on few vCPUs (kprobes.rst: max(10, 2*NR_CPUS)).
const MAXACTIVE_LEAST: u32 = 10;

/// A registered probe.
pub(crate) struct Probe {
    pub(crate) id: u32,
    pub(crate) definition: ProbeDefinition,
    pub(crate) group: Arc<str>,
    pub(crate) event: Arc<str>,
    /// What a hit does; never empty.
    pub(crate) actions: Vec<Action>,
    /// It probes a function's entry, where the return address is on top of the stack.
    pub(crate) is_entry: bool,
    /// What a hit fetches, from when it has a place.
    arguments: ArcSwapOption<Arguments>,
    /// Which hits count, as it was written.
    written_filter: ArcSwapOption<Filter>,
    /// The same over what a hit fetches, from when that is known.
    filter: ArcSwapOption<Filter<Field>>,
    /// What its hits set off.
    triggers: ArcSwapOption<Triggers>,
    /// There is something; and it wants back-traces. For the hit path, to which a look at `triggers` is much.
    has_triggers: AtomicBool,
    wants_stack: AtomicBool,
    pub(crate) role: Role,
    pub(crate) fault_handler: Option<FaultHandler>,
    pub(crate) enabled: AtomicBool,
    /// The probed address; 0 until it is known.
    at: AtomicU64,
    pub(crate) books: Books,
}

/// What kind of probe it is, with what only that kind has.
pub(crate) enum Role {
    Kprobe { pre_handler: Option<PreHandler>, post_handler: Option<PostHandler> },
    Kretprobe(Box<Returns>),
}

/// The return probe's part.
pub(crate) struct Returns {
    pub(crate) handler: Option<ReturnHandler>,
    pub(crate) entry_handler: Option<EntryHandler>,
    pub(crate) mode: ReturnMode,
    pub(crate) maxactive: u32,
    pub(crate) instances: Instances,
    /// In the mode `site`: places that its calls return to, so far.
    pub(crate) sites: AtomicU32,
    /// Where those in use are found, in the mode `site`.
    pub(crate) watched: Box<[Watch]>,
    /// How long its calls took, as far as they are recorded.
    pub(crate) timed: Timed,
    /// What has its instances in place of `instances`, once the guest has code for its returns.
    pub(crate) follower: ArcSwapOption<Follower>,
}

/// A probe's counters: `hits = recorded + filtered + lost`, but for a hit that is under way.
#[derive(Default)]
pub(crate) struct Books {
    pub(crate) hits: AtomicU64,
    pub(crate) recorded: AtomicU64,
    pub(crate) filtered: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) nmissed: AtomicU64,
}

/// Adds one to a counter of the books.
pub(crate) fn count(book: &AtomicU64) {
    book.fetch_add(1, Ordering::Relaxed);
}

impl Probe {
    pub(crate) fn new(id: u32, probe: NewProbe, is_entry: bool, vcpus: u8) -> Self {
        let (definition, role, fault_handler) = match probe {
            NewProbe::Kprobe(Kprobe { definition, pre_handler, post_handler, fault_handler }) => {
                (definition, Role::Kprobe { pre_handler, post_handler }, fault_handler)
            }
            NewProbe::Kretprobe(probe) => {
                let Kretprobe { definition, handler, entry_handler, fault_handler, data_size } =
                    probe;
                let returns = Returns::new(&definition, handler, entry_handler, data_size, vcpus);
                (definition, Role::Kretprobe(Box::new(returns)), fault_handler)
            }
        };
        let actions = match definition.actions.as_slice() {
            [] => vec![Action::Record],
            given => given.to_vec(),
        };
        Self {
            id,
            group: definition.group().into(),
            event: definition.event_name().into(),
            actions,
            is_entry,
            arguments: ArcSwapOption::empty(),
            written_filter: ArcSwapOption::new(definition.filter.clone().map(Arc::new)),
            filter: ArcSwapOption::empty(),
            triggers: ArcSwapOption::empty(),
            has_triggers: AtomicBool::new(false),
            wants_stack: AtomicBool::new(false),
            role,
            fault_handler,
            enabled: AtomicBool::new(!definition.flags.contains(&Flag::Disabled)),
            at: AtomicU64::new(0),
            books: Books::default(),
            definition,
        }
    }

    /// The probed address; 0 until it is known.
    pub(crate) fn at(&self) -> Gva {
        Gva(self.at.load(Ordering::Relaxed))
    }

    /// Where it is, once that is known better than by its symbol as linked.
    pub(crate) fn set_at(&self, at: Gva) {
        self.at.store(at.0, Ordering::Relaxed);
    }

    /// It is to be hit: its event is enabled, or has triggers.
    pub(crate) fn is_enabled(&self) -> bool {
        self.is_shown() || self.has_triggers()
    }

    /// Its event is enabled: its hits become events.
    pub(crate) fn is_shown(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    /// Something of its own runs in the VMM at its hits.
    pub(crate) fn has_handlers(&self) -> bool {
        match &self.role {
            Role::Kprobe { pre_handler, post_handler } => {
                pre_handler.is_some() || post_handler.is_some()
            }
            Role::Kretprobe(returns) => {
                returns.handler.is_some() || returns.entry_handler.is_some()
            }
        }
    }

    /// Its hits set something off.
    pub(crate) fn has_triggers(&self) -> bool {
        self.has_triggers.load(Ordering::Relaxed)
    }

    /// What its hits set off; none without triggers.
    pub(crate) fn triggers(&self) -> Option<Arc<Triggers>> {
        self.triggers.load_full()
    }

    pub(crate) fn set_triggers(&self, triggers: Option<Arc<Triggers>>) {
        let wants_stack = triggers.as_ref().is_some_and(|triggers| triggers.want_stack);
        self.wants_stack.store(wants_stack, Ordering::Relaxed);
        self.has_triggers.store(triggers.is_some(), Ordering::SeqCst);
        self.triggers.store(triggers);
    }

    /// Its hits are recorded with back-traces, for the sake of a trigger.
    pub(crate) fn wants_stack(&self) -> bool {
        self.wants_stack.load(Ordering::Relaxed)
    }

    pub(crate) fn returns(&self) -> Option<&Returns> {
        match &self.role {
            Role::Kretprobe(returns) => Some(returns),
            Role::Kprobe { .. } => None,
        }
    }

    pub(crate) fn post_handler(&self) -> Option<&PostHandler> {
        match &self.role {
            Role::Kprobe { post_handler, .. } => post_handler.as_ref(),
            Role::Kretprobe(_) => None,
        }
    }

    /// What a hit fetches; nothing before it has a place, when there are none.
    pub(crate) fn arguments(&self) -> Arc<Arguments> {
        self.arguments.load_full().unwrap_or_default()
    }

    /// Whether it is known what a hit fetches.
    pub(crate) fn has_arguments(&self) -> bool {
        self.arguments.load().is_some()
    }

    /// What a hit fetches is known from now on, and what its filter looks at.
    pub(crate) fn set_arguments(&self, arguments: Arguments, filter: Option<Filter<Field>>) {
        self.arguments.store(Some(Arc::new(arguments)));
        self.filter.store(filter.map(Arc::new));
    }

    /// Which hits are recorded; all without one. Triggers are set off by hits that are not shown, too.
    pub(crate) fn filter(&self) -> Option<Arc<Filter<Field>>> {
        if self.has_triggers() { None } else { self.event_filter() }
    }

    /// Which hits become events; all without one.
    pub(crate) fn event_filter(&self) -> Option<Arc<Filter<Field>>> {
        self.filter.load_full()
    }

    /// The same as it was written.
    pub(crate) fn written_filter(&self) -> Option<Arc<Filter>> {
        self.written_filter.load_full()
    }

    /// Other hits count from now on; `found` is the filter over what a hit fetches, once that is known.
    pub(crate) fn set_filter(&self, filter: Option<Arc<Filter>>, found: Option<Filter<Field>>) {
        self.written_filter.store(filter);
        self.filter.store(found.map(Arc::new));
    }
}

/// How many calls of a return probe are followed at a time.
pub(crate) fn maxactive(definition: &ProbeDefinition, vcpus: u8) -> u32 {
    definition.maxactive.unwrap_or_else(|| MAXACTIVE_LEAST.max(2 * u32::from(vcpus)))
}

impl Returns {
    fn new(
        definition: &ProbeDefinition,
        handler: Option<ReturnHandler>,
        entry_handler: Option<EntryHandler>,
        data_size: usize,
        vcpus: u8,
    ) -> Self {
        let maxactive = maxactive(definition, vcpus);
        let instances = Instances::new(maxactive, data_size);
        let watched = match definition.return_mode {
            ReturnMode::Site => (0..maxactive).map(|_| Watch::default()).collect(),
            ReturnMode::Trampoline => Box::default(),
        };
        let mode = definition.return_mode;
        let (sites, follower) = (AtomicU32::new(0), ArcSwapOption::empty());
        let timed = Timed::default();
        Self { handler, entry_handler, mode, maxactive, instances, sites, watched, timed, follower }
    }

    /// Instances in use.
    pub(crate) fn active(&self) -> u32 {
        self.instances.in_use()
    }
}
