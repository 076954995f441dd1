//! The active triggers of an event.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::command::{EventSwitch, Hist, HistChange, Trigger, TriggerKind};
use super::error::TriggerError;
use super::expression::Variable;
use super::hist::HistTable;
use super::tracked::MadeEvent;
use super::variables::Variables;
use crate::budget::Share;
use crate::definition::{Argument, Field, Filter};
use crate::events::{Control, Hit, Step, TraceInstance, field_value};

/// An active trigger.
pub(crate) struct Live {
    pub(crate) trigger: Trigger,
    filter: Option<Filter<Field>>,
    /// Number of times left; not used without a limit.
    left: AtomicU64,
    /// The entries, for a histogram.
    table: Option<HistTable>,
    /// It was made for a handler of another histogram, which refers to its variable.
    pub(crate) is_made: bool,
}

/// The events that triggers switch: of a trace instance in that instance, of the top at the top
/// (`None`).
pub(crate) trait SwitchedEvents {
    /// Returns true if an event is not yet as a switch makes it.
    fn is_due(&self, of: Option<&TraceInstance>, switch: &EventSwitch) -> bool;

    /// Switches an event.
    fn switch(&self, of: Option<&TraceInstance>, switch: &EventSwitch);
}

/// Fields of an event, for triggers.
pub(crate) struct Fields<'a> {
    pub(crate) list: &'a [Argument],
    pub(crate) is_return: bool,
    /// The variables that histograms may refer to.
    pub(crate) variables: &'a dyn Variables,
}

impl Live {
    /// A new one; `filter` is the trigger's own, resolved over the event's fields.
    ///
    /// # Errors
    /// [`TriggerError`].
    pub(crate) fn new(
        trigger: Trigger,
        filter: Option<Filter<Field>>,
        fields: &Fields<'_>,
    ) -> Result<Self, TriggerError> {
        let table = match &trigger.kind {
            TriggerKind::Hist(hist) => {
                let Fields { list, is_return, variables } = *fields;
                Some(HistTable::new(hist, list, is_return, variables)?)
            }
            _ => None,
        };
        let trigger = Trigger { kind: trigger.kind.with_listed_names(fields.list), ..trigger };
        let left = AtomicU64::new(trigger.count.unwrap_or_default());
        Ok(Self { trigger, filter, left, table, is_made: false })
    }

    /// A histogram of the same event by the same keys and with the same filter, which only sets a
    /// variable. It goes when no other one refers to it any more.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn setting(
        &self,
        variable: Variable,
        fields: &Fields<'_>,
    ) -> Result<Self, TriggerError> {
        let Trigger { kind, filter, .. } = &self.trigger;
        let keys = match kind {
            TriggerKind::Hist(hist) => hist.keys.as_slice(),
            _ => &[],
        };
        let kind = TriggerKind::Hist(Hist::setting(keys, variable));
        let trigger = Trigger { kind, count: None, filter: filter.clone() };
        Ok(Self { is_made: true, ..Self::new(trigger, self.filter.clone(), fields)? })
    }

    /// The most memory that its histogram may take, in bytes; `None` if it is none.
    pub(crate) fn most_bytes(&self) -> Option<usize> {
        Some(self.table()?.most_bytes())
    }

    /// The same one, with memory that is given back with it.
    pub(crate) fn within(self, room: Share) -> Self {
        Self { table: self.table.map(|table| table.within(room)), ..self }
    }

    /// The same one, with the entries of another histogram of its name.
    ///
    /// # Errors
    /// [`TriggerError::OtherOfName`].
    pub(crate) fn sharing(self, other: &Self) -> Result<Self, TriggerError> {
        let Self { trigger, table, .. } = self;
        let table = table.zip(other.table.as_ref());
        let table = table.map(|(table, other)| table.sharing(other)).transpose()?;
        let kind = table.as_ref().map(|table| TriggerKind::Hist(table.hist.clone()));
        let trigger = Trigger { kind: kind.unwrap_or(trigger.kind), ..trigger };
        Ok(Self { trigger, table, ..self })
    }

    /// Its histogram.
    pub(crate) fn table(&self) -> Option<&HistTable> {
        self.table.as_ref()
    }

    /// Returns true if its histogram has variables.
    pub(crate) fn has_variables(&self) -> bool {
        self.table().is_some_and(|table| !table.hist.variables.is_empty())
    }

    /// Returns true if its histogram refers to variables of another trigger's histogram.
    pub(crate) fn refers_to(&self, other: &Self) -> bool {
        let tables = self.table().zip(other.table());
        tables.is_some_and(|(table, other)| table.refers_to(other))
    }

    /// The synthetic events that handlers of its histogram make.
    pub(crate) fn makes(&self) -> impl Iterator<Item = &str> {
        self.table().into_iter().flat_map(HistTable::makes)
    }

    /// Number of its histogram's handlers that take snapshots.
    pub(crate) fn snapshot_handlers(&self) -> usize {
        self.table().map_or(0, HistTable::snapshot_handlers)
    }

    /// Its histogram's name.
    pub(crate) fn name(&self) -> Option<&str> {
        self.table.as_ref()?.hist.name.as_deref()
    }

    /// The event that it switches, if it does.
    pub(crate) fn switch(&self) -> Option<&EventSwitch> {
        match &self.trigger.kind {
            TriggerKind::Switch(switch) => Some(switch),
            _ => None,
        }
    }

    /// Returns true if it needs the back-trace of each hit.
    pub(crate) fn wants_stack(&self) -> bool {
        self.trigger.kind == TriggerKind::Stacktrace
            || self.table().is_some_and(|table| table.wants_stack())
    }

    /// Returns true if a hit triggers it, and decrements the times left.
    fn is_set_off(&self, hit: &Hit) -> bool {
        self.accepts(hit) && self.take_once()
    }

    fn accepts(&self, hit: &Hit) -> bool {
        self.filter.as_ref().is_none_or(|filter| holds(filter, hit))
    }

    fn take_once(&self) -> bool {
        let take = |left: u64| left.checked_sub(1);
        self.trigger.count.is_none()
            || self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Changes a histogram.
    pub(crate) fn change(&self, change: HistChange) {
        let Some(table) = self.table() else { return };
        match change {
            HistChange::Pause => table.paused.store(true, Ordering::Relaxed),
            HistChange::Continue => table.paused.store(false, Ordering::Relaxed),
            HistChange::Clear => table.clear(),
        }
    }

    /// Its line in the file `trigger`, without the line's end.
    pub(crate) fn line(&self) -> String {
        match self.table() {
            None => {
                let left = self.trigger.count.map(|_| self.left.load(Ordering::Relaxed));
                Trigger { count: left, ..self.trigger.clone() }.to_string()
            }
            Some(table) => {
                let state = if table.paused.load(Ordering::Relaxed) { "paused" } else { "active" };
                format!("{} [{state}]", self.trigger)
            }
        }
    }
}

/// Returns true if a filter accepts a recorded hit.
pub(crate) fn holds(filter: &Filter<Field>, hit: &Hit) -> bool {
    filter.holds(&mut |field| field_value(field, hit))
}

/// The events that some triggers switch.
pub(crate) fn switched_events(list: &[Arc<Live>]) -> impl Iterator<Item = (String, String)> {
    list.iter().filter_map(|live| live.switch()).map(|to| (to.group.clone(), to.event.clone()))
}

/// A step for the events of a trace instance.
pub(crate) type GivenStep = (Arc<TraceInstance>, Step);

/// A trace instance that looks at the hits of an event.
pub(crate) struct Taker {
    pub(crate) instance: Arc<TraceInstance>,
    /// The event is enabled there. Triggers of the instance may switch it.
    pub(crate) enabled: Arc<AtomicBool>,
    /// The event's filter there.
    pub(crate) filter: Option<Arc<Filter<Field>>>,
    /// The event's triggers there.
    pub(crate) list: Vec<Arc<Live>>,
    /// Triggers of other events switch it there.
    pub(crate) is_switched: bool,
}

impl Taker {
    /// Returns true if a hit is an event of the instance.
    fn shows(&self, hit: &Hit) -> bool {
        let accepts = || self.filter.as_ref().is_none_or(|filter| holds(filter, hit));
        self.enabled.load(Ordering::SeqCst) && accepts()
    }
}

/// All that sees every hit of one event: its triggers, those of other events that switch it, and
/// trace instances. There is at least one of these.
pub(crate) struct Triggers {
    list: Vec<Arc<Live>>,
    /// The trace instances that have the event enabled, or triggers of it, or that switch it.
    takers: Vec<Taker>,
    /// Triggers of other events switch this one: all its hits are recorded meanwhile.
    pub(crate) is_switched: bool,
    /// Some trigger needs the back-trace of each hit.
    pub(crate) want_stack: bool,
}

impl Triggers {
    /// `None` where nothing is to be done with hits.
    pub(crate) fn new(
        list: Vec<Arc<Live>>,
        is_switched: bool,
        takers: Vec<Taker>,
    ) -> Option<Arc<Self>> {
        let mut all = list.iter().chain(takers.iter().flat_map(|taker| &taker.list));
        let want_stack = all.any(|live| live.wants_stack());
        let is_needed = is_switched || !list.is_empty() || !takers.is_empty();
        is_needed.then(|| Arc::new(Self { list, takers, is_switched, want_stack }))
    }

    /// The conditions of all triggers, and the event's filters in trace instances.
    pub(crate) fn filters(&self) -> impl Iterator<Item = &Filter<Field>> {
        let in_instances = self.takers.iter().filter_map(|taker| taker.filter.as_deref());
        let all = self.list.iter().chain(self.takers.iter().flat_map(|taker| &taker.list));
        in_instances.chain(all.filter_map(|live| live.filter.as_ref()))
    }

    /// The trace instances that have the event enabled.
    pub(crate) fn shown_in(&self) -> impl Iterator<Item = &Arc<TraceInstance>> {
        let enabled = self.takers.iter().filter(|taker| taker.enabled.load(Ordering::SeqCst));
        enabled.map(|taker| &taker.instance)
    }

    /// Number of triggers, and one for those that switch this event; not those of instances.
    pub(crate) fn number(&self) -> usize {
        self.list.len() + usize::from(self.is_switched)
    }

    /// The triggers of an event, which may have none.
    pub(crate) fn list_of(triggers: Option<Arc<Self>>) -> Vec<Arc<Live>> {
        triggers.map(|triggers| triggers.list().to_vec()).unwrap_or_default()
    }

    /// The newest first, then histograms in the order in which they were set.
    pub(crate) fn list(&self) -> &[Arc<Live>] {
        &self.list
    }

    /// Returns true if triggers of other events switch this one at the top, or in an instance.
    pub(crate) fn is_switched_anywhere(&self) -> bool {
        self.is_switched || self.takers.iter().any(|taker| taker.is_switched)
    }

    /// Returns true if triggers of other events switch this one in an instance.
    pub(crate) fn is_switched_in(&self, of: &TraceInstance) -> bool {
        let is_it = |taker: &Taker| std::ptr::eq(Arc::as_ptr(&taker.instance), of);
        self.takers.iter().any(|taker| taker.is_switched && is_it(taker))
    }

    /// As [`Self::apply`] for each trace instance, by its own triggers: adds steps to `given`.
    /// Returns true if the hit became an event of an instance.
    pub(crate) fn give(
        &self,
        hit: &Hit,
        events: &impl SwitchedEvents,
        keeps_stack: bool,
        given: &mut Vec<GivenStep>,
        made: &mut Vec<MadeEvent>,
    ) -> bool {
        let mut is_kept = false;
        for taker in &self.takers {
            // Most instances have no triggers, and so nothing to do with a hit that they refuse.
            if taker.list.is_empty() && !taker.shows(hit) {
                continue;
            }
            let instance = &taker.instance;
            let set = SetOff { list: &taker.list, of: Some(instance), keeps_stack };
            let mut steps = Vec::new();
            let is_shown = |hit: &Hit| taker.shows(hit);
            is_kept |= set.apply(hit.clone(), events, is_shown, &mut steps, made);
            given.extend(steps.into_iter().map(|step| (Arc::clone(instance), step)));
        }
        is_kept
    }

    /// Switches events, and gives the steps that a hit triggers, in order. The hit itself is among
    /// them if it becomes an event: if `is_shown`, or if a trigger gives it a back-trace. Its own
    /// back-trace is kept if `keeps_stack`. Adds the events that handlers make. Returns whether
    /// the hit became an event.
    pub(crate) fn apply(
        &self,
        hit: Hit,
        events: &impl SwitchedEvents,
        is_shown: impl FnOnce(&Hit) -> bool,
        keeps_stack: bool,
        steps: &mut Vec<Step>,
        made: &mut Vec<MadeEvent>,
    ) -> bool {
        let set = SetOff { list: &self.list, of: None, keeps_stack };
        set.apply(hit, events, is_shown, steps, made)
    }
}

/// The triggers of an event at one place, which a hit sets off.
struct SetOff<'a> {
    list: &'a [Arc<Live>],
    /// The trace instance that they are of.
    of: Option<&'a Arc<TraceInstance>>,
    keeps_stack: bool,
}

impl SetOff<'_> {
    /// See [`Triggers::apply`].
    fn apply(
        &self,
        mut hit: Hit,
        events: &impl SwitchedEvents,
        is_shown: impl FnOnce(&Hit) -> bool,
        steps: &mut Vec<Step>,
        made: &mut Vec<MadeEvent>,
    ) -> bool {
        let set_off = |wanted: &TriggerKind| {
            let named = self.list.iter().find(|live| live.trigger.kind.is_same(wanted));
            named.is_some_and(|live| live.is_set_off(&hit))
        };
        self.switch(&hit, events);
        let (on, snapshot) = (set_off(&TriggerKind::TraceOn), set_off(&TriggerKind::Snapshot));
        let (off, stack) = (set_off(&TriggerKind::TraceOff), set_off(&TriggerKind::Stacktrace));
        let mut handled = false;
        for live in self.list {
            if let Some(table) = live.table().filter(|_| live.is_set_off(&hit)) {
                handled |= table.add(&hit, made);
            }
        }
        let before = [(on, Control::On), (snapshot, Control::Snapshot)];
        let control = |(is, control): (bool, Control)| is.then_some(Step::Control(control));
        steps.extend(before.into_iter().filter_map(control));
        let shown = stack || is_shown(&hit);
        if shown {
            if !stack && !self.keeps_stack {
                hit.record.stack.clear();
            }
            steps.push(Step::Keep(hit));
        }
        // As in the kernel: the hit is in the snapshot that a histogram's handler takes.
        let after = [(handled, Control::Snapshot), (off, Control::Off)];
        steps.extend(after.into_iter().filter_map(control));
        shown
    }

    /// Switches the events that a hit switches.
    fn switch(&self, hit: &Hit, events: &impl SwitchedEvents) {
        let of = self.of.map(|instance| &**instance);
        for live in self.list {
            if let Some(switch) = live.switch().filter(|_| live.accepts(hit)) {
                // One of no effect does not count.
                if events.is_due(of, switch) && live.take_once() {
                    events.switch(of, switch);
                }
            }
        }
    }
}
