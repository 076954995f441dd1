//! The hit path: from a breakpoint exit back into the guest.
//!
//! Changes when a hit does something new. Touches the table that it is given, the probes in it, the
//! rings of records, the calls that are followed, and guest memory. It has no lock, no registry and
//! no machine: `hook` asks control first where a hit needs it.

pub(crate) mod actions;
pub(crate) mod addresses;
pub(crate) mod calls;
pub(crate) mod frames;
#[cfg(test)]
mod model;
pub(crate) mod path;
pub(crate) mod stack;
pub(crate) mod table;
