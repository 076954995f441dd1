//! A registered probe, shared by the hit path and the registry.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use exoprobe_guest::{GuestTime, Gva, HiddenMemory};
use exoprobe_introspect::SymbolTable;

use crate::definition::{
    Action, Field, Filter, Flag, ProbeDefinition, RefusedFilter, ReturnMode, WrittenFilter,
};
use crate::engine::arguments::list::Arguments;
use crate::engine::probe::event_filter::EventFilter;
use crate::engine::probe::fetch::Kept;
use crate::engine::probe::handlers::{
    EntryHandler, FaultHandler, Instance, Kprobe, NewProbe, PostHandler, PreHandler, ReturnHandler,
};
use crate::engine::probe::in_guest::InGuestReturns;
use crate::engine::probe::user_texts::{UserTexts, compared};
use crate::error::ProbeError;
use crate::events::Consumer;
use crate::latency::Timed;
use crate::seldom::Seldom;
use crate::shared::{Cell, Parts, Real, Word};
use crate::spares::Spares;
use crate::trigger::Triggers;

/// Default maxactive on few vCPUs (kprobes.rst: max(10, 2*NR_CPUS)).
const MAXACTIVE_LEAST: u32 = 10;

/// A registered probe.
pub(crate) struct Probe {
    pub(crate) id: u32,
    pub(crate) definition: ProbeDefinition,
    pub(crate) group: Arc<str>,
    pub(crate) event: Arc<str>,
    /// Actions of a hit; never empty.
    pub(crate) actions: Vec<Action>,
    /// The probe is at a function's entry, where the return address is on top of the stack.
    pub(crate) is_entry: bool,
    /// The arguments that a hit fetches; set when the probe is placed.
    arguments: ArcSwapOption<Arguments>,
    /// The event's filter.
    pub(crate) event_filter: EventFilter,
    /// The event's triggers, and the trace instances that have it enabled.
    triggers: ArcSwapOption<Triggers>,
    /// Cached from `triggers`, so that a hit need not load it: whether there is anything, and
    /// whether it records back-traces.
    records_all: AtomicBool,
    wants_stack: AtomicBool,
    /// The users' texts that records have for filters.
    pub(crate) user_texts: UserTexts,
    /// Cached: hits that exit record back-traces for triggers, or users' texts for filters.
    records_more: AtomicBool,
    /// All of its hits were recorded at some time: see [`Self::sorts_late`].
    sorts_late: AtomicBool,
    pub(crate) role: Role,
    pub(crate) fault_handler: Option<FaultHandler>,
    pub(crate) consumer: Option<Consumer>,
    pub(crate) enabled: AtomicBool,
    /// The probed address; 0 until it is known.
    at: AtomicU64,
    /// The event's number: that of its first probe.
    event_id: AtomicU32,
    pub(crate) counters: Counters,
}

/// A probe that is placed, with its arguments, which are resolved before it is hit.
#[derive(Clone)]
pub(crate) struct PlacedProbe {
    probe: Arc<Probe>,
    pub(crate) arguments: Arc<Arguments>,
}

impl PlacedProbe {
    pub(crate) fn new(probe: &Arc<Probe>) -> Self {
        Self { probe: Arc::clone(probe), arguments: probe.arguments() }
    }
}

impl Deref for PlacedProbe {
    type Target = Arc<Probe>;
    fn deref(&self) -> &Self::Target {
        &self.probe
    }
}

/// The kind of the probe, with the state of that kind.
pub(crate) enum Role {
    Kprobe { pre_handler: Option<PreHandler>, post_handler: Option<PostHandler> },
    Kretprobe(Box<Returns>),
}

/// State of a return probe.
pub(crate) struct Returns {
    pub(crate) handler: Option<ReturnHandler>,
    pub(crate) entry_handler: Option<EntryHandler>,
    pub(crate) mode: ReturnMode,
    pub(crate) maxactive: u32,
    pub(crate) instances: Instances,
    /// In the mode `site`: number of its return addresses so far.
    pub(crate) sites: AtomicU32,
    /// In the mode `site`: the instances in use.
    pub(crate) watched: Box<[Watch]>,
    /// Durations of its calls, if they are recorded.
    pub(crate) timed: Timed,
    /// Supplies its instances in place of `instances`, once the guest has code for its returns.
    pub(crate) in_guest: Seldom<InGuestReturns>,
}

/// A probe's counters: `hits = recorded + filtered + lost`, except during a hit.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) hits: AtomicU64,
    pub(crate) recorded: AtomicU64,
    pub(crate) filtered: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) nmissed: AtomicU64,
}

/// Increments a counter.
pub(crate) fn count(book: &AtomicU64) {
    book.fetch_add(1, Ordering::Relaxed);
}

impl Probe {
    pub(crate) fn new(id: u32, probe: NewProbe, is_entry: bool, vcpus: u8) -> Self {
        let (definition, role, fault_handler, consumer) = match probe {
            NewProbe::Kprobe(probe) => {
                let Kprobe { definition, pre_handler, post_handler, fault_handler, consumer } =
                    probe;
                (definition, Role::Kprobe { pre_handler, post_handler }, fault_handler, consumer)
            }
            NewProbe::Kretprobe(probe) => {
                let (handler, entry_handler) = (probe.handler, probe.entry_handler);
                let definition = probe.definition;
                let size = probe.data_size;
                let returns = Returns::new(&definition, handler, entry_handler, size, vcpus);
                let role = Role::Kretprobe(Box::new(returns));
                (definition, role, probe.fault_handler, probe.consumer)
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
            event_filter: EventFilter::new(definition.filter.clone()),
            triggers: ArcSwapOption::empty(),
            records_all: AtomicBool::new(false),
            wants_stack: AtomicBool::new(false),
            user_texts: UserTexts::default(),
            records_more: AtomicBool::new(false),
            sorts_late: AtomicBool::new(false),
            role,
            fault_handler,
            consumer,
            enabled: AtomicBool::new(!definition.flags.contains(&Flag::Disabled)),
            at: AtomicU64::new(0),
            event_id: AtomicU32::new(id),
            counters: Counters::default(),
            definition,
        }
    }

    /// The probed address; 0 until it is known.
    pub(crate) fn at(&self) -> Gva {
        Gva(self.at.load(Ordering::Relaxed))
    }

    /// Sets the address, once it is known.
    pub(crate) fn set_at(&self, at: Gva) {
        self.at.store(at.0, Ordering::Relaxed);
    }

    /// The event's number.
    pub(crate) fn event_id(&self) -> u32 {
        self.event_id.load(Ordering::Relaxed)
    }

    /// Sets the event's number, when its first probe is another one.
    pub(crate) fn set_event_id(&self, id: u32) {
        self.event_id.store(id, Ordering::Relaxed);
    }

    /// Returns true if its event is enabled, also in a trace instance, or has triggers.
    pub(crate) fn wants_breakpoint(&self) -> bool {
        self.records_events() || self.records_all()
    }

    /// Returns true if its event is enabled: its hits become events.
    pub(crate) fn records_events(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    /// Returns true if a handler of its own runs in the VMM at its hits.
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

    /// Returns true if all of its hits are recorded, whatever its filter: for triggers or trace
    /// instances.
    pub(crate) fn records_all(&self) -> bool {
        self.records_all.load(Ordering::Acquire)
    }

    /// The triggers of its event, and the trace instances that have it enabled.
    pub(crate) fn triggers(&self) -> Option<Arc<Triggers>> {
        self.triggers.load_full()
    }

    pub(crate) fn set_triggers(&self, triggers: Option<Arc<Triggers>>) {
        let wants_stack = triggers.as_ref().is_some_and(|triggers| triggers.want_stack);
        self.wants_stack.store(wants_stack, Ordering::Relaxed);
        let is_over = triggers.is_none() && self.records_all();
        self.sorts_late.fetch_or(is_over, Ordering::SeqCst);
        // First, so that the records of hits that the filter does not refuse have the texts. Hits
        // that are under way are for the triggers of before.
        let before = self.triggers();
        self.renew_texts(&[before.as_deref(), triggers.as_deref()], None);
        self.records_all.store(triggers.is_some(), Ordering::SeqCst);
        self.triggers.store(triggers);
    }

    /// Replaces the event's filter; `found` is the filter over the fetched arguments, once these
    /// are known.
    pub(crate) fn set_filter(
        &self,
        written: Option<Arc<WrittenFilter>>,
        found: Option<Filter<Field>>,
    ) {
        // Before a hit meets the new filter.
        self.renew_texts(&[self.triggers().as_deref()], found.as_ref());
        self.event_filter.set(written, found);
        self.settle_texts();
    }

    /// Removes the event's filter, and keeps the one that was refused in its place.
    pub(crate) fn refuse_filter(&self, refused: Arc<RefusedFilter>) {
        self.event_filter.refuse(refused);
        self.settle_texts();
    }

    /// Has records contain no users' texts but those that filters compare now.
    pub(crate) fn settle_texts(&self) {
        self.renew_texts(&[self.triggers().as_deref()], None);
    }

    /// Has records contain the users' texts that the event's filter, its `next` one, those in trace
    /// instances, and conditions of triggers compare.
    fn renew_texts(&self, triggers: &[Option<&Triggers>], next: Option<&Filter<Field>>) {
        let filter = self.event_filter.found();
        let triggers = triggers.iter().flatten();
        let others = triggers.clone().flat_map(|triggers| triggers.filters());
        let all = filter.as_deref().into_iter().chain(next).chain(others);
        let wanted = all.flat_map(compared).collect();
        let is_late = triggers.count() > 0 || self.sorts_late();
        self.user_texts.renew(&self.arguments().list, &wanted, is_late);
        let more = self.wants_stack() || self.user_texts.recorded().is_some();
        self.records_more.store(more, Ordering::SeqCst);
    }

    /// Returns true if hits that exit record back-traces for triggers, or users' texts for
    /// filters.
    pub(crate) fn records_more(&self) -> bool {
        self.records_more.load(Ordering::Relaxed)
    }

    /// Returns true if its records are to be looked at again when they are read, though nothing
    /// looks at all of its hits any more: some may be of a hit that was under way then.
    pub(crate) fn sorts_late(&self) -> bool {
        self.sorts_late.load(Ordering::Relaxed)
    }

    /// Returns true if its hits are recorded with back-traces, for a trigger.
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

    /// The arguments that a hit fetches; empty before the probe is placed, when it has no hits.
    pub(crate) fn arguments(&self) -> Arc<Arguments> {
        self.arguments.load_full().unwrap_or_default()
    }

    /// Returns true if the arguments are resolved.
    pub(crate) fn has_arguments(&self) -> bool {
        self.arguments.load().is_some()
    }

    /// Sets the arguments that a hit fetches, and the filter over them.
    pub(crate) fn set_arguments(&self, arguments: Arguments, filter: Option<Filter<Field>>) {
        self.arguments.store(Some(Arc::new(arguments)));
        self.event_filter.set_found(filter);
        self.settle_texts();
    }

    /// The filter of records; `None` records all hits: triggers and trace instances also see those
    /// that are not shown.
    #[inline]
    pub(crate) fn filter(&self) -> Option<Arc<Filter<Field>>> {
        self.event_filter.found().filter(|_| !self.records_all())
    }

    /// Resolves a filter over the fetched arguments, once these are known, and the functions of
    /// the kernel.
    ///
    /// # Errors
    /// [`ProbeError::Filter`].
    pub(crate) fn find_filter(
        &self,
        filter: Option<&WrittenFilter>,
        symbols: Option<&SymbolTable>,
    ) -> Result<Option<Filter<Field>>, ProbeError> {
        match self.has_arguments() {
            true => self.arguments().filter(Some(self.definition.kind), filter, symbols),
            false => Arguments::check(&self.definition, filter).map(|()| None),
        }
    }
}

/// Maximum number of calls that a return probe follows at a time.
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
        let (sites, in_guest) = (AtomicU32::new(0), Seldom::default());
        let timed = Timed::default();
        Self { handler, entry_handler, mode, maxactive, instances, sites, watched, timed, in_guest }
    }

    /// Instances in use.
    pub(crate) fn active(&self) -> u32 {
        self.instances.in_use()
    }
}

/// Bytes of a kernel stack and its alignment (THREAD_SIZE of x86-64; more only under KASAN).
const THREAD_SIZE: u64 = 16 << 10;

/// A [`Watch`] that is not in use.
const FREE: u64 = 0;

impl Returns {
    /// Instances in use, including those in the guest.
    pub(crate) fn active_with(&self, hidden: &HiddenMemory) -> u32 {
        let within = self.in_guest.load();
        self.active() + within.as_ref().map_or(0, |in_guest| in_guest.pool.active(hidden))
    }

    /// Its pool and return code, once it has them.
    pub(crate) fn in_guest(&self) -> Option<Arc<InGuestReturns>> {
        self.in_guest.load()
    }
}

/// Bytes that a return pops.
pub(crate) const RETURN_ADDRESS_LEN: u64 = 8;

/// An instance of a return probe, spare or in use.
pub(crate) struct KretprobeInstance {
    pub(crate) instance: Instance,
    /// Arguments of the call, for the probe's record.
    pub(crate) kept: Kept,
    /// Its probe while in use: instances outlive the probe's registration.
    pub(crate) probe: Option<PlacedProbe>,
    /// The previous instance of the same call.
    pub(crate) next: Option<Box<KretprobeInstance>>,
}

impl KretprobeInstance {
    pub(crate) fn new(data_size: usize) -> Self {
        let data = vec![0; data_size].into();
        let instance = Instance { ret_addr: Gva(0), entered: GuestTime(0), data };
        Self { instance, kept: Kept::default(), probe: None, next: None }
    }

    pub(crate) fn begin(&mut self, ret_addr: Gva, entered: GuestTime) {
        // memset is called for no bytes, too.
        if !self.instance.data.is_empty() {
            self.instance.data.fill(0);
        }
        (self.instance.ret_addr, self.instance.entered) = (ret_addr, entered);
    }
}

impl Drop for KretprobeInstance {
    /// Drops the instances of the same call one by one: a call may have one of each of 100,000
    /// probes, and a drop within a drop for each would overflow the stack.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(mut active) = next {
            next = active.next.take();
        }
    }
}

/// Gives an instance back to its probe.
pub(crate) fn recycle(mut active: Box<KretprobeInstance>) {
    if let Some(probe) = active.probe.take()
        && let Some(returns) = probe.returns()
    {
        returns.instances.give_back(active);
    }
}

/// Maximum number of spare instances of a probe.
const SPARE_MOST: usize = 16;

/// The instances of a return probe. They are made when calls need them, and most unused ones are
/// freed: the memory of a probe depends on its active calls, not on its maxactive.
pub(crate) struct Instances {
    /// Maximum number in use: its maxactive.
    most: u32,
    /// Bytes of each for handlers' data.
    data_size: usize,
    in_use: AtomicU32,
    /// Spare instances, so that a hit seldom allocates.
    spare: Spares<KretprobeInstance>,
}

impl Instances {
    pub(crate) fn new(most: u32, data_size: usize) -> Self {
        let spare = usize::try_from(most).map_or(SPARE_MOST, |most| most.clamp(1, SPARE_MOST));
        Self { most, data_size, in_use: AtomicU32::new(0), spare: Spares::new(spare) }
    }

    /// Takes an instance for a call; `None` if all are in use.
    pub(crate) fn take(&self) -> Option<Box<KretprobeInstance>> {
        let one_more = |in_use| (in_use < self.most).then_some(in_use + 1);
        self.in_use.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(self.spare.take().unwrap_or_else(|| Box::new(KretprobeInstance::new(self.data_size))))
    }

    /// Ends the use that [`Self::take`] began. Frees the instance if enough are spare.
    fn give_back(&self, active: Box<KretprobeInstance>) {
        // Before the count is decremented, so that the next call finds it.
        self.spare.give(active);
        self.in_use.fetch_sub(1, Ordering::AcqRel);
    }

    /// Number in use.
    pub(crate) fn in_use(&self) -> u32 {
        self.in_use.load(Ordering::Acquire)
    }
}

/// A call in use of a probe in the mode `site`.
pub(crate) struct Watch<P: Parts = Real> {
    /// Address of its return address on the stack, or [`FREE`].
    key: P::Word,
    active: P::Cell<Box<KretprobeInstance>>,
}

impl<P: Parts> Default for Watch<P> {
    fn default() -> Self {
        Self { key: P::Word::new(FREE), active: P::Cell::new() }
    }
}

/// Follows a call by its place on the stack. A previous call at that place has ended without a
/// return, or is entered again by a jump from the function that it jumped to: it counts as missed.
pub(crate) fn watch<P: Parts>(
    watched: &[Watch<P>],
    key: Gva,
    active: Box<KretprobeInstance>,
) -> Result<(), Box<KretprobeInstance>> {
    if let Some(stale) = unwatch(watched, key) {
        stale.probe.iter().for_each(|probe| count(&probe.counters.nmissed));
        recycle(stale);
    }
    let claimed = watched.iter().find(|watch| watch.key.replace(FREE, key.0, Ordering::AcqRel));
    match claimed {
        Some(watch) => {
            watch.active.store(Some(active));
            Ok(())
        }
        None => Err(active),
    }
}

/// Ends the watch over the call whose return address was at `key`.
pub(crate) fn unwatch<P: Parts>(watched: &[Watch<P>], key: Gva) -> Option<Box<KretprobeInstance>> {
    let watch = watched.iter().find(|watch| watch.key.load(Ordering::Acquire) == key.0)?;
    let active = watch.active.take();
    watch.key.store(FREE, Ordering::Release);
    active
}

/// Ends the watch over all calls.
pub(crate) fn unwatch_all<P: Parts>(watched: &[Watch<P>]) {
    for watch in watched {
        watch.active.take().into_iter().for_each(recycle);
        watch.key.store(FREE, Ordering::Release);
    }
}

/// Ends the watch over all calls on one stack.
pub(crate) fn unwatch_stack<P: Parts>(watched: &[Watch<P>], rsp: Gva) {
    for watch in watched {
        let key = Gva(watch.key.load(Ordering::Acquire));
        if key.0 != FREE
            && is_same_stack(key, rsp)
            && let Some(active) = unwatch(watched, key)
        {
            recycle(active);
        }
    }
}

pub(crate) fn is_same_stack(a: Gva, b: Gva) -> bool {
    a.0 / THREAD_SIZE == b.0 / THREAD_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_made_for_calls_and_never_more_than_maxactive() {
        const MOST: u32 = 4096;
        let instances = Instances::new(MOST, 8);
        assert_eq!(instances.in_use(), 0);
        assert!(instances.spare.take().is_none(), "none before a call");
        let taken: Vec<_> = std::iter::from_fn(|| instances.take()).collect();
        assert_eq!((taken.len(), instances.in_use()), (4096, MOST));
        assert!(instances.take().is_none());
        taken.into_iter().for_each(|active| instances.give_back(active));
        let spare = std::iter::from_fn(|| instances.spare.take()).count();
        assert_eq!((instances.in_use(), spare), (0, SPARE_MOST));
        let few = Instances::new(1, 0);
        let one = few.take().unwrap();
        assert!(few.take().is_none());
        few.give_back(one);
        assert!(few.take().is_some());
    }

    #[test]
    fn vcpus_never_have_more_than_maxactive() {
        let instances = Instances::new(3, 0);
        let most = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let Some(active) = instances.take() else { continue };
                        most.fetch_max(instances.in_use(), Ordering::Relaxed);
                        instances.give_back(active);
                    }
                });
            }
        });
        assert_eq!(instances.in_use(), 0);
        assert!(most.into_inner() <= 3);
    }
}
