//! The active triggers of an event.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::command::{HistChange, Trigger, TriggerError, TriggerKind};
use super::hist::HistTable;
use crate::budget::Share;
use crate::definition::{Argument, Field, Filter};
use crate::events::{Control, Hit, Step, field_value};

/// An active trigger.
pub(crate) struct Live {
    pub(crate) trigger: Trigger,
    filter: Option<Filter<Field>>,
    /// Number of times left; not used without a limit.
    left: AtomicU64,
    /// The entries, for a histogram.
    table: Option<Mutex<HistTable>>,
    /// The memory that the entries may take.
    _room: Option<Share>,
}

/// Fields of an event, for triggers.
pub(crate) struct Fields<'a> {
    pub(crate) list: &'a [Argument],
    pub(crate) is_return: bool,
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
                let mut table = HistTable::new(hist, fields.list, fields.is_return)?;
                table.paused = hist.change == Some(HistChange::Pause);
                Some(Mutex::new(table))
            }
            _ => None,
        };
        let trigger = Trigger { kind: trigger.kind.named(fields.list), ..trigger };
        let left = AtomicU64::new(trigger.count.unwrap_or_default());
        Ok(Self { trigger, filter, left, table, _room: None })
    }

    /// The most memory that its histogram may take, in bytes; `None` if it is none.
    pub(crate) fn most_bytes(&self) -> Option<usize> {
        Some(self.table()?.most_bytes())
    }

    /// The same one, with memory that is given back with it.
    pub(crate) fn within(self, room: Share) -> Self {
        Self { _room: Some(room), ..self }
    }

    /// Its histogram.
    pub(crate) fn table(&self) -> Option<MutexGuard<'_, HistTable>> {
        Some(self.table.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns true if it needs the back-trace of each hit.
    pub(crate) fn wants_stack(&self) -> bool {
        self.trigger.kind == TriggerKind::Stacktrace
            || self.table().is_some_and(|table| table.wants_stack())
    }

    /// Returns true if a hit triggers it, and decrements the times left.
    fn is_set_off(&self, hit: &Hit) -> bool {
        if !self.filter.as_ref().is_none_or(|filter| holds(filter, hit)) {
            return false;
        }
        let take = |left: u64| left.checked_sub(1);
        self.trigger.count.is_none()
            || self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Changes a histogram.
    pub(crate) fn change(&self, change: HistChange) {
        let Some(mut table) = self.table() else { return };
        match change {
            HistChange::Pause => table.paused = true,
            HistChange::Continue => table.paused = false,
            HistChange::Clear => table.clear(),
        }
    }

    /// Its line in the file `trigger`, without the line's end.
    pub(crate) fn line(&self) -> String {
        match self.table() {
            None => self.trigger.to_string(),
            Some(table) => {
                let state = if table.paused { "paused" } else { "active" };
                format!("{} [{state}]", self.trigger)
            }
        }
    }
}

/// Returns true if a filter accepts a recorded hit.
pub(crate) fn holds(filter: &Filter<Field>, hit: &Hit) -> bool {
    filter.holds(&mut |field| field_value(field, hit))
}

/// The triggers of one event, at least one.
pub(crate) struct Triggers {
    list: Vec<Arc<Live>>,
    /// Some trigger needs the back-trace of each hit.
    pub(crate) want_stack: bool,
}

impl Triggers {
    pub(crate) fn new(list: Vec<Arc<Live>>) -> Self {
        let want_stack = list.iter().any(|live| live.wants_stack());
        Self { list, want_stack }
    }

    /// In the order in which they were set.
    pub(crate) fn list(&self) -> &[Arc<Live>] {
        &self.list
    }

    /// The steps that a hit triggers, in order. The hit itself is among them if it becomes an
    /// event: if `is_shown`, or if a trigger gives it a back-trace. Its own back-trace is kept if
    /// `keeps_stack`. Returns whether it became an event.
    pub(crate) fn apply(
        &self,
        mut hit: Hit,
        is_shown: impl FnOnce(&Hit) -> bool,
        keeps_stack: bool,
        steps: &mut Vec<Step>,
    ) -> bool {
        let set_off = |wanted: &TriggerKind| {
            let named = self.list.iter().find(|live| live.trigger.kind.is_same(wanted));
            named.is_some_and(|live| live.is_set_off(&hit))
        };
        let (on, snapshot) = (set_off(&TriggerKind::TraceOn), set_off(&TriggerKind::Snapshot));
        let (off, stack) = (set_off(&TriggerKind::TraceOff), set_off(&TriggerKind::Stacktrace));
        for live in &self.list {
            if let Some(mut table) = live.table().filter(|_| live.is_set_off(&hit)) {
                table.add(&hit);
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
        steps.extend(control((off, Control::Off)));
        shown
    }
}
