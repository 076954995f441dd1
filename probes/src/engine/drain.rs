//! From the rings to the store.

use std::sync::{Arc, PoisonError};

use rustc_hash::FxHashMap;

use super::Engine;
use super::registry::{Registered, Registry};
use crate::events::{Hit, Origin, Record};

impl Engine {
    /// Moves all recorded hits into the event store, merged by time; one whose handler took long may come
    /// behind later ones that were moved before. Gives how many they were.
    pub fn drain(&self) -> usize {
        let registry = self.lock();
        self.drain_locked(&registry)
    }

    pub(super) fn drain_locked(&self, registry: &Registry) -> usize {
        let mut guests = self.path.rings_of_guest.lock().unwrap_or_else(PoisonError::into_inner);
        let mut batch: Vec<(u8, Record)> = Vec::new();
        guests.drain(self.guest.hidden(), |found, record| {
            let record = Record::of_guest(found.probe.id, record, found.is_return, found.has_task);
            batch.push((found.vcpu, record));
        });
        for (vcpu, ring) in (0u8..).zip(&self.path.rings) {
            ring.drain(|record| batch.push((vcpu, record)));
        }
        batch.sort_by_key(|(_, record)| record.time);
        let mut origins: FxHashMap<u32, Option<Arc<Origin>>> = FxHashMap::default();
        let hits = batch.into_iter().filter_map(|(vcpu, record)| {
            let origin = origins.entry(record.probe).or_insert_with(|| {
                let from = registry.probes.get(&record.probe)?;
                Some(Arc::new(self.origin(registry, from)))
            });
            // A probe that has gone tells nothing any more.
            Some(Hit { origin: Arc::clone(origin.as_ref()?), vcpu, record })
        });
        self.store.append(hits)
    }

    /// What the events of a probe have in common.
    fn origin(&self, registry: &Registry, from: &Registered) -> Origin {
        Origin {
            group: Arc::clone(&from.probe.group),
            event: Arc::clone(&from.probe.event),
            symbol_name: from.symbol.clone(),
            offset: from.offset,
            at: from.probe.at(),
            addr: Arc::clone(&from.addr),
            fields: from.probe.arguments().list.clone(),
            symbols: registry.kernel.as_ref().map(|kernel| kernel.symbols.clone()),
            clock: self.clock,
        }
    }
}
