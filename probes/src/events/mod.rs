//! From hit to event: a ring per vCPU that hits are written to without a lock, one consumer that
//! drains them in order of time, and a bounded store that readers follow by sequence number.

mod ring;
mod store;

pub(crate) use ring::{Record, Ring, Shape};
pub use store::{Event, EventPage, EventStore, StackFrame};
