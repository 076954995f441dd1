//! From hit to event: a ring per vCPU that hits are written to without a lock, one consumer that
//! drains them in order of time, and a bounded store that readers follow by sequence number. Events are made of
//! hits when they are read: to keep a hit must cost little.

mod line;
mod origin;
mod ring;
mod show;
mod store;
#[cfg(test)]
mod tests;

pub use line::trace_header;
pub(crate) use origin::Origin;
pub(crate) use ring::{Record, Returned, Ring, Shape, TextPlace};
pub(crate) use show::{TextList, show_symbol};
pub(crate) use store::Hit;
pub use store::{Event, EventPage, EventStore, StackFrame, TracePage};
