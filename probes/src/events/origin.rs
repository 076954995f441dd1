//! From a record to the event that readers see.

use std::sync::Arc;

use exoprobe_guest::{GuestClock, GuestTime, Gva};
use exoprobe_introspect::{SymbolOffset, SymbolTable};

use super::event::{Event, StackFrame};
use super::ring::Record;
use super::show::RecordedValue;
use crate::definition::Argument;

/// Data that all events of one probe share.
pub(crate) struct Origin {
    pub(crate) group: Arc<str>,
    pub(crate) event: Arc<str>,
    pub(crate) symbol_name: Option<Arc<str>>,
    pub(crate) offset: u64,
    pub(crate) at: Gva,
    /// The same as text.
    pub(crate) addr: Arc<str>,
    pub(crate) fields: Arc<[Argument]>,
    /// The kernel's symbols.
    pub(crate) symbols: Option<SymbolTable>,
    pub(crate) clock: GuestClock,
}

impl Origin {
    /// The event of a record.
    pub(crate) fn event(&self, seq: u64, vcpu: u8, record: &Record) -> Event {
        let args = self.fields.iter().enumerate().map(|(index, field)| {
            let shown = RecordedValue::of(field, record, index);
            (field.name.clone(), shown.json(self.symbols.as_ref()))
        });
        Event {
            seq,
            time: self.clock.seconds(GuestTime(record.time)),
            vcpu,
            pid: record.task.map(|task| task.pid),
            comm: record.task.map(|task| task.name()),
            group: Arc::clone(&self.group),
            event: Arc::clone(&self.event),
            symbol_name: self.symbol_name.clone(),
            offset: self.offset,
            addr: Arc::clone(&self.addr),
            ret_addr: record.returned.map(|returned| returned.to.to_string()),
            duration_ns: record.duration().map(|ticks| self.clock.nanos(ticks)),
            args: args.collect(),
            stack: (!record.stack.is_empty()).then(|| frames(self.symbols.as_ref(), &record.stack)),
        }
    }
}

/// The places of a back-trace, with symbols where known.
pub(crate) fn frames(symbols: Option<&SymbolTable>, stack: &[u64]) -> Vec<StackFrame> {
    let frame = |addr: &u64| {
        let found = symbols.and_then(|symbols| symbols.resolve(Gva(*addr)));
        StackFrame {
            addr: format!("{addr:#x}"),
            symbol_name: found.as_ref().map(SymbolOffset::qualified_name),
            offset: found.map_or(0, |found| found.offset),
        }
    };
    stack.iter().map(frame).collect()
}
