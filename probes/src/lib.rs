//! The probe engine: definitions, instruction analysis, arming, hits, records.
//!
//! A kprobe puts an int3 over the first byte of a guest kernel instruction. What happens to the
//! instruction under that byte, the displaced instruction, is decided in [`insn`]; [`Engine`] does
//! the rest. It knows nothing of HTTP.

pub mod definition;
pub mod detour;
mod engine;
mod error;
mod events;
pub mod insn;
mod latency;
#[cfg(test)]
mod shuttled;
mod status;
pub mod trigger;

pub use definition::{
    Action, Fetch, FetchArg, Flag, ProbeDefinition, ProbeKind, Register, ReturnMode, parse_line,
};
pub use engine::{
    AddressSpace, AttachError, Batch, BlacklistEntry, CodeLine, DATA_SIZE_MAX, Engine,
    EntryHandler, EntryVerdict, EventField, FaultHandler, FoundTypes, Frame, Given, Guest, Hit,
    Holder, Instance, KeptProbes, Kprobe, Kretprobe, Limits, ModuleStatus, NewProbe, NoTasks,
    Optimization, ParameterError, PostHandler, PreHandler, Process, Recovery, Registration,
    Reserved, ReturnHandler, RunningKernel, ScopedProbes, Selection, UnregisterError, Verdict,
};
pub use error::{BatchError, ProbeError};
pub use events::{
    Bounds, Event, EventLimits, EventPage, EventSelection, EventStore, FAULT, RecordedValue,
    StackFrame, TraceEvent, TracePage, TraceReader, show_symbol,
};
pub use latency::Latency;
pub use status::{DisplacedBy, ProbeState, ProbeStatus, StatusFlag};
