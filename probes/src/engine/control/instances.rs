//! The state of events in trace instances.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::probe::event_filter::EventFilter;
use crate::events::TraceInstance;
use crate::trigger::{Live, Taker};

/// The state of an event in a trace instance.
pub(crate) struct InInstance {
    pub(crate) instance: Arc<TraceInstance>,
    /// Triggers may switch it when hits are drained.
    enabled: Arc<AtomicBool>,
    pub(crate) filter: EventFilter,
    /// Its triggers there, in the order of the file `trigger`.
    pub(crate) triggers: Vec<Arc<Live>>,
}

impl InInstance {
    fn is_of(&self, instance: &TraceInstance) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.instance), instance)
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::SeqCst)
    }

    pub(crate) fn enable(&self, on: bool) {
        self.enabled.store(on, Ordering::SeqCst);
    }
}

/// Group and name of an event.
pub(crate) type EventName = (Arc<str>, Arc<str>);

/// Returns true if a trigger switches an event.
pub(crate) fn switches(live: &Live, (group, event): &EventName) -> bool {
    live.switch().is_some_and(|to| (&*to.group, &*to.event) == (&**group, &**event))
}

/// Events that triggers switch in instances, for many look-ups.
pub(crate) struct Switched(HashSet<(*const TraceInstance, EventName)>);

impl Switched {
    fn has(&self, of: &TraceInstance, name: &EventName) -> bool {
        !self.0.is_empty() && self.0.contains(&(std::ptr::from_ref(of), name.clone()))
    }
}

/// The events that are, or were, enabled, filtered or switched in trace instances, or have
/// triggers there.
#[derive(Default)]
pub(crate) struct InInstances(HashMap<EventName, Vec<InInstance>>);

impl InInstances {
    /// The state of an event in an instance; `None` of one that was never changed there.
    pub(crate) fn find(&self, of: &TraceInstance, name: &EventName) -> Option<&InInstance> {
        self.0.get(name)?.iter().find(|state| state.is_of(of))
    }

    /// The state of an event in an instance, to be changed.
    pub(crate) fn of(&mut self, instance: &Arc<TraceInstance>, name: EventName) -> &mut InInstance {
        let states = self.0.entry(name).or_default();
        let at = states.iter().position(|state| Arc::ptr_eq(&state.instance, instance));
        let at = at.unwrap_or_else(|| {
            let (instance, filter) = (Arc::clone(instance), EventFilter::default());
            let (enabled, triggers) = (Arc::default(), Vec::new());
            states.push(InInstance { instance, enabled, filter, triggers });
            states.len() - 1
        });
        &mut states[at]
    }

    /// All states, with the names of their events.
    fn all(&self) -> impl Iterator<Item = (&EventName, &InInstance)> {
        self.0.iter().flat_map(|(name, states)| states.iter().map(move |state| (name, state)))
    }

    /// The events that have triggers in instances.
    pub(crate) fn triggered(&self) -> impl Iterator<Item = (&EventName, &InInstance)> {
        self.all().filter(|(_, state)| !state.triggers.is_empty())
    }

    /// The events that have triggers in an instance.
    pub(crate) fn triggered_in(
        &self,
        of: &TraceInstance,
    ) -> impl Iterator<Item = (&EventName, &InInstance)> {
        self.triggered().filter(move |(_, state)| state.is_of(of))
    }

    /// Returns true if a trigger of another event switches this one in an instance.
    pub(crate) fn is_switched(&self, of: &TraceInstance, name: &EventName) -> bool {
        self.switched().has(of, name)
    }

    /// All events that triggers of others switch in instances.
    pub(crate) fn switched(&self) -> Switched {
        let targets = self.triggered().flat_map(|(name, state)| {
            let switches = state.triggers.iter().filter_map(|live| live.switch());
            let others = switches.filter(|to| (&*to.group, &*to.event) != (&*name.0, &*name.1));
            others.map(|to| {
                let name = (to.group.as_str().into(), to.event.as_str().into());
                (Arc::as_ptr(&state.instance), name)
            })
        });
        Switched(targets.collect())
    }

    /// The instances that look at the hits of an event.
    pub(crate) fn takers(&self, name: &EventName, switched: &Switched) -> Vec<Taker> {
        let taker = |state: &InInstance| {
            let is_switched = switched.has(&state.instance, name);
            let looks = is_switched || state.is_enabled() || !state.triggers.is_empty();
            looks.then(|| Taker {
                instance: Arc::clone(&state.instance),
                enabled: Arc::clone(&state.enabled),
                filter: state.filter.found(),
                list: state.triggers.clone(),
                is_switched,
            })
        };
        self.0.get(name).into_iter().flatten().filter_map(taker).collect()
    }

    /// The events that are enabled in an instance.
    pub(crate) fn enabled_in(&self, of: &TraceInstance) -> Vec<EventName> {
        let enabled = self.all().filter(|(_, state)| state.is_of(of) && state.is_enabled());
        enabled.map(|(name, _)| name.clone()).collect()
    }

    /// The events whose hits an instance looks at: those that are enabled there, have triggers
    /// there, or are switched by these.
    pub(crate) fn armed_in(&self, of: &TraceInstance) -> Vec<EventName> {
        let switched = self.switched();
        let is_armed = |(name, state): &(&EventName, &InInstance)| {
            state.is_of(of)
                && (state.is_enabled() || !state.triggers.is_empty() || switched.has(of, name))
        };
        self.all().filter(is_armed).map(|(name, _)| name.clone()).collect()
    }

    /// Drops all states of an instance.
    pub(crate) fn forget_instance(&mut self, instance: &Arc<TraceInstance>) {
        self.0.retain(|_, states| {
            states.retain(|state| !Arc::ptr_eq(&state.instance, instance));
            !states.is_empty()
        });
    }

    /// Drops all states of an event, which has gone.
    pub(crate) fn forget(&mut self, group: &Arc<str>, event: &Arc<str>) {
        self.0.remove(&(Arc::clone(group), Arc::clone(event)));
    }
}
