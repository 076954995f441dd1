//! Synthetic events: defined, deleted, listed and switched.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::engine::control::room;
use crate::engine::control::synthetic::Synthetic;
use crate::engine::facade::engine::Engine;
use crate::error::ProbeError;
use crate::synthetic::{SYNTHETIC_GROUP, SyntheticDefinition, SyntheticError};

/// The state of a synthetic event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntheticStatus {
    /// The event's number.
    pub id: u32,
    /// Its definition.
    pub definition: SyntheticDefinition,
    /// It is enabled: what is made of it becomes an event.
    pub enabled: bool,
    /// Number of its triggers.
    pub triggers: usize,
    /// Triggers of other events switch it.
    pub is_switched: bool,
    /// Its filter, as written.
    pub filter: Option<String>,
}

impl Engine {
    /// Defines a synthetic event. It is not enabled.
    ///
    /// # Errors
    /// [`ProbeError::NoMemory`]; [`ProbeError::Synthetic`], where there is such an event.
    pub fn define_synthetic(&self, definition: SyntheticDefinition) -> Result<(), ProbeError> {
        let mut control = self.lock();
        if control.registry.has_event(SYNTHETIC_GROUP, &definition.name) {
            return Err(SyntheticError::Exists(definition.name).into());
        }
        let bytes = room::of_synthetic(&definition);
        let room = control.registry.room.take(bytes)?;
        let id = control.registry.take_id();
        let new = Synthetic::new(id, definition, self.clock, room);
        control.registry.synthetics.insert(Arc::clone(&new.event), Arc::new(new));
        Ok(())
    }

    /// Deletes a synthetic event.
    ///
    /// # Errors
    /// [`ProbeError::Synthetic`], where there is none, or where it is in use: it is enabled or has
    /// triggers, or those of other events make or switch it.
    pub fn delete_synthetic(&self, name: &str) -> Result<(), ProbeError> {
        let mut control = self.lock();
        self.drain_locked(&mut control);
        let registry = &mut control.registry;
        let Some(found) = registry.synthetic_named(name) else {
            return Err(SyntheticError::NotThere(name.to_owned()).into());
        };
        if is_busy(found, &registry.used_synthetics()) {
            return Err(SyntheticError::Busy(name.to_owned()).into());
        }
        if let Some(Synthetic { group, event, .. }) = registry.synthetics.remove(name).as_deref() {
            registry.in_instances.forget(group, event);
        }
        Ok(())
    }

    /// Deletes all synthetic events, or none if one is in use.
    ///
    /// # Errors
    /// [`ProbeError::Synthetic`], as of [`Self::delete_synthetic`].
    pub fn delete_synthetics(&self) -> Result<(), ProbeError> {
        let mut control = self.lock();
        self.drain_locked(&mut control);
        let registry = &mut control.registry;
        let in_use = registry.used_synthetics();
        if let Some(busy) = registry.synthetics.values().find(|found| is_busy(found, &in_use)) {
            return Err(SyntheticError::Busy(busy.event.to_string()).into());
        }
        for Synthetic { group, event, .. } in registry.synthetics.values().map(|found| &**found) {
            registry.in_instances.forget(group, event);
        }
        registry.synthetics.clear();
        Ok(())
    }

    /// The synthetic events, in order of their definition.
    #[must_use]
    pub fn synthetics(&self) -> Vec<SyntheticStatus> {
        let mut control = self.lock();
        // What was hit so far may switch them.
        self.drain_locked(&mut control);
        let switched = control.registry.switched_synthetics();
        let all = control.registry.synthetics.values();
        let mut all: Vec<SyntheticStatus> = all.map(|found| status(found, &switched)).collect();
        all.sort_by_key(|status| status.id);
        all
    }

    /// A synthetic event.
    #[must_use]
    pub fn synthetic(&self, name: &str) -> Option<SyntheticStatus> {
        let mut control = self.lock();
        control.registry.synthetic_named(name)?;
        self.drain_locked(&mut control);
        let switched = control.registry.switched_synthetics();
        control.registry.synthetic_named(name).map(|found| status(found, &switched))
    }

    /// Enables or disables a synthetic event.
    ///
    /// # Errors
    /// [`ProbeError::Synthetic`], where there is none.
    pub fn enable_synthetic(&self, name: &str, on: bool) -> Result<(), ProbeError> {
        let mut control = self.lock();
        self.drain_locked(&mut control);
        match control.registry.synthetic_named(name) {
            Some(found) => found.enabled.store(on, Ordering::SeqCst),
            None => return Err(SyntheticError::NotThere(name.to_owned()).into()),
        }
        Ok(())
    }
}

/// Returns true if an event is enabled or has triggers, or if those of others make or switch it.
fn is_busy(found: &Synthetic, in_use: &HashSet<String>) -> bool {
    found.is_enabled() || found.triggers().is_some() || in_use.contains(&*found.event)
}

fn status(found: &Synthetic, switched: &HashSet<String>) -> SyntheticStatus {
    SyntheticStatus {
        id: found.id,
        definition: (*found.definition).clone(),
        enabled: found.is_enabled(),
        triggers: found.triggers().map_or(0, |triggers| triggers.number()),
        is_switched: switched.contains(&*found.event),
        filter: found.filter.written().map(|filter| filter.to_string()),
    }
}
