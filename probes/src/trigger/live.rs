//! The active triggers of an event.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::command::{EventSwitch, HistChange, Trigger, TriggerKind};
use super::error::TriggerError;
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
}

/// The events that triggers switch.
pub(crate) trait SwitchedEvents {
    /// Returns true if an event is not yet as a switch makes it.
    fn is_due(&self, switch: &EventSwitch) -> bool;

    /// Switches an event.
    fn switch(&self, switch: &EventSwitch);
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
        Ok(Self { trigger, filter, left, table })
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

/// A hit for a trace instance.
pub(crate) type GivenHit = (Arc<TraceInstance>, Hit);

/// A trace instance that has an event enabled, with the event's filter there.
pub(crate) struct Taker {
    pub(crate) instance: Arc<TraceInstance>,
    pub(crate) filter: Option<Arc<Filter<Field>>>,
}

/// All that sees every hit of one event: its triggers, those of other events that switch it, and
/// trace instances. There is at least one of these.
pub(crate) struct Triggers {
    list: Vec<Arc<Live>>,
    /// The trace instances that have the event enabled.
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
        let want_stack = list.iter().any(|live| live.wants_stack());
        let is_needed = is_switched || !list.is_empty() || !takers.is_empty();
        is_needed.then(|| Arc::new(Self { list, takers, is_switched, want_stack }))
    }

    /// Number of triggers, and one for those that switch this event.
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

    /// Adds a copy of the hit for each instance whose filter accepts it. The back-trace is among it
    /// if `keeps_stack`. Returns true if there is such an instance.
    pub(crate) fn give(&self, hit: &Hit, keeps_stack: bool, given: &mut Vec<GivenHit>) -> bool {
        let before = given.len();
        let accepts = |taker: &&Taker| taker.filter.as_ref().is_none_or(|f| holds(f, hit));
        for taker in self.takers.iter().filter(accepts) {
            let mut hit = hit.clone();
            if !keeps_stack {
                hit.record.stack.clear();
            }
            given.push((Arc::clone(&taker.instance), hit));
        }
        given.len() > before
    }

    /// Switches events, and gives the steps that a hit triggers, in order. The hit itself is among
    /// them if it becomes an event: if `is_shown`, or if a trigger gives it a back-trace. Its own
    /// back-trace is kept if `keeps_stack`. Adds the events that handlers make. Returns whether
    /// the hit became an event.
    pub(crate) fn apply(
        &self,
        mut hit: Hit,
        events: &impl SwitchedEvents,
        is_shown: impl FnOnce(&Hit) -> bool,
        keeps_stack: bool,
        steps: &mut Vec<Step>,
        made: &mut Vec<MadeEvent>,
    ) -> bool {
        let set_off = |wanted: &TriggerKind| {
            let named = self.list.iter().find(|live| live.trigger.kind.is_same(wanted));
            named.is_some_and(|live| live.is_set_off(&hit))
        };
        for live in &self.list {
            if let Some(switch) = live.switch().filter(|_| live.accepts(&hit)) {
                // One of no effect does not count.
                if events.is_due(switch) && live.take_once() {
                    events.switch(switch);
                }
            }
        }
        let (on, snapshot) = (set_off(&TriggerKind::TraceOn), set_off(&TriggerKind::Snapshot));
        let (off, stack) = (set_off(&TriggerKind::TraceOff), set_off(&TriggerKind::Stacktrace));
        let mut handled = false;
        for live in &self.list {
            if let Some(table) = live.table().filter(|_| live.is_set_off(&hit)) {
                handled |= table.add(&hit, made);
            }
        }
        let before = [(on, Control::On), (snapshot, Control::Snapshot)];
        let control = |(is, control): (bool, Control)| is.then_some(Step::Control(control));
        steps.extend(before.into_iter().filter_map(control));
        let shown = stack || is_shown(&hit);
        if shown {
            if !stack && !keeps_stack {
                hit.record.stack.clear();
            }
            steps.push(Step::Keep(hit));
        }
        // As in the kernel: the hit is in the snapshot that a histogram's handler takes.
        let after = [(handled, Control::Snapshot), (off, Control::Off)];
        steps.extend(after.into_iter().filter_map(control));
        shown
    }
}
