//! Events that have triggers: those of probes, and synthetic ones.

use std::sync::Arc;

use exoprobe_introspect::SymbolTable;

use crate::definition::{Action, Argument, Field, Filter, ProbeKind, USER_TEXT, WrittenFilter};
use crate::engine::arguments::list::Arguments;
use crate::engine::control::instances::EventName;
use crate::engine::control::registry::Registry;
use crate::engine::control::synthetic::Synthetic;
use crate::engine::probe::registered::Probe;
use crate::error::ProbeError;
use crate::trigger::{Live, TriggerError, Triggers};

/// An event whose triggers are looked at or changed.
pub(super) enum Subject {
    /// The event of some probes: the first of them, and their numbers.
    Probes(Arc<Probe>, Vec<u32>),
    /// A synthetic event.
    Synthetic(Arc<Synthetic>),
}

impl Subject {
    /// Finds an event.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub(super) fn find(registry: &Registry, group: &str, event: &str) -> Result<Self, ProbeError> {
        if let Some(found) = registry.synthetic_of(group, event) {
            return Ok(Self::Synthetic(Arc::clone(found)));
        }
        let ids = registry.ids(group, event)?.to_vec();
        Ok(Self::Probes(Arc::clone(&registry.first(group, event)?.probe), ids))
    }

    pub(super) fn name(&self) -> &Arc<str> {
        match self {
            Self::Probes(probe, _) => &probe.event,
            Self::Synthetic(synthetic) => &synthetic.event,
        }
    }

    /// Its group and name.
    pub(super) fn full_name(&self) -> EventName {
        match self {
            Self::Probes(probe, _) => (Arc::clone(&probe.group), Arc::clone(&probe.event)),
            Self::Synthetic(found) => (Arc::clone(&found.group), Arc::clone(&found.event)),
        }
    }

    /// Its fields, as far as they are known.
    pub(super) fn list(&self) -> Arc<[Argument]> {
        match self {
            Self::Probes(probe, _) if !probe.has_arguments() => Arc::default(),
            Self::Probes(probe, _) => Arc::clone(&probe.arguments().list),
            Self::Synthetic(synthetic) => Arc::clone(&synthetic.arguments.list),
        }
    }

    /// A filter over its records.
    ///
    /// # Errors
    /// [`ProbeError::Filter`], [`TriggerError::UserText`]; [`TriggerError::Pending`] where its
    /// fields are not known yet.
    pub(super) fn filter(
        &self,
        filter: &WrittenFilter,
        symbols: Option<&SymbolTable>,
    ) -> Result<Option<Filter<Field>>, ProbeError> {
        if let Self::Probes(probe, _) = self
            && !probe.has_arguments()
        {
            return Err(TriggerError::Pending.into());
        }
        match self {
            Self::Probes(probe, _) => probe.arguments().filter(self.kind(), Some(filter), symbols),
            Self::Synthetic(synthetic) => {
                let Arguments { list, .. } = &synthetic.arguments;
                let found = synthetic.arguments.filter(None, Some(filter), symbols)?;
                check_recorded(found.as_ref(), list)?;
                Ok(found)
            }
        }
    }

    /// Its triggers, and the trace instances that look at its hits.
    pub(super) fn looks(&self) -> Option<Arc<Triggers>> {
        match self {
            Self::Probes(probe, _) => probe.triggers(),
            Self::Synthetic(synthetic) => synthetic.triggers(),
        }
    }

    /// The kind of its probes.
    pub(super) fn kind(&self) -> Option<ProbeKind> {
        match self {
            Self::Probes(probe, _) => Some(probe.definition.kind),
            Self::Synthetic(_) => None,
        }
    }

    pub(super) fn is_return(&self) -> bool {
        matches!(self, Self::Probes(probe, _) if probe.returns().is_some())
    }

    /// Checks that it has the back-trace that a trigger needs.
    ///
    /// # Errors
    /// [`TriggerError::NoStack`].
    pub(super) fn check_stack(&self, live: &Live) -> Result<(), TriggerError> {
        match matches!(self, Self::Synthetic(_)) && live.wants_stack() {
            true => Err(TriggerError::NoStack),
            false => Ok(()),
        }
    }

    /// Checks that it can have triggers, and calls back with its arguments.
    ///
    /// # Errors
    /// As [`check_records`], and those of the callback.
    pub(super) fn with_arguments<T>(
        &self,
        then: impl FnOnce(&Arguments) -> Result<T, ProbeError>,
    ) -> Result<T, ProbeError> {
        match self {
            Self::Probes(probe, _) => {
                check_records(probe)?;
                then(&probe.arguments())
            }
            Self::Synthetic(synthetic) => then(&synthetic.arguments),
        }
    }
}

/// Checks that all hits of a probe can be recorded, and that filters over its fields can be
/// evaluated later.
pub(super) fn check_records(probe: &Probe) -> Result<(), ProbeError> {
    check_only_records(probe)?;
    match probe.has_arguments() {
        true => Ok(()),
        false => Err(TriggerError::Pending.into()),
    }
}

/// Checks that a probe records its hits and does nothing else: all else would be done by hits that
/// are not wanted for it.
fn check_only_records(probe: &Probe) -> Result<(), ProbeError> {
    let records = matches!(probe.actions.as_slice(), [Action::Record | Action::Stack]);
    match !records || probe.has_handlers() || probe.consumer.is_some() {
        true => Err(TriggerError::NotOnlyRecords.into()),
        false => Ok(()),
    }
}

/// Checks that all hits of a probe can be recorded for trace instances, and the filter of its event
/// evaluated later.
///
/// # Errors
/// [`TriggerError::NotOnlyRecords`]; [`TriggerError::Pending`] where the filter's fields are not
/// known yet.
pub(super) fn check_shared(probe: &Probe) -> Result<(), ProbeError> {
    check_only_records(probe)?;
    match (probe.has_arguments(), probe.event_filter.written()) {
        (false, Some(_)) => Err(TriggerError::Pending.into()),
        _ => Ok(()),
    }
}

/// Checks that records of a synthetic event have all that a filter compares.
///
/// # Errors
/// [`TriggerError::UserText`].
pub(crate) fn check_recorded(
    filter: Option<&Filter<Field>>,
    list: &[Argument],
) -> Result<(), ProbeError> {
    let Some(filter) = filter else { return Ok(()) };
    let is_of =
        |index: &usize| filter.asks_for(&|field| field == Field::UserText { index: *index });
    match (0..list.len()).find(is_of) {
        Some(index) => Err(TriggerError::UserText(list[index].name.clone() + USER_TEXT).into()),
        None => Ok(()),
    }
}
