//! Triggers of events in trace instances: of each event, every instance has its own.

use std::sync::Arc;

use crate::engine::facade::engine::Engine;
use crate::error::ProbeError;
use crate::events::TraceInstance;
use crate::trigger::{HistogramTable, TriggerCommand};

impl Engine {
    /// As [`Self::set_trigger`], of an event in an instance: what it does is of that instance.
    ///
    /// # Errors
    /// As [`Self::set_trigger`], and [`ProbeError::NoInstance`].
    pub fn set_trigger_in(
        &self,
        instance: &Arc<TraceInstance>,
        event: (&str, &str),
        command: TriggerCommand,
    ) -> Result<(), ProbeError> {
        self.set_trigger_at(Some(instance), event, command)
    }

    /// As [`Self::check_trigger`], of an event in an instance.
    ///
    /// # Errors
    /// As [`Self::check_trigger`], and [`ProbeError::NoInstance`].
    pub fn check_trigger_in(
        &self,
        instance: &Arc<TraceInstance>,
        event: (&str, &str),
        command: TriggerCommand,
    ) -> Result<(), ProbeError> {
        self.check_trigger_at(Some(instance), event, command)
    }

    /// As [`Self::remove_histograms`], of an event in an instance.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`], [`ProbeError::NoInstance`].
    pub fn remove_histograms_in(
        &self,
        instance: &Arc<TraceInstance>,
        event: (&str, &str),
    ) -> Result<(), ProbeError> {
        self.remove_histograms_at(Some(instance), event)
    }

    /// As [`Self::triggers`], of an event in an instance.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub fn triggers_in(
        &self,
        instance: &Arc<TraceInstance>,
        event: (&str, &str),
    ) -> Result<Vec<String>, ProbeError> {
        self.triggers_at(Some(instance), event)
    }

    /// As [`Self::histogram_tables`], of an event in an instance.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub fn histogram_tables_in(
        &self,
        instance: &Arc<TraceInstance>,
        event: (&str, &str),
    ) -> Result<Vec<HistogramTable>, ProbeError> {
        self.histogram_tables_at(Some(instance), event)
    }

    /// Returns true if a histogram in an instance has variables.
    #[must_use]
    pub fn has_variables_in(&self, instance: &TraceInstance) -> bool {
        let control = self.lock();
        let mut triggered = control.registry.in_instances.triggered_in(instance);
        triggered.any(|(_, state)| state.triggers.iter().any(|live| live.has_variables()))
    }

    /// Returns true if a histogram's handler takes snapshots of an instance.
    #[must_use]
    pub fn takes_snapshots_in(&self, instance: &TraceInstance) -> bool {
        self.lock().registry.takes_snapshots(Some(instance))
    }
}
