//! The triggers of all events, at the top and in trace instances: what they switch, make and refer
//! to.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::engine::control::instances::{EventName, switches};
use crate::engine::control::registry::Registry;
use crate::events::TraceInstance;
use crate::synthetic::SYNTHETIC_GROUP;
use crate::trigger::{
    EventSwitch, HistChange, Live, SwitchSubject, SwitchedEvents, Triggers, VariableError,
    switched_events,
};

/// An event, with its triggers at the top or in a trace instance.
pub(crate) type Triggered = (EventName, Vec<Arc<Live>>);

/// The events that triggers of a trace instance switch.
pub(crate) type SwitchedIn = (Arc<TraceInstance>, BTreeSet<(String, String)>);

fn name_of(EventSwitch { group, event, .. }: &EventSwitch) -> EventName {
    (group.as_str().into(), event.as_str().into())
}

impl SwitchedEvents for Registry {
    fn is_due(&self, of: Option<&TraceInstance>, switch: &EventSwitch) -> bool {
        let EventSwitch { subject, on, group, event } = switch;
        let is_enabled = if let Some(of) = of {
            let state = self.in_instances.find(of, &name_of(switch));
            state.map(|state| state.is_enabled())
        } else if let Some(found) = self.synthetic_of(group, event) {
            Some(found.is_enabled())
        } else {
            self.first(group, event).ok().map(|first| first.probe.records_events())
        };
        is_enabled
            .is_some_and(|is_enabled| *subject == SwitchSubject::Histograms || is_enabled != *on)
    }

    fn switch(&self, of: Option<&TraceInstance>, switch: &EventSwitch) {
        match switch.subject {
            SwitchSubject::Event => self.enable(of, switch),
            SwitchSubject::Histograms => {
                let change = if switch.on { HistChange::Continue } else { HistChange::Pause };
                let triggers = self.triggers_at(of, &name_of(switch));
                triggers.iter().for_each(|live| live.change(change));
            }
        }
    }
}

fn refer_to(list: &[Arc<Live>], live: &Live) -> bool {
    list.iter().any(|other| other.refers_to(live))
}

impl Registry {
    /// Enables or disables an event, at the top or in an instance.
    fn enable(&self, of: Option<&TraceInstance>, switch: &EventSwitch) {
        let EventSwitch { on, group, event, .. } = switch;
        if let Some(of) = of {
            let state = self.in_instances.find(of, &name_of(switch));
            state.into_iter().for_each(|state| state.enable(*on));
        } else if let Some(synthetic) = self.synthetic_of(group, event) {
            synthetic.enabled.store(*on, Ordering::SeqCst);
        } else {
            for id in self.ids(group, event).unwrap_or_default() {
                self.probes[id].probe.enabled.store(*on, Ordering::SeqCst);
            }
        }
    }

    /// The triggers of an event at the top, or in an instance.
    pub(crate) fn triggers_at(
        &self,
        of: Option<&TraceInstance>,
        name: &EventName,
    ) -> Vec<Arc<Live>> {
        let (group, event) = name;
        if let Some(of) = of {
            let state = self.in_instances.find(of, name);
            return state.map(|state| state.triggers.clone()).unwrap_or_default();
        }
        Triggers::list_of(match self.synthetic_of(group, event) {
            Some(synthetic) => synthetic.triggers(),
            None => self.first(group, event).ok().and_then(|first| first.probe.triggers()),
        })
    }

    /// The events that have triggers at the top; those of several probes several times. It costs a
    /// load for each probe that has none.
    fn triggered_at_top(&self) -> impl Iterator<Item = Triggered> {
        let probes = self.probes.values().map(|registered| &*registered.probe);
        let probes = probes
            .filter(|probe| probe.records_all())
            .map(|probe| ((Arc::clone(&probe.group), Arc::clone(&probe.event)), probe.triggers()));
        let synthetics = self
            .synthetics
            .values()
            .map(|found| ((Arc::clone(&found.group), Arc::clone(&found.event)), found.triggers()));
        let all = probes.chain(synthetics).map(|(name, all)| (name, Triggers::list_of(all)));
        all.filter(|(_, list)| !list.is_empty())
    }

    /// The events that have triggers at the top, or in an instance.
    pub(crate) fn triggered(&self, of: Option<&TraceInstance>) -> Vec<Triggered> {
        match of {
            None => self.triggered_at_top().collect(),
            Some(of) => {
                let all = self.in_instances.triggered_in(of);
                all.map(|(name, state)| (name.clone(), state.triggers.clone())).collect()
            }
        }
    }

    /// The events that have triggers, those that have some at several places several times.
    fn triggered_anywhere(&self) -> impl Iterator<Item = Triggered> {
        let in_instances = self.in_instances.triggered();
        let in_instances = in_instances.map(|(name, state)| (name.clone(), state.triggers.clone()));
        self.triggered_at_top().chain(in_instances)
    }

    /// Names of the synthetic events that triggers of other events in these switch.
    fn switched_of(triggered: impl Iterator<Item = Triggered>) -> HashSet<String> {
        let mut switched = HashSet::new();
        for ((group, event), list) in triggered {
            let all = list.iter().filter_map(|live| live.switch());
            let others = all.filter(|to| (&*to.group, &*to.event) != (&*group, &*event));
            let synthetic = others.filter(|to| to.group == SYNTHETIC_GROUP);
            switched.extend(synthetic.map(|to| to.event.clone()));
        }
        switched
    }

    /// Names of the synthetic events that triggers of other events switch at the top.
    pub(crate) fn switched_synthetics(&self) -> HashSet<String> {
        Self::switched_of(self.triggered_at_top())
    }

    /// Names of the synthetic events that triggers make, and of those that others switch.
    pub(crate) fn used_synthetics(&self) -> HashSet<String> {
        let mut used = Self::switched_of(self.triggered_anywhere());
        for (_, list) in self.triggered_anywhere() {
            used.extend(list.iter().flat_map(|live| live.makes()).map(str::to_owned));
        }
        used
    }

    /// A histogram of this name, wherever it is.
    pub(crate) fn histogram_named(&self, name: &str) -> Option<Arc<Live>> {
        let is_it = |live: &Arc<Live>| live.name() == Some(name);
        self.triggered_anywhere().find_map(|(_, list)| list.into_iter().find(is_it))
    }

    /// Returns true if a histogram at the top, or in an instance, has a handler that takes
    /// snapshots.
    pub(crate) fn takes_snapshots(&self, of: Option<&TraceInstance>) -> bool {
        let takes = |live: &Arc<Live>| live.snapshot_handlers() > 0;
        self.triggered(of).iter().any(|(_, list)| list.iter().any(takes))
    }

    /// Returns true if a histogram refers to variables of this trigger's.
    pub(crate) fn is_referenced(&self, live: &Live) -> bool {
        self.triggered_anywhere().any(|(_, list)| refer_to(&list, live))
    }

    /// Checks that no histogram is left that refers to variables of events that go with some
    /// probes.
    ///
    /// # Errors
    /// [`VariableError::Referenced`].
    pub(crate) fn check_unreferenced(&self, ids: &[u32]) -> Result<(), VariableError> {
        let all: Vec<Triggered> = self.triggered_anywhere().collect();
        let has_variables = |(_, list): &Triggered| list.iter().any(|live| live.has_variables());
        if !all.iter().any(has_variables) {
            return Ok(());
        }
        let going: HashSet<u32> = ids.iter().copied().collect();
        // An event keeps its triggers as long as it has a probe.
        let goes = |(name, _): &Triggered| {
            let of_event = self.names.get(name);
            of_event.is_some_and(|of_event| of_event.iter().all(|id| going.contains(id)))
        };
        let (leaving, left): (Vec<Triggered>, Vec<Triggered>) = all.into_iter().partition(goes);
        let is_needed = |live: &Arc<Live>| left.iter().any(|(_, list)| refer_to(list, live));
        match leaving.iter().find(|(_, list)| list.iter().any(is_needed)) {
            Some(((_, event), _)) => Err(VariableError::Referenced(event.to_string())),
            None => Ok(()),
        }
    }

    /// Returns true if a trigger of another event switches this one, at the top or in an instance.
    pub(crate) fn is_switched(&self, of: Option<&TraceInstance>, name: &EventName) -> bool {
        if let Some(of) = of {
            return self.in_instances.is_switched(of, name);
        }
        let mut others = self.triggered_at_top().filter(|(other, _)| other != name);
        others.any(|(_, list)| list.iter().any(|live| switches(live, name)))
    }

    /// The events that triggers of some probes switch at the top.
    pub(crate) fn switched_by(&self, ids: &[u32]) -> BTreeSet<(String, String)> {
        let triggers = ids.iter().filter_map(|id| self.probes.get(id)?.probe.triggers());
        triggers.flat_map(|all| switched_events(all.list()).collect::<Vec<_>>()).collect()
    }

    /// The events that triggers of some probes' events switch in instances.
    pub(crate) fn switched_in_instances_by(&self, ids: &[u32]) -> Vec<SwitchedIn> {
        let probes = ids.iter().filter_map(|id| self.probes.get(id)).map(|found| &found.probe);
        let looked_at = probes.filter(|probe| probe.records_all());
        let events: HashSet<EventName> =
            looked_at.map(|probe| (Arc::clone(&probe.group), Arc::clone(&probe.event))).collect();
        let theirs = self.in_instances.triggered().filter(|(name, _)| events.contains(*name));
        let switched = theirs.map(|(_, state)| {
            (Arc::clone(&state.instance), switched_events(&state.triggers).collect())
        });
        switched.collect()
    }

    /// The events with some of their triggers, each with the place of these triggers: `None` at the
    /// top.
    pub(crate) fn events_with(
        &self,
        is_it: impl Fn(&Live) -> bool,
    ) -> Vec<(Option<Arc<TraceInstance>>, EventName)> {
        let has = |list: &[Arc<Live>]| list.iter().any(|live| is_it(live));
        let at_top = self.triggered_at_top().filter(|(_, list)| has(list));
        let in_instances = self.in_instances.triggered();
        let in_instances = in_instances.filter(|(_, state)| has(&state.triggers));
        let in_instances =
            in_instances.map(|(name, state)| (Some(Arc::clone(&state.instance)), name.clone()));
        at_top.map(|(name, _)| (None, name)).chain(in_instances).collect()
    }
}
