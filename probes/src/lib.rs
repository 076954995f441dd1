//! The probe engine: definitions, instruction analysis, arming, hits, records.
//!
//! A kprobe writes an int3 over the first byte of a guest kernel instruction. [`insn`] decides how
//! the instruction under that byte, the displaced instruction, is run; [`Engine`] does the rest.
//! The crate does not use HTTP.

mod budget;
pub mod definition;
#[cfg(not(feature = "testing"))]
mod detour;
#[cfg(feature = "testing")]
pub mod detour;
mod engine;
mod error;
mod events;
pub mod insn;
mod latency;
mod seldom;
mod shared;
#[cfg(test)]
mod shuttled;
mod spares;
#[cfg(feature = "testing")]
pub mod search {
    //! The search of RAM, for benches.

    pub use crate::engine::{Addresses, Search, SearchError, TimedGuest};
}
mod status;
pub mod synthetic;
pub mod trigger;

pub use definition::{
    Action, Fetch, FetchArg, Flag, ProbeDefinition, ProbeKind, Register, ReturnMode, parse_line,
};
pub use engine::{
    AddressSpace, Admission, AttachError, Batch, BlacklistEntry, CodeLine, DATA_SIZE_MAX, Engine,
    EntryHandler, EntryVerdict, EventField, ExpandedDefinition, Expansion, FaultHandler,
    FoundTypes, Frame, Guest, Hit, Holder, Instance, InstanceEventStatus, KeptProbes, KernelHints,
    KernelMemory, Kprobe, Kretprobe, Limits, ModuleStatus, NewProbe, NewSampler, NoTasks,
    Optimization, ParameterError, PostHandler, PreHandler, Process, Recovery, Registration,
    Rehearsal, Reserved, ReturnHandler, RunningKernel, SampleCounts, ScopedProbes,
    SearchStatistics, Selection, StopStatistics, SyntheticStatus, UnregisterError, Verdict,
};
pub use error::{BatchError, ProbeError};
pub use events::{
    Bounds, Consumer, CpuStatistics, Event, EventLimits, EventPage, EventSelection, EventStore,
    FAULT, HitConsumer, MemoryAtHit, RawValue, RecordedHit, RecordedValue, StackFrame, TakenEvent,
    TraceEvent, TraceInstance, TracePage, TraceReader, show_function, show_symbol,
};
pub use latency::Latency;
pub use status::{DisplacedBy, ProbeState, ProbeStatus, StatusFlag};
