//! What an event has for fields, and filters over them, which change while their probes are
//! registered.

use std::sync::Arc;

use exoprobe_guest::GuestClock;

use crate::definition::{Argument, ValueType, WrittenFilter};
use crate::engine::arguments::list::Arguments;
use crate::engine::control::state::Control;
use crate::engine::facade::engine::Engine;
use crate::engine::facade::subject::check_recorded;
use crate::error::ProbeError;

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

    /// Has other hits of an event's probes count from now on: those that the filter lets through,
    /// or, without one, all. Their books go on.
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
        if control.registry.synthetic_of(group, event).is_some() {
            self.drain_locked(&mut control);
            let Some(found) = control.registry.synthetic_of(group, event) else { return Ok(()) };
            let resolved = found.arguments.filter(filter.as_ref())?;
            check_recorded(resolved.as_ref(), &found.arguments.list)?;
            found.set_filter(filter.zip(resolved));
            return Ok(());
        }
        let ids = control.registry.ids(group, event)?.to_vec();
        let probes = control.registry.of_ids(&ids);
        let filter = filter.map(Arc::new);
        let found = probes.iter().map(|probe| probe.find_filter(filter.as_deref()));
        let found = found.collect::<Result<Vec<_>, _>>()?;
        if probes[0].has_triggers() {
            for (probe, found) in probes.iter().zip(&found) {
                let list = &probe.arguments().list;
                check_recorded(found.as_ref(), list)?;
            }
        }
        self.drain_triggered(&mut control, &ids);
        self.refit(&mut control, &ids, |_| {
            for (probe, found) in probes.iter().zip(found) {
                probe.set_filter(filter.clone(), found);
            }
        });
        Ok(())
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
