//! From the rings to the store.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustc_hash::FxHashMap;

use crate::definition::{Action, Field, Filter};
use crate::engine::control::registry::{Registered, Registry};
use crate::engine::control::state::Control;
use crate::engine::control::synthetic::Cause;
use crate::engine::facade::engine::Engine;
use crate::engine::probe::registered::{Probe, count};
use crate::events::{Consumer, EventStore, Hit, Origin, Record, RecordedHit, Step, has_texts};
use crate::trigger::{GivenStep, MadeEvent, Triggers, holds};

/// Most synthetic events that are made of one hit: their triggers may make more of them.
const MADE_MAX: usize = 64;
/// Most synthetic events that are made in one drain: the lock of registration is held meanwhile.
const MADE_IN_DRAIN: usize = 1 << 16;
/// Number of steps after which the store takes them, so that its limits hold meanwhile.
const STEPS: usize = 1024;

/// A record from a ring.
struct Read {
    vcpu: u8,
    record: Record,
    /// The filter that it is still to pass.
    filter: Option<Arc<Filter<Field>>>,
}

/// Hits that are taken and not stored yet.
struct Taken {
    /// Steps for the store.
    steps: Vec<Step>,
    /// Steps for trace instances.
    given: Vec<GivenStep>,
    /// Number of synthetic events that may still be made.
    may_make: usize,
}

impl Taken {
    /// Passes all to the store and to the instances.
    fn keep(&mut self, store: &EventStore) {
        store.append(self.steps.drain(..));
        while let Some((instance, _)) = self.given.first() {
            let instance = Arc::clone(instance);
            let is_its = |(of, _): &GivenStep| Arc::ptr_eq(of, &instance);
            let (its, others) = std::mem::take(&mut self.given).into_iter().partition(is_its);
            let its: Vec<GivenStep> = its;
            instance.events().append(its.into_iter().map(|(_, step)| step));
            self.given = others;
        }
    }
}

/// The probe of a record.
struct RecordedProbe {
    probe: Arc<Probe>,
    origin: Arc<Origin>,
    triggers: Option<Arc<Triggers>>,
}

impl RecordedProbe {
    /// Passes a hit to the probe's consumer, or to its triggers and the store.
    fn take(&self, hit: Hit, registry: &Registry, taken: &mut Taken) {
        let probe = &self.probe;
        if let Some(Consumer { to, probe: number, .. }) = &probe.consumer {
            let Hit { origin, vcpu, record } = hit;
            let (fields, symbols) = (Arc::clone(&origin.fields), origin.symbols.clone());
            return to.take(*number, RecordedHit { vcpu, fields, record, symbols });
        }
        let filter = probe.event_filter.found();
        // A record without the texts is of a hit that the filter of then has accepted.
        let accepts =
            |filter: &Filter<Field>, hit: &Hit| !has_texts(filter, hit) || holds(filter, hit);
        let is_wanted = |hit: &Hit| filter.as_ref().is_none_or(|filter| accepts(filter, hit));
        let records_events = |hit: &Hit| probe.records_events() && is_wanted(hit);
        let Some(triggers) = &self.triggers else {
            return match !probe.sorts_late() || records_events(&hit) {
                true => taken.steps.push(Step::Keep(hit)),
                false => self.refuse(),
            };
        };
        let keeps_stack = probe.actions.contains(&Action::Stack);
        let (cause, mut made) = (Cause::from(&hit), Vec::new());
        let mut in_instances = Vec::new();
        let given = triggers.give(&hit, registry, keeps_stack, &mut taken.given, &mut in_instances);
        let steps = &mut taken.steps;
        let shown = triggers.apply(hit, registry, records_events, keeps_stack, steps, &mut made);
        // The instances' last: what they make takes nothing of the others' room.
        made.append(&mut in_instances);
        make(registry, made, &cause, taken);
        if !shown && !given {
            // It was recorded for its triggers alone.
            self.refuse();
        }
    }

    /// Counts a recorded hit as one that the filter refuses.
    fn refuse(&self) {
        self.probe.counters.recorded.fetch_sub(1, Ordering::Relaxed);
        count(&self.probe.counters.filtered);
    }
}

/// Makes hits of synthetic events, which may have more made by their own triggers.
fn make(registry: &Registry, made: Vec<MadeEvent>, cause: &Cause, taken: &mut Taken) {
    let (mut waiting, mut left) = (VecDeque::from(made), MADE_MAX.min(taken.may_make));
    while left > 0
        && let Some(MadeEvent { definition, values }) = waiting.pop_front()
    {
        let Some(event) = registry.synthetic_named(&definition.name) else { continue };
        let triggers = event.triggers();
        if triggers.is_none() && !event.is_enabled() {
            continue;
        }
        left -= 1;
        taken.may_make -= 1;
        let hit = event.hit(values, cause);
        match triggers {
            Some(triggers) => {
                let (mut more, shows) = (Vec::new(), |hit: &Hit| event.shows(hit));
                triggers.give(&hit, registry, false, &mut taken.given, &mut more);
                let steps = &mut taken.steps;
                triggers.apply(hit, registry, shows, false, steps, &mut more);
                waiting.extend(more);
            }
            None if event.shows(&hit) => taken.steps.push(Step::Keep(hit)),
            None => {}
        }
    }
    waiting.iter().for_each(|made| leave_out(registry, made, cause, taken));
}

/// Counts a synthetic event that is not made: at the top, and in the trace instances that have it
/// enabled.
fn leave_out(registry: &Registry, made: &MadeEvent, cause: &Cause, taken: &mut Taken) {
    let Some(event) = registry.synthetic_named(&made.definition.name) else { return };
    let unmade = || Step::Unmade { vcpu: cause.vcpu(), count: 1 };
    let triggers = event.triggers();
    if event.is_enabled() || triggers.as_ref().is_some_and(|triggers| triggers.number() > 0) {
        taken.steps.push(unmade());
    }
    let instances = triggers.iter().flat_map(|triggers| triggers.shown_in());
    taken.given.extend(instances.map(|instance| (Arc::clone(instance), unmade())));
}

impl Engine {
    /// Moves all recorded hits into the event store, merged by time; one whose handler took long
    /// may come after later ones that were moved before. Returns how many were read.
    pub fn drain(&self) -> usize {
        self.drain_in(&mut self.lock())
    }

    /// As [`Self::drain`], under the lock.
    pub(crate) fn drain_in(&self, control: &mut Control) -> usize {
        self.drain_as(control, &|probe| probe.triggers())
    }

    /// As [`Self::drain`], and adds what detours have counted to the probes' counters: that takes
    /// time for each optimized probe.
    pub(crate) fn drain_locked(&self, control: &mut Control) -> usize {
        control.rings.count(self.guest.hidden());
        self.drain_in(control)
    }

    /// As [`Self::drain_locked`], where something looks at all hits of some of these probes: what
    /// they hit so far is of before what is about to change.
    pub(crate) fn drain_triggered(&self, control: &mut Control, ids: &[u32]) {
        let probes = ids.iter().filter_map(|id| control.registry.probes.get(id));
        let mut probes = probes.map(|registered| &registered.probe);
        if probes.any(|probe| probe.records_all() || probe.sorts_late()) {
            self.drain_locked(control);
        }
    }

    /// As [`Self::drain_locked`], where what some probes have hit is for the triggers that they
    /// had.
    pub(crate) fn drain_for(&self, control: &mut Control, before: &FxHashMap<u32, Arc<Triggers>>) {
        self.drain_as(control, &|probe| {
            before.get(&probe.id).cloned().or_else(|| probe.triggers())
        });
    }

    fn drain_as(
        &self,
        control: &mut Control,
        triggers_of: &dyn Fn(&Probe) -> Option<Arc<Triggers>>,
    ) -> usize {
        let mut batch: Vec<Read> = Vec::new();
        control.rings.drain(self.guest.hidden(), |found, record| {
            let (vcpu, filter) = (found.vcpu, found.later.cloned());
            batch.push(Read { vcpu, record: found.record(record), filter });
        });
        for (vcpu, ring) in (0u8..).zip(&self.hits.recorder.rings) {
            ring.drain(|record| batch.push(Read { vcpu, record, filter: None }));
        }
        batch.sort_by_key(|read| read.record.time);
        let mut sources: FxHashMap<u32, Option<RecordedProbe>> = FxHashMap::default();
        let mut taken = Taken { steps: Vec::new(), given: Vec::new(), may_make: MADE_IN_DRAIN };
        let read = batch.len();
        for Read { vcpu, record, filter } in batch {
            let source = sources.entry(record.probe).or_insert_with(|| {
                let from = control.registry.recorded(record.probe)?;
                let origin = self.origin(control, from);
                let probe = Arc::clone(&from.probe);
                Some(RecordedProbe { triggers: triggers_of(&probe), probe, origin })
            });
            // A probe that has gone tells nothing any more.
            let Some(source) = &*source else { continue };
            let RecordedProbe { probe, origin, .. } = source;
            let ticks = record.duration();
            let hit = Hit { origin: Arc::clone(origin), vcpu, record };
            if filter.is_some_and(|filter| !holds(&filter, &hit)) {
                source.refuse();
                continue;
            }
            if let Some((returns, ticks)) = probe.returns().zip(ticks) {
                returns.timed.add(self.clock.nanos(ticks));
            }
            source.take(hit, &control.registry, &mut taken);
            if taken.steps.len() + taken.given.len() >= STEPS {
                taken.keep(&self.store);
            }
        }
        taken.keep(&self.store);
        read
    }

    /// What the events of a probe have in common: made again only where it has changed.
    fn origin(&self, control: &Control, from: &Registered) -> Arc<Origin> {
        let symbols = control.symbols();
        let (at, fields) = (from.probe.at(), Arc::clone(&from.probe.arguments().list));
        let (event_id, user_texts) = (from.probe.event_id(), from.probe.user_texts.places());
        let is_same = |origin: &Arc<Origin>| {
            origin.has_symbols(symbols)
                && Arc::ptr_eq(&origin.fields, &fields)
                && Arc::ptr_eq(&origin.user_texts, &user_texts)
                && (origin.at, origin.offset, origin.event_id) == (at, from.offset, event_id)
                && origin.symbol_name == from.symbol
        };
        let mut known = from.origin.borrow_mut();
        if let Some(origin) = known.as_ref().filter(|origin| is_same(origin)) {
            return Arc::clone(origin);
        }
        let origin = Origin {
            group: Arc::clone(&from.probe.group),
            event: Arc::clone(&from.probe.event),
            event_id,
            synthetic: None,
            symbol_name: from.symbol.clone(),
            offset: from.offset,
            at,
            addr: Arc::clone(&from.addr),
            fields,
            user_texts,
            symbols: symbols.cloned(),
            clock: self.clock,
        };
        Arc::clone(known.insert(Arc::new(origin)))
    }
}
