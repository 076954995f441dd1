//! What an event has for fields, and filters over them, which change while their probes are
//! registered.

use std::sync::Arc;

use exoprobe_guest::GuestClock;

use crate::definition::{Argument, Fetch, FieldKinds, RefusedFilter, ValueType, WrittenFilter};
use crate::engine::arguments::list::Arguments;
use crate::engine::control::state::Control;
use crate::engine::facade::engine::Engine;
use crate::engine::facade::subject::check_recorded;
use crate::error::ProbeError;
use crate::trigger::TriggerError;

/// A field of a probe's events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventField {
    /// Its name.
    pub name: String,
    /// What it is, or each of its elements.
    pub kind: ValueType,
    /// Of an array: how many elements.
    pub count: Option<u8>,
}

impl Engine {
    /// The fields of an event; of one whose first probe waits for its place, as far as the
    /// definition tells them.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub fn fields(&self, group: &str, event: &str) -> Result<Vec<EventField>, ProbeError> {
        let control = self.lock();
        let probe = &control.registry.first(group, event)?.probe;
        let of = |arg: &Argument| EventField {
            name: arg.name.clone(),
            kind: arg.kind,
            count: arg.count,
        };
        Ok(match probe.has_arguments() {
            true => probe.arguments().list.iter().map(of).collect(),
            false => Arguments::given(&probe.definition).iter().map(of).collect(),
        })
    }

    /// The kinds of the fields of an event, also of a synthetic one, as far as they are known.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub fn field_kinds(&self, group: &str, event: &str) -> Result<FieldKinds, ProbeError> {
        let control = self.lock();
        let of = |kind, list: &[Argument]| {
            FieldKinds::of(kind, list, self.guest.vcpus(), control.symbols().cloned())
        };
        if let Some(found) = control.registry.synthetic_of(group, event) {
            return Ok(of(None, &found.arguments.list));
        }
        let probe = &control.registry.first(group, event)?.probe;
        let kind = Some(probe.definition.kind);
        if probe.has_arguments() {
            return Ok(of(kind, &probe.arguments().list));
        }
        let given = Arguments::given(&probe.definition);
        Ok(match given.iter().any(|arg| arg.fetch == Fetch::AllParameters) {
            true => FieldKinds::Unknown,
            false => of(kind, &given),
        })
    }

    /// The clock of the guest's times.
    #[must_use]
    pub fn clock(&self) -> GuestClock {
        self.clock
    }

    /// The guest's time now.
    #[must_use]
    pub fn micros(&self) -> u64 {
        self.clock.micros(self.clock.now())
    }

    /// Replaces the filter of an event's probes: from now on the hits count that it accepts, or,
    /// without one, all. Their counters go on.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`]; [`ProbeError::Filter`], with the filter of before still there.
    pub fn set_filter(
        &self,
        group: &str,
        event: &str,
        filter: Option<WrittenFilter>,
    ) -> Result<(), ProbeError> {
        let mut control = self.lock();
        let filter = filter.map(Arc::new);
        if let Some(synthetic) = control.registry.synthetic_of(group, event).cloned() {
            let arguments = &synthetic.arguments;
            let found = arguments.filter(None, filter.as_deref(), control.symbols())?;
            check_recorded(found.as_ref(), &arguments.list)?;
            self.drain_locked(&mut control);
            synthetic.filter.set(filter, found);
            return Ok(());
        }
        let ids = control.registry.ids(group, event)?.to_vec();
        let probes = control.registry.of_ids(&ids);
        let found =
            probes.iter().map(|probe| probe.find_filter(filter.as_deref(), control.symbols()));
        let found = found.collect::<Result<Vec<_>, _>>()?;
        let is_pending = probes.iter().any(|probe| !probe.has_arguments());
        if probes[0].records_all() && filter.is_some() && is_pending {
            return Err(TriggerError::Pending.into());
        }
        self.drain_triggered(&mut control, &ids);
        self.refit(&mut control, &ids, |_| {
            for (probe, found) in probes.iter().zip(found) {
                probe.set_filter(filter.clone(), found);
            }
        });
        Ok(())
    }

    /// Removes an event's filter, and keeps the text of one that was refused in its place: all hits
    /// count from now on.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub fn refuse_filter(
        &self,
        group: &str,
        event: &str,
        refused: RefusedFilter,
    ) -> Result<(), ProbeError> {
        let mut control = self.lock();
        let refused = Arc::new(refused);
        if let Some(synthetic) = control.registry.synthetic_of(group, event).cloned() {
            self.drain_locked(&mut control);
            synthetic.filter.refuse(refused);
            return Ok(());
        }
        let ids = control.registry.ids(group, event)?.to_vec();
        let probes = control.registry.of_ids(&ids);
        let refuse = || {
            probes.iter().for_each(|probe| probe.refuse_filter(Arc::clone(&refused)));
        };
        if probes.iter().all(|probe| probe.event_filter.written().is_none()) {
            // The code in the guest stays as it is.
            refuse();
            return Ok(());
        }
        self.drain_triggered(&mut control, &ids);
        self.refit(&mut control, &ids, |_| refuse());
        Ok(())
    }

    /// The filter that was refused last ([`Self::refuse_filter`]); `None` after another one is set.
    #[must_use]
    pub fn refused_filter(&self, group: &str, event: &str) -> Option<Arc<RefusedFilter>> {
        let control = self.lock();
        if let Some(synthetic) = control.registry.synthetic_of(group, event) {
            return synthetic.filter.refused();
        }
        let first = control.registry.first(group, event).ok()?;
        first.probe.event_filter.refused()
    }

    /// Changes what the code in the guest of some probes has in it: the next one is made anew.
    pub(crate) fn refit(
        &self,
        control: &mut Control,
        ids: &[u32],
        change: impl FnOnce(&mut Control),
    ) {
        let places: Vec<_> =
            ids.iter().filter_map(|id| control.registry.probes[id].placed()).collect();
        control.unoptimize(self.guest.as_ref(), places.iter());
        control.optimizer.note_change();
        change(control);
        let mut has_returns = false;
        for returns in ids.iter().filter_map(|id| control.registry.probes[id].probe.returns()) {
            // So has what its calls return to. Those under way return by the old one, which goes
            // when they have.
            returns.in_guest.store(None);
            has_returns = true;
        }
        if has_returns {
            control.optimizer.forget(ids);
        }
        control.publish(self.guest.as_ref());
    }
}
