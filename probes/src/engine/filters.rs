//! What an event has for fields, and filters over them, which change while their probes are registered.

use super::Engine;
use super::arguments::Arguments;
use crate::definition::{Argument, Filter, ValueType};
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
    /// The fields of a probe's events; of one that waits for its place, as far as the definition tells them.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub fn fields(&self, group: &str, event: &str) -> Result<Vec<EventField>, ProbeError> {
        let registry = self.lock();
        let probe = &registry.probes[&registry.id(group, event)?].probe;
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

    /// The guest's time now.
    #[must_use]
    pub fn micros(&self) -> u64 {
        self.clock.micros(self.clock.now())
    }

    /// Has other hits of a probe count from now on: those that the filter lets through, or, without one, all. Its books
    /// go on.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`]; [`ProbeError::Filter`], with the filter of before still there.
    pub fn set_filter(
        &self,
        group: &str,
        event: &str,
        filter: Option<Filter>,
    ) -> Result<(), ProbeError> {
        let mut registry = self.lock();
        let id = registry.id(group, event)?;
        let (probe, place) = {
            let found = &registry.probes[&id];
            (std::sync::Arc::clone(&found.probe), found.placed())
        };
        let found = match probe.has_arguments() {
            true => probe.arguments().filter(filter.as_ref())?,
            false => {
                Arguments::check(&probe.definition, filter.as_ref())?;
                None
            }
        };
        // A detour has the filter in its code: the next one gets the new one.
        self.path.unoptimize(&mut registry, self.guest.as_ref(), place.iter());
        registry.optimizer.changed = true;
        probe.set_filter(filter, found);
        if let Some(returns) = probe.returns() {
            // So has what its calls return to. Those under way return by the old one, which goes when they have.
            returns.follower.store(None);
            registry.optimizer.forget(&[id]);
            self.path.publish(&registry, self.guest.as_ref());
        }
        Ok(())
    }
}
