//! From hit to event: a ring per vCPU that hits write without a lock, one consumer that drains the
//! rings in order of time, and a bounded store that readers follow by sequence number. Events are
//! made of hits when they are read, so that keeping a hit is cheap.

mod buffer;
mod consumer;
mod event;
mod hit;
mod instance;
mod look;
#[cfg(test)]
mod model;
mod origin;
mod per_cpu;
mod ring;
mod select;
mod show;
mod store;
#[cfg(test)]
mod tests;
mod trace;

pub(crate) use buffer::Control;
pub use buffer::TraceReader;
pub use consumer::{Consumer, HitConsumer, MemoryAtHit, RawValue, RecordedHit};
pub use event::{Bounds, Event, EventPage, StackFrame};
pub(crate) use hit::Hit;
pub use instance::TraceInstance;
pub(crate) use look::{field_value, has_texts};
pub(crate) use origin::Origin;
pub use per_cpu::CpuStatistics;
pub(crate) use ring::{MARK, Record, Returned, Ring, STACK_DEPTH, Shape, TextPlace, Writer};
pub use select::EventSelection;
pub use show::{FAULT, RecordedValue, show_function, show_symbol};
pub(crate) use show::{TextList, frames};
pub(crate) use store::Step;
pub use store::{EventLimits, EventStore};
pub use trace::{TakenEvent, TraceEvent, TracePage};
