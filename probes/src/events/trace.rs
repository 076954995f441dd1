//! Hits as the tracer's files show them.

use exoprobe_guest::{GuestTime, Gva};
use exoprobe_introspect::{SymbolTable, TaskId};

use super::hit::Hit;
use super::ring::MARK;
use super::show::RecordedValue;
use crate::definition::ValueType;
use crate::synthetic::SyntheticDefinition;

/// One event of the file `trace`.
#[derive(Clone, Debug)]
pub struct TraceEvent<'a> {
    /// Name of the event.
    pub name: &'a str,
    /// It is no hit: its one argument is a text that was written to `trace_marker`.
    pub is_mark: bool,
    /// It is a synthetic event: it has no place.
    pub is_synthetic: bool,
    /// vCPU that hit.
    pub vcpu: u8,
    /// The current task, if its location is known.
    pub task: Option<TaskId>,
    /// Guest microseconds since boot.
    pub micros: u64,
    /// The probed address.
    pub at: Gva,
    /// Of a return probe: the address that the function returned to.
    pub returned_to: Option<Gva>,
    /// Symbols of the kernel at that time.
    pub symbols: Option<&'a SymbolTable>,
    /// Names and values of the arguments, in the definition's order.
    pub args: Vec<(&'a str, RecordedValue<'a>)>,
    /// Back-trace, the probed address first; empty without one.
    pub stack: Vec<Gva>,
}

/// An event as a record of the kernel's ring buffer is made of it.
#[derive(Clone, Debug)]
pub struct TakenEvent<'a> {
    /// The event.
    pub event: TraceEvent<'a>,
    /// Its number, in the file `id`; of no meaning for a mark.
    pub id: u32,
    /// Guest nanoseconds since boot.
    pub nanos: u64,
    /// Of each argument the type of a value and, of an array, how many there are.
    pub shapes: Vec<(ValueType, Option<u8>)>,
    /// Of a synthetic event: its definition.
    pub synthetic: Option<&'a SyntheticDefinition>,
}

/// Consecutive events of the file `trace`, `trace_pipe` or `snapshot`.
#[derive(Clone, Default)]
pub struct TracePage {
    /// The runs in order, each with the number of events lost before it.
    pub(super) runs: Vec<(u64, Vec<Hit>)>,
    /// Events written since the trace was cleared.
    pub(super) written: u64,
}

impl TracePage {
    /// Runs of events, in order, each with the number of events lost before it.
    pub fn runs(&self) -> impl Iterator<Item = (u64, impl Iterator<Item = TraceEvent<'_>>)> {
        self.runs.iter().map(|(lost, hits)| (*lost, hits.iter().map(trace_event)))
    }

    /// Number of events on the page.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.runs.iter().map(|(_, hits)| hits.len() as u64).sum()
    }

    /// Number of events lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.runs.iter().map(|(lost, _)| lost).sum()
    }

    /// For a snapshot: number of events written before it was taken, including lost ones and those
    /// that readers of `trace_pipe` took.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }
}

fn trace_event(hit: &Hit) -> TraceEvent<'_> {
    let Hit { origin, vcpu, record } = hit;
    let args = origin.fields.iter().enumerate();
    let args =
        args.map(|(index, field)| (field.name.as_str(), RecordedValue::of(field, record, index)));
    TraceEvent {
        name: &origin.event,
        is_mark: record.probe == MARK,
        is_synthetic: origin.synthetic.is_some(),
        vcpu: *vcpu,
        task: record.task,
        micros: origin.clock.micros(GuestTime(record.time)),
        at: origin.at,
        returned_to: record.returned.map(|returned| returned.to),
        symbols: origin.symbols.as_ref(),
        args: args.collect(),
        stack: record.stack.iter().map(|address| Gva(*address)).collect(),
    }
}

pub(super) fn taken_event(hit: &Hit) -> TakenEvent<'_> {
    let Hit { origin, record, .. } = hit;
    TakenEvent {
        event: trace_event(hit),
        id: origin.event_id,
        nanos: origin.clock.nanos(record.time),
        shapes: origin.fields.iter().map(|field| (field.kind, field.count)).collect(),
        synthetic: origin.synthetic.as_deref(),
    }
}
