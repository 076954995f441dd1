//! Trace instances: made, removed, and which events they have enabled.

use std::collections::BTreeSet;
use std::sync::{Arc, MutexGuard};

use crate::definition::{RefusedFilter, WrittenFilter};
use crate::engine::control::instances::EventName;
use crate::engine::control::room;
use crate::engine::control::state::Control;
use crate::engine::facade::engine::Engine;
use crate::engine::facade::subject::{Subject, check_shared};
use crate::error::ProbeError;
use crate::events::{EventLimits, TraceInstance};

/// The state of an event in a trace instance.
#[derive(Clone, Debug, Default)]
pub struct InstanceEventStatus {
    /// It is enabled there.
    pub enabled: bool,
    /// Its filter there, as written.
    pub filter: Option<String>,
    /// The filter that was refused last, if none was set after it.
    pub refused: Option<Arc<RefusedFilter>>,
    /// Number of its triggers there, and one if those of other events switch it there.
    pub triggers: usize,
}

impl Engine {
    /// Makes a trace instance: as many events as of [`Self::events`], in up to `bytes` of memory.
    /// They and a snapshot of them count for the memory of probes
    /// ([`Limits::memory`](crate::Limits)). No event is enabled in it.
    ///
    /// # Errors
    /// [`ProbeError::NoMemory`].
    pub fn add_instance(&self, bytes: usize) -> Result<Arc<TraceInstance>, ProbeError> {
        let control = self.lock();
        let room = control.registry.room.take(room::of_instance(bytes))?;
        let limits = EventLimits { bytes, ..self.store.limits() };
        Ok(Arc::new(TraceInstance::new(limits, room)))
    }

    /// Sets the most memory that the events of an instance take, in bytes, and drops the oldest
    /// beyond it.
    ///
    /// # Errors
    /// [`ProbeError::NoMemory`], and nothing is changed; [`ProbeError::NoInstance`].
    pub fn resize_instance(
        &self,
        instance: &TraceInstance,
        bytes: usize,
    ) -> Result<(), ProbeError> {
        let control = self.locked_for(instance)?;
        let budget = &control.registry.room;
        let mut room = instance.room();
        let had = room.take();
        let had_bytes = had.as_ref().map_or(0, |share| share.bytes());
        // The new share may be what is left with the old one.
        drop(had);
        match budget.take(room::of_instance(bytes)) {
            Ok(new) => *room = Some(new),
            Err(exceeded) => {
                *room = budget.take(had_bytes).ok();
                return Err(exceeded.into());
            }
        }
        instance.events().resize(bytes);
        Ok(())
    }

    /// Removes an instance: no event is enabled in it or has triggers there any more, and its
    /// memory is freed with the last reference.
    ///
    /// # Errors
    /// [`ProbeError::NoInstance`]: it was removed before.
    pub fn remove_instance(&self, instance: &Arc<TraceInstance>) -> Result<(), ProbeError> {
        let mut control = self.locked_for(instance)?;
        self.drain_locked(&mut control);
        instance.remove();
        let armed = control.registry.in_instances.armed_in(instance);
        control.registry.in_instances.forget_instance(instance);
        let subjects = find_all(&control, &armed)?;
        self.renew(&mut control, &subjects)
    }

    /// Enables events in an instance, or disables them there. They are armed while they are enabled
    /// in any instance, or in [`Self::events`].
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`], [`ProbeError::NoInstance`], [`ProbeError::Clobbered`];
    /// [`ProbeError::Trigger`]: an event of probes that do more than record, or whose filter
    /// compares what is not recorded. All is as before.
    pub fn set_enabled_in(
        &self,
        instance: &Arc<TraceInstance>,
        events: &[EventName],
        enabled: bool,
    ) -> Result<(), ProbeError> {
        let mut control = self.locked_for(instance)?;
        let events: BTreeSet<&EventName> = events.iter().collect();
        let is_enabled = |name: &EventName| {
            let state = control.registry.in_instances.find(instance, name);
            state.is_some_and(|state| state.is_enabled())
        };
        let changed = events.into_iter().filter(|name| is_enabled(name) != enabled);
        let changed: Vec<EventName> = changed.cloned().collect();
        let subjects = find_all(&control, &changed)?;
        for subject in subjects.iter().filter(|_| enabled) {
            if let Subject::Probes(_, ids) = subject {
                control.registry.of_ids(ids).iter().try_for_each(|probe| check_shared(probe))?;
            }
        }
        if changed.is_empty() {
            return Ok(());
        }
        self.drain_locked(&mut control);
        let set = |control: &mut Control, enabled: bool| {
            for name in &changed {
                control.registry.in_instances.of(instance, name.clone()).enable(enabled);
            }
        };
        set(&mut control, enabled);
        self.renew(&mut control, &subjects).inspect_err(|_| set(&mut control, !enabled))
    }

    /// Replaces the filter of an event in an instance; `None` removes it.
    ///
    /// # Errors
    /// As [`Self::set_filter`], and [`ProbeError::NoInstance`]; [`ProbeError::Trigger`] while the
    /// fields are not known yet, or where the filter compares what is not recorded.
    pub fn set_filter_in(
        &self,
        instance: &Arc<TraceInstance>,
        (group, event): (&str, &str),
        filter: Option<WrittenFilter>,
    ) -> Result<(), ProbeError> {
        let mut control = self.locked_for(instance)?;
        let subject = Subject::find(&control.registry, group, event)?;
        let find = |filter| subject.filter(filter, control.symbols());
        let found = filter.as_ref().map(find).transpose()?.flatten();
        self.drain_locked(&mut control);
        let state = control.registry.in_instances.of(instance, subject.full_name());
        state.filter.set(filter.map(Arc::new), found);
        self.renew(&mut control, &[subject])
    }

    /// Removes an event's filter in an instance, and keeps the text of one that was refused in its
    /// place.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`], [`ProbeError::NoInstance`].
    pub fn refuse_filter_in(
        &self,
        instance: &Arc<TraceInstance>,
        (group, event): (&str, &str),
        refused: RefusedFilter,
    ) -> Result<(), ProbeError> {
        let mut control = self.locked_for(instance)?;
        let subject = Subject::find(&control.registry, group, event)?;
        self.drain_locked(&mut control);
        let state = control.registry.in_instances.of(instance, subject.full_name());
        state.filter.refuse(Arc::new(refused));
        self.renew(&mut control, &[subject])
    }

    /// The state of an event in an instance.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub fn status_in(
        &self,
        instance: &TraceInstance,
        (group, event): (&str, &str),
    ) -> Result<InstanceEventStatus, ProbeError> {
        let mut control = self.lock();
        // What was hit so far may switch it.
        self.drain_locked(&mut control);
        let name = Subject::find(&control.registry, group, event)?.full_name();
        let in_instances = &control.registry.in_instances;
        let Some(state) = in_instances.find(instance, &name) else {
            return Ok(InstanceEventStatus::default());
        };
        let is_switched = in_instances.is_switched(instance, &name);
        Ok(InstanceEventStatus {
            enabled: state.is_enabled(),
            triggers: state.triggers.len() + usize::from(is_switched),
            filter: state.filter.written().map(|filter| filter.to_string()),
            refused: state.filter.refused(),
        })
    }

    /// Group and name of each event that is enabled in an instance, in no order.
    #[must_use]
    pub fn enabled_in(&self, instance: &TraceInstance) -> Vec<EventName> {
        self.lock().registry.in_instances.enabled_in(instance)
    }

    /// Group and name of each event that is armed for an instance, in no order: it is enabled
    /// there, has triggers there, or is switched by some.
    #[must_use]
    pub fn armed_in(&self, instance: &TraceInstance) -> Vec<EventName> {
        self.lock().registry.in_instances.armed_in(instance)
    }

    /// Locks control for an instance.
    ///
    /// # Errors
    /// [`ProbeError::NoInstance`].
    pub(super) fn locked_for(
        &self,
        instance: &TraceInstance,
    ) -> Result<MutexGuard<'_, Control>, ProbeError> {
        let control = self.lock();
        match instance.is_removed() {
            true => Err(ProbeError::NoInstance),
            false => Ok(control),
        }
    }
}

/// # Errors
/// [`ProbeError::NoSuchProbe`].
fn find_all(control: &Control, events: &[EventName]) -> Result<Vec<Subject>, ProbeError> {
    let find = |(group, event): &EventName| Subject::find(&control.registry, group, event);
    events.iter().map(find).collect()
}
