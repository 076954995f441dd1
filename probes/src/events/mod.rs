//! From hit to event: a ring per vCPU that hits are written to without a lock, one consumer that
//! drains them in order of time, and a bounded store that readers follow by sequence number. Events are made of
//! hits when they are read: to keep a hit must cost little.

mod origin;
mod ring;
mod store;

pub(crate) use origin::Origin;
pub(crate) use ring::{Record, Ring, Shape, TextPlace};
pub(crate) use store::Hit;
pub use store::{Event, EventPage, EventStore, StackFrame};
