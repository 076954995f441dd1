//! Where events are enabled and filtered, and kept: at the top, or in a trace instance.

use std::collections::HashSet;
use std::sync::Arc;

use exoprobe_probes::definition::{RefusedFilter, WrittenFilter};
use exoprobe_probes::trigger::{HistogramTable, TriggerCommand};
use exoprobe_probes::{Engine, EventStore, InstanceEventStatus, ProbeError, TraceInstance};

use crate::error::TracerError;

/// The engine, at the top or in a trace instance.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(crate) engine: &'a Engine,
    /// `None` at the top.
    pub(crate) own: Option<&'a Arc<TraceInstance>>,
}

/// An event's filter, as written, and the one that was refused last.
pub(crate) type ShownFilter = (Option<String>, Option<Arc<RefusedFilter>>);

impl<'a> Scope<'a> {
    /// The events that are kept.
    pub(crate) fn store(self) -> &'a EventStore {
        self.own.map_or_else(|| self.engine.events(), |own| own.events())
    }

    /// Group and name of each event that is enabled or has triggers; `None` at the top, where
    /// events have that themselves.
    pub(crate) fn armed(self) -> Option<HashSet<(Arc<str>, Arc<str>)>> {
        Some(self.engine.armed_in(self.own?).into_iter().collect())
    }

    /// The state of an event in the instance; `None` at the top.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub(crate) fn status(
        self,
        event: (&str, &str),
    ) -> Result<Option<InstanceEventStatus>, ProbeError> {
        self.own.map(|own| self.engine.status_in(own, event)).transpose()
    }

    pub(crate) fn set_trigger(
        self,
        event: (&str, &str),
        command: TriggerCommand,
    ) -> Result<(), ProbeError> {
        self.engine.set_trigger_at(self.own, event, command)
    }

    pub(crate) fn check_trigger(
        self,
        event: (&str, &str),
        command: TriggerCommand,
    ) -> Result<(), ProbeError> {
        self.engine.check_trigger_at(self.own, event, command)
    }

    pub(crate) fn remove_histograms(self, event: (&str, &str)) -> Result<(), ProbeError> {
        self.engine.remove_histograms_at(self.own, event)
    }

    pub(crate) fn triggers(self, event: (&str, &str)) -> Result<Vec<String>, ProbeError> {
        self.engine.triggers_at(self.own, event)
    }

    pub(crate) fn histogram_tables(
        self,
        event: (&str, &str),
    ) -> Result<Vec<HistogramTable>, ProbeError> {
        self.engine.histogram_tables_at(self.own, event)
    }

    pub(crate) fn takes_snapshots(self) -> bool {
        self.engine.takes_snapshots_at(self.own)
    }

    /// The filter of an event, which is `of_top` at the top.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub(crate) fn filter(
        self,
        (group, event): (&str, &str),
        of_top: Option<&String>,
    ) -> Result<ShownFilter, ProbeError> {
        Ok(match self.own {
            None => (of_top.cloned(), self.engine.refused_filter(group, event)),
            Some(own) => {
                let status = self.engine.status_in(own, (group, event))?;
                (status.filter, status.refused)
            }
        })
    }

    pub(crate) fn set_filter(
        self,
        (group, event): (&str, &str),
        filter: Option<WrittenFilter>,
    ) -> Result<(), ProbeError> {
        match self.own {
            None => self.engine.set_filter(group, event, filter),
            Some(own) => self.engine.set_filter_in(own, (group, event), filter),
        }
    }

    pub(crate) fn refuse_filter(
        self,
        (group, event): (&str, &str),
        refused: RefusedFilter,
    ) -> Result<(), ProbeError> {
        match self.own {
            None => self.engine.refuse_filter(group, event, refused),
            Some(own) => self.engine.refuse_filter_in(own, (group, event), refused),
        }
    }

    /// Puts a text among the events; returns false if none are kept.
    pub(crate) fn mark(self, text: &str) -> bool {
        match self.own {
            None => self.engine.mark(text),
            Some(own) => self.engine.mark_instance(own, text),
        }
    }

    /// Sets the most memory that the events take, in bytes.
    ///
    /// # Errors
    /// [`TracerError`], `ENOMEM`.
    pub(crate) fn set_memory(self, bytes: usize, vcpus: usize) -> Result<(), TracerError> {
        if let Some(own) = self.own {
            return Ok(self.engine.resize_instance(own, bytes)?);
        }
        let store = self.engine.events();
        if store.set_memory(bytes) {
            return Ok(());
        }
        let most = (store.memory_max() >> 10) / vcpus.max(1);
        let message = format!("the service has {most} KiB for each vCPU (run --events-memory)");
        Err(TracerError::new("ENOMEM", message))
    }
}
