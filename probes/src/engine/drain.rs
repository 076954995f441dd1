//! From the rings to the store: hits become events.

use std::sync::{Arc, PoisonError};

use exoprobe_vmm::{GuestTime, Gva};

use super::Engine;
use super::registry::{Registered, Registry};
use crate::events::{Event, Record, StackFrame};

/// What an argument shows that could not be read.
const FAULT: &str = "(fault)";

impl Engine {
    /// Moves all recorded hits into the event store, merged by time; one whose handler took long may come
    /// behind later ones that were moved before.
    pub fn drain(&self) {
        let registry = self.lock();
        self.drain_locked(&registry);
    }

    pub(super) fn drain_locked(&self, registry: &Registry) {
        let mut guests = self.path.rings_of_guest.lock().unwrap_or_else(PoisonError::into_inner);
        let mut batch: Vec<(u8, Record)> = Vec::new();
        guests.drain(self.guest.hidden(), |vcpu, probe, record| {
            batch.push((vcpu, Record::of_guest(probe.id, record)));
        });
        for (vcpu, ring) in (0u8..).zip(&self.path.rings) {
            ring.drain(|record| batch.push((vcpu, record)));
        }
        batch.sort_by_key(|(_, record)| record.time);
        batch.retain(|(_, record)| registry.probes.contains_key(&record.probe));
        self.store.append(batch, |seq, (vcpu, record)| {
            self.event(seq, vcpu, &record, registry, &registry.probes[&record.probe])
        });
    }

    fn event(
        &self,
        seq: u64,
        vcpu: u8,
        record: &Record,
        registry: &Registry,
        from: &Registered,
    ) -> Event {
        let definition = &from.probe.definition;
        let values = record.args.iter().enumerate();
        let text = |value: &Option<u64>| value.map_or(FAULT.to_owned(), |v| format!("{v:#x}"));
        let frame = |addr: &u64| {
            let symbols = registry.kernel.as_ref().map(|kernel| &kernel.symbols);
            let found = symbols.and_then(|symbols| symbols.resolve(Gva(*addr)));
            StackFrame {
                addr: format!("{addr:#x}"),
                symbol_name: found.as_ref().map(|found| found.name.to_owned()),
                offset: found.map_or(0, |found| found.offset),
            }
        };
        Event {
            seq,
            time: self.clock.seconds(GuestTime(record.time)),
            vcpu,
            group: Arc::clone(&from.probe.group),
            event: Arc::clone(&from.probe.event),
            symbol_name: from.symbol.clone(),
            offset: from.offset,
            addr: Arc::clone(&from.addr),
            ret_addr: record.ret_addr.map(|addr| format!("{addr:#x}")),
            args: values.map(|(i, value)| (definition.arg_name(i), text(value).into())).collect(),
            stack: (!record.stack.is_empty()).then(|| record.stack.iter().map(frame).collect()),
        }
    }
}
