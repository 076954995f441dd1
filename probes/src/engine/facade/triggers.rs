//! Triggers of events, at the top and in trace instances, which come and go while their probes are
//! registered.
//!
//! They are set off when records are moved into the store, in order of time: so they see each hit
//! that is recorded, also of optimized probes. An event that has some is armed also while it is not
//! enabled; its filter is looked at then, and not in the hit.

use std::collections::BTreeSet;
use std::sync::{Arc, MutexGuard};

use crate::engine::control::registry::Registry;
use crate::engine::control::state::Control;
use crate::engine::facade::engine::Engine;
use crate::engine::facade::replace::Replaced;
use crate::engine::facade::subject::Subject;
use crate::engine::facade::target::{Changed, Target};
use crate::engine::facade::variables::Made;
use crate::error::ProbeError;
use crate::events::TraceInstance;
use crate::trigger::{
    Histogram, HistogramTable, Live, SwitchSubject, TriggerCommand, Triggers, switched_events,
};

/// Where an event has triggers: in a trace instance, or at the top (`None`).
pub(super) type Place<'a> = Option<&'a Arc<TraceInstance>>;

impl Engine {
    /// Sets, changes or removes a trigger of an event.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`]; [`ProbeError::Trigger`], [`ProbeError::Filter`],
    /// [`ProbeError::NoMemory`], with all as before; [`ProbeError::Clobbered`], where the event is
    /// armed for its first trigger and cannot be.
    pub fn set_trigger(
        &self,
        group: &str,
        event: &str,
        command: TriggerCommand,
    ) -> Result<(), ProbeError> {
        self.set_trigger_at(None, (group, event), command)
    }

    /// As [`Self::set_trigger`], of an event in a trace instance, or at the top (`None`): in an
    /// instance it acts on that instance.
    ///
    /// # Errors
    /// As [`Self::set_trigger`], and [`ProbeError::NoInstance`].
    pub fn set_trigger_at(
        &self,
        of: Place<'_>,
        (group, event): (&str, &str),
        command: TriggerCommand,
    ) -> Result<(), ProbeError> {
        let mut control = self.locked_at(of)?;
        let subject = Subject::find(&control.registry, group, event)?;
        // What was hit so far is of before.
        self.drain_locked(&mut control);
        let there = control.registry.triggers_at(of.map(|of| &**of), &subject.full_name());
        let changed = {
            let target = Target::new(&control, of, &subject);
            match command.of_event(group, event) {
                TriggerCommand::Remove(trigger) => target.without(&there, &trigger),
                TriggerCommand::Add(trigger) => target.with(&there, trigger),
            }
        };
        let Some(Changed { list, made }) = changed? else { return Ok(()) };
        let switched = switched_events(&there).chain(switched_events(&list)).collect();
        let made = made.into_iter().try_for_each(|made| self.add_made(&mut control, of, made));
        let set = made.and_then(|()| self.replace(&mut control, of, &subject, list));
        let set = set.and_then(|()| {
            self.arm_switched(&mut control, of, switched).inspect_err(|_| {
                // It has nothing more to arm.
                let _ = self.replace(&mut control, of, &subject, there);
            })
        });
        self.drop_unread(&mut control);
        set
    }

    /// Adds a histogram that is made for a handler of another one.
    fn add_made(
        &self,
        control: &mut Control,
        of: Place<'_>,
        Made { event, live }: Made,
    ) -> Result<(), ProbeError> {
        let subject = Subject::find(&control.registry, &event.0, &event.1)?;
        let mut list = control.registry.triggers_at(of.map(|of| &**of), &event);
        list.push(Arc::new(live));
        self.replace(control, of, &subject, list)
    }

    /// Locks control for a place of triggers.
    ///
    /// # Errors
    /// [`ProbeError::NoInstance`].
    fn locked_at(&self, of: Place<'_>) -> Result<MutexGuard<'_, Control>, ProbeError> {
        match of {
            Some(instance) => self.locked_for(instance),
            None => Ok(self.lock()),
        }
    }

    fn replace(
        &self,
        control: &mut Control,
        of: Place<'_>,
        subject: &Subject,
        list: Vec<Arc<Live>>,
    ) -> Result<(), ProbeError> {
        let name = subject.full_name();
        if let Some(instance) = of {
            let state = control.registry.in_instances.of(instance, name.clone());
            let before = std::mem::replace(&mut state.triggers, list);
            return self.renew(control, std::slice::from_ref(subject)).inspect_err(|_| {
                control.registry.in_instances.of(instance, name).triggers = before;
            });
        }
        let in_instances = &control.registry.in_instances;
        let takers = in_instances.takers(&name, &in_instances.switched());
        match subject {
            Subject::Probes(_, ids) => {
                let is_switched = control.registry.is_switched(None, &name);
                let triggers = Triggers::new(list, is_switched, takers);
                self.replace_all(control, &[Replaced { ids: ids.clone(), triggers }])
            }
            Subject::Synthetic(synthetic) => {
                synthetic.set_triggers(Triggers::new(list, false, takers));
                Ok(())
            }
        }
    }

    /// Checks whether an event can have a trigger, whatever others it has.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`]; [`ProbeError::Trigger`], [`ProbeError::Filter`],
    /// [`ProbeError::NoMemory`].
    pub fn check_trigger(
        &self,
        group: &str,
        event: &str,
        command: TriggerCommand,
    ) -> Result<(), ProbeError> {
        self.check_trigger_at(None, (group, event), command)
    }

    /// As [`Self::check_trigger`], of an event in a trace instance, or at the top (`None`).
    ///
    /// # Errors
    /// As [`Self::check_trigger`], and [`ProbeError::NoInstance`].
    pub fn check_trigger_at(
        &self,
        of: Place<'_>,
        (group, event): (&str, &str),
        command: TriggerCommand,
    ) -> Result<(), ProbeError> {
        let control = self.locked_at(of)?;
        let subject = Subject::find(&control.registry, group, event)?;
        match command.of_event(group, event) {
            TriggerCommand::Remove(_) => Ok(()),
            TriggerCommand::Add(trigger) => {
                Target::new(&control, of, &subject).live(trigger).map(drop)
            }
        }
    }

    /// Has the hits of some events recorded while triggers of other events at a place switch them,
    /// and no longer than that.
    pub(super) fn arm_switched(
        &self,
        control: &mut Control,
        of: Place<'_>,
        events: BTreeSet<(String, String)>,
    ) -> Result<(), ProbeError> {
        for (group, event) in events {
            let Ok(subject) = Subject::find(&control.registry, &group, &event) else { continue };
            let (name, looks) = (subject.full_name(), subject.looks());
            let instance = of.map(|instance| &**instance);
            let was_switched = looks.is_some_and(|looks| match instance {
                Some(instance) => looks.is_switched_in(instance),
                None => looks.is_switched,
            });
            let is_switched = control.registry.is_switched(instance, &name);
            if was_switched == is_switched {
                continue;
            }
            self.drain_locked(control);
            match (of, &subject) {
                (Some(instance), _) => {
                    // It has a state there, for the switch.
                    control.registry.in_instances.of(instance, name);
                    self.renew(control, &[subject])?;
                }
                (None, Subject::Probes(..)) => {
                    let list = control.registry.triggers_at(None, &name);
                    self.replace(control, None, &subject, list)?;
                }
                // It is made, and not armed.
                (None, Subject::Synthetic(_)) => {}
            }
        }
        Ok(())
    }

    /// Removes triggers that switch events that no longer exist.
    pub(super) fn drop_lost_switches(&self, control: &mut Control) {
        self.remove_everywhere(control, |registry, live| {
            live.switch().is_some_and(|to| !registry.has_event(&to.group, &to.event))
        });
    }

    /// Removes histograms that were made for handlers of others, and to which none refers any more.
    pub(super) fn drop_unread(&self, control: &mut Control) {
        self.remove_everywhere(control, |registry, live| {
            live.is_made && !registry.is_referenced(live)
        });
    }

    /// Removes some triggers of all events, at the top and in trace instances.
    fn remove_everywhere(
        &self,
        control: &mut Control,
        is_removed: impl Fn(&Registry, &Live) -> bool,
    ) {
        let registry = &control.registry;
        for (of, (group, event)) in registry.events_with(|live| is_removed(registry, live)) {
            let Ok(subject) = Subject::find(&control.registry, &group, &event) else { continue };
            // Removing triggers does not fail.
            let _ = self.remove_triggers(control, of.as_ref(), &subject, &is_removed);
        }
    }

    /// Removes some triggers of an event.
    fn remove_triggers(
        &self,
        control: &mut Control,
        of: Place<'_>,
        subject: &Subject,
        is_removed: impl Fn(&Registry, &Live) -> bool,
    ) -> Result<(), ProbeError> {
        let list = control.registry.triggers_at(of.map(|of| &**of), &subject.full_name());
        let left = list.iter().filter(|live| !is_removed(&control.registry, live));
        let left: Vec<Arc<Live>> = left.cloned().collect();
        match left.len() == list.len() {
            true => Ok(()),
            false => self.replace(control, of, subject, left),
        }
    }

    /// Removes the histograms of an event, and its triggers that switch those of others, as opening
    /// its file `trigger` with O_TRUNC does. As in the kernel, all histograms stay if another
    /// histogram refers to variables of one of them.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub fn remove_histograms(&self, group: &str, event: &str) -> Result<(), ProbeError> {
        self.remove_histograms_at(None, (group, event))
    }

    /// As [`Self::remove_histograms`], of an event in a trace instance, or at the top (`None`).
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`], [`ProbeError::NoInstance`].
    pub fn remove_histograms_at(
        &self,
        of: Place<'_>,
        (group, event): (&str, &str),
    ) -> Result<(), ProbeError> {
        let mut control = self.locked_at(of)?;
        let subject = Subject::find(&control.registry, group, event)?;
        self.drain_locked(&mut control);
        let there = control.registry.triggers_at(of.map(|of| &**of), &subject.full_name());
        let stay = there.iter().any(|live| control.registry.is_referenced(live));
        let switched = switched_events(&there).collect();
        self.remove_triggers(&mut control, of, &subject, |_, live| {
            let switches = live.switch().is_some_and(|to| to.subject == SwitchSubject::Histograms);
            switches || !stay && live.table().is_some()
        })?;
        self.drop_unread(&mut control);
        self.arm_switched(&mut control, of, switched)
    }

    /// The triggers of an event, each as the file `trigger` has it: the newest first, except
    /// histograms.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub fn triggers(&self, group: &str, event: &str) -> Result<Vec<String>, ProbeError> {
        self.triggers_at(None, (group, event))
    }

    /// As [`Self::triggers`], of an event in a trace instance, or at the top (`None`).
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub fn triggers_at(
        &self,
        of: Place<'_>,
        (group, event): (&str, &str),
    ) -> Result<Vec<String>, ProbeError> {
        let control = self.lock();
        let name = Subject::find(&control.registry, group, event)?.full_name();
        let triggers = control.registry.triggers_at(of.map(|of| &**of), &name);
        Ok(triggers.iter().map(|live| live.line()).collect())
    }

    /// Returns true if a histogram's handler takes snapshots.
    #[must_use]
    pub fn takes_snapshots(&self) -> bool {
        self.takes_snapshots_at(None)
    }

    /// As [`Self::takes_snapshots`], in a trace instance, or at the top (`None`).
    #[must_use]
    pub fn takes_snapshots_at(&self, of: Option<&Arc<TraceInstance>>) -> bool {
        self.lock().registry.takes_snapshots(of.map(|of| &**of))
    }

    /// Returns true if a histogram in an instance has variables.
    #[must_use]
    pub fn has_variables_in(&self, instance: &TraceInstance) -> bool {
        let control = self.lock();
        let mut triggered = control.registry.in_instances.triggered_in(instance);
        triggered.any(|(_, state)| state.triggers.iter().any(|live| live.has_variables()))
    }

    /// The histograms of an event, in the order in which they were set.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub fn histograms(&self, group: &str, event: &str) -> Result<Vec<Histogram>, ProbeError> {
        let tables = self.histogram_tables(group, event)?;
        Ok(tables.iter().map(Histogram::from).collect())
    }

    /// The histograms of an event as they are counted, in the order in which they were set. All
    /// hits so far are counted.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub fn histogram_tables(
        &self,
        group: &str,
        event: &str,
    ) -> Result<Vec<HistogramTable>, ProbeError> {
        self.histogram_tables_at(None, (group, event))
    }

    /// As [`Self::histogram_tables`], of an event in a trace instance, or at the top (`None`).
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub fn histogram_tables_at(
        &self,
        of: Place<'_>,
        (group, event): (&str, &str),
    ) -> Result<Vec<HistogramTable>, ProbeError> {
        let (triggers, list, symbols) = {
            let mut control = self.lock();
            let subject = Subject::find(&control.registry, group, event)?;
            self.drain_locked(&mut control);
            let symbols = control.symbols().cloned();
            let name = subject.full_name();
            let triggers = control.registry.triggers_at(of.map(|of| &**of), &name);
            (triggers, subject.list(), symbols)
        };
        let tables = triggers.iter().filter_map(|live| {
            let line = live.line();
            Some(live.table()?.at_once(&line, &list, symbols.as_ref()))
        });
        Ok(tables.collect())
    }
}
