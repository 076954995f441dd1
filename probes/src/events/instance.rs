//! Trace instances (ftrace.rst, "Instances"): events that are kept apart from all others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::store::{EventLimits, EventStore};
use crate::budget::Share;

/// A trace instance: a store of its own, for hits of the events that are enabled in it. Made by
/// [`Engine::add_instance`](crate::Engine::add_instance).
pub struct TraceInstance {
    store: EventStore,
    /// The memory of its events and its snapshot.
    room: Mutex<Option<Share>>,
    is_removed: AtomicBool,
}

impl TraceInstance {
    pub(crate) fn new(limits: EventLimits, room: Share) -> Self {
        let (store, room) = (EventStore::new(limits), Mutex::new(Some(room)));
        Self { store, room, is_removed: AtomicBool::new(false) }
    }

    /// Its events so far. Hits are in it once drained: see [`Engine::drain`](crate::Engine::drain).
    #[must_use]
    pub fn events(&self) -> &EventStore {
        &self.store
    }

    /// The memory that it has taken. To be changed under the engine's lock.
    pub(crate) fn room(&self) -> MutexGuard<'_, Option<Share>> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true after [`Self::remove`].
    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Relaxed)
    }

    /// Has no event enabled in it from now on. To be called under the engine's lock.
    pub(crate) fn remove(&self) {
        self.is_removed.store(true, Ordering::Relaxed);
    }
}
