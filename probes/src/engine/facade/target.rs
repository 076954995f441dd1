//! A trigger that an event gets or loses.

use std::sync::Arc;

use exoprobe_introspect::SymbolTable;

use crate::engine::control::registry::Registry;
use crate::engine::control::state::Control;
use crate::engine::facade::subject::{Subject, check_recorded, check_records};
use crate::engine::facade::variables::{Made, TRIGGERS_MAX, VariablesOf};
use crate::error::ProbeError;
use crate::events::TraceInstance;
use crate::trigger::{
    EventSwitch, Fields, Hist, HistChange, Live, Trigger, TriggerError, TriggerKind, VariableError,
};

/// The changed triggers of an event.
pub(super) struct Changed {
    pub(super) list: Vec<Arc<Live>>,
    /// Histograms of other events that are to be set, too.
    pub(super) made: Vec<Made>,
}

/// An event, at the place of its triggers.
pub(super) struct Target<'a> {
    registry: &'a Registry,
    symbols: Option<&'a SymbolTable>,
    of: Option<&'a TraceInstance>,
    subject: &'a Subject,
}

impl<'a> Target<'a> {
    pub(super) fn new(
        control: &'a Control,
        of: Option<&'a Arc<TraceInstance>>,
        subject: &'a Subject,
    ) -> Self {
        let (registry, symbols) = (&control.registry, control.symbols());
        Self { registry, symbols, of: of.map(|of| &**of), subject }
    }

    /// Where a trigger is among those of the event.
    fn position(&self, there: &[Arc<Live>], of: &Trigger) -> Option<usize> {
        let kind = of.kind.clone().with_listed_names(&self.subject.list());
        let of = Trigger { kind, ..of.clone() };
        there.iter().position(|live| live.trigger.is_same(&of))
    }

    /// The triggers without one; `None` without a change.
    pub(super) fn without(
        &self,
        there: &[Arc<Live>],
        trigger: &Trigger,
    ) -> Result<Option<Changed>, ProbeError> {
        check_switched(self.registry, trigger, false)?;
        // As in the kernel: one that there is not is removed already, as when the file was opened
        // anew.
        let Some(at) = self.position(there, trigger) else { return Ok(None) };
        if self.registry.is_referenced(&there[at]) {
            return Err(VariableError::Referenced(self.subject.name().to_string()).into());
        }
        let mut list = there.to_vec();
        list.remove(at);
        Ok(Some(Changed { list, made: Vec::new() }))
    }

    /// The triggers with a new one; `None` where a histogram was changed.
    pub(super) fn with(
        &self,
        there: &[Arc<Live>],
        trigger: Trigger,
    ) -> Result<Option<Changed>, ProbeError> {
        let name = trigger.kind.name();
        check_names(&trigger, there)?;
        match (self.position(there, &trigger), hist_change(&trigger)) {
            (Some(at), Some(change)) => {
                there[at].change(change);
                Ok(None)
            }
            (Some(_), None) => Err(TriggerError::There(name).into()),
            (None, Some(HistChange::Continue | HistChange::Clear)) => {
                Err(TriggerError::NotThere(name).into())
            }
            (None, _) => self.with_new(there, trigger).map(Some),
        }
    }

    fn with_new(&self, there: &[Arc<Live>], trigger: Trigger) -> Result<Changed, ProbeError> {
        if there.len() >= TRIGGERS_MAX {
            return Err(TriggerError::TooMany(TRIGGERS_MAX).into());
        }
        // None is made of the event's own fields: its hits have these.
        let (new, made) = self.live(trigger)?;
        let new = [Arc::new(new)];
        // As in the kernel, the newest comes first, but for histograms.
        let list = match new[0].table() {
            Some(_) => [there, &new].concat(),
            None => [&new[..], there].concat(),
        };
        Ok(Changed { list, made })
    }

    /// A new trigger of the event, and histograms that are to be set with it.
    pub(super) fn live(&self, trigger: Trigger) -> Result<(Live, Vec<Made>), ProbeError> {
        let Self { registry, symbols, of, subject } = *self;
        check_switched(registry, &trigger, true)?;
        let is_return = subject.is_return();
        let variables = VariablesOf::new(registry, of);
        let new = subject.with_arguments(|arguments| {
            let filter = arguments.filter(subject.kind(), trigger.filter.as_ref(), symbols)?;
            if matches!(subject, Subject::Synthetic(_)) {
                check_recorded(filter.as_ref(), &arguments.list)?;
            }
            let fields = Fields { list: &arguments.list, is_return, variables: &variables };
            Ok(Live::new(trigger, filter, &fields)?)
        })?;
        subject.check_stack(&new)?;
        let new = match new.name().and_then(|name| registry.histogram_named(name)) {
            Some(other) => new.sharing(&other)?,
            None => {
                self.check_snapshots(&new)?;
                self.with_room(new)?
            }
        };
        let made = variables.into_made().into_iter();
        let made = made.map(|made| Ok(Made { live: self.with_room(made.live)?, ..made }));
        Ok((new, made.collect::<Result<_, ProbeError>>()?))
    }

    /// The same trigger, with memory for its histogram.
    fn with_room(&self, new: Live) -> Result<Live, ProbeError> {
        Ok(match new.most_bytes() {
            Some(bytes) => new.within(self.registry.room.take(bytes)?),
            None => new,
        })
    }

    /// Checks that one handler at most takes snapshots at this place, as in the kernel.
    ///
    /// # Errors
    /// [`TriggerError::TakesSnapshots`].
    fn check_snapshots(&self, new: &Live) -> Result<(), TriggerError> {
        match new.snapshot_handlers() {
            0 => Ok(()),
            1 if !self.registry.takes_snapshots(self.of) => Ok(()),
            _ => Err(TriggerError::TakesSnapshots),
        }
    }
}

fn hist_change(trigger: &Trigger) -> Option<HistChange> {
    match &trigger.kind {
        TriggerKind::Hist(hist) => hist.change,
        _ => None,
    }
}

/// Checks that no histogram of an event has a variable of a name that a new one has.
///
/// # Errors
/// [`VariableError::Duplicate`].
fn check_names(new: &Trigger, there: &[Arc<Live>]) -> Result<(), VariableError> {
    let TriggerKind::Hist(Hist { variables, .. }) = &new.kind else { return Ok(()) };
    let is_there = |name: &str| {
        let mut tables = there.iter().filter_map(|live| live.table());
        tables.any(|table| table.variable(name).is_some())
    };
    match variables.iter().find(|variable| is_there(&variable.name)) {
        Some(variable) => Err(VariableError::Duplicate(variable.name.clone())),
        None => Ok(()),
    }
}

/// Checks that the event that a trigger switches is there, and can be switched.
///
/// # Errors
/// [`TriggerError::NoEvent`]; as [`check_records`], where `is_set` wants the trigger set.
fn check_switched(registry: &Registry, trigger: &Trigger, is_set: bool) -> Result<(), ProbeError> {
    let TriggerKind::Switch(EventSwitch { group, event, .. }) = &trigger.kind else {
        return Ok(());
    };
    match Subject::find(registry, group, event) {
        Ok(Subject::Probes(probe, _)) if is_set => check_records(&probe),
        Ok(_) => Ok(()),
        Err(_) => Err(TriggerError::NoEvent(format!("{group}:{event}")).into()),
    }
}
