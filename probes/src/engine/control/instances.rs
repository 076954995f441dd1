//! The state of events in trace instances.

use std::collections::HashMap;
use std::sync::Arc;

use crate::engine::probe::event_filter::EventFilter;
use crate::events::TraceInstance;
use crate::trigger::Taker;

/// The state of an event in a trace instance.
pub(crate) struct InInstance {
    instance: Arc<TraceInstance>,
    pub(crate) enabled: bool,
    pub(crate) filter: EventFilter,
}

impl InInstance {
    fn is_of(&self, instance: &TraceInstance) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.instance), instance)
    }
}

/// Group and name of an event.
pub(crate) type EventName = (Arc<str>, Arc<str>);

/// The events that are, or were, enabled or filtered in trace instances.
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
            states.push(InInstance { instance, enabled: false, filter });
            states.len() - 1
        });
        &mut states[at]
    }

    /// The instances that have an event enabled.
    pub(crate) fn takers(&self, name: &EventName) -> Vec<Taker> {
        let enabled = self.0.get(name).into_iter().flatten().filter(|state| state.enabled);
        let taker = |state: &InInstance| Taker {
            instance: Arc::clone(&state.instance),
            filter: state.filter.found(),
        };
        enabled.map(taker).collect()
    }

    /// The events that are enabled in an instance.
    pub(crate) fn enabled_in(&self, of: &TraceInstance) -> Vec<EventName> {
        let is_it = |state: &InInstance| state.enabled && state.is_of(of);
        let enabled = self.0.iter().filter(|(_, states)| states.iter().any(is_it));
        enabled.map(|(name, _)| name.clone()).collect()
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
