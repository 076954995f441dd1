//! From hit to event: a ring per vCPU that hits are written to without a lock, one consumer that
//! drains them in order of time, and a bounded store that readers follow by sequence number. Events are made of
//! hits when they are read: to keep a hit must cost little.

mod buffer;
mod event;
mod hit;
mod kept;
mod line;
mod look;
mod origin;
mod ring;
mod select;
mod show;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use buffer::Control;
pub use buffer::{TraceReader, TraceText};
pub use event::{Bounds, Event, EventPage, StackFrame};
pub(crate) use hit::Hit;
pub use kept::EventLimits;
pub use line::trace_header;
pub(crate) use look::field_value;
pub(crate) use origin::{Origin, frames};
pub(crate) use ring::{Record, Returned, Ring, Shape, TextPlace};
pub use select::EventSelection;
pub(crate) use show::{FAULT, Shown, TextList, show_symbol};
pub use store::EventStore;
pub(crate) use store::Step;
