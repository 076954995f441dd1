//! The hit path: from a breakpoint exit back into the guest.
//!
//! Changes when a hit does something new. Touches the table that it is given, the probes in it, the
//! rings of records, the followed calls, and guest memory. It has no lock, no registry and no
//! machine: `hook` calls control first if a hit needs it.

pub(crate) mod actions;
pub(crate) mod addresses;
pub(crate) mod calls;
pub(crate) mod current;
pub(crate) mod frames;
mod free_indices;
pub(crate) mod guest_steps;
#[cfg(test)]
mod model;
pub(crate) mod path;
pub(crate) mod stack;
pub(crate) mod table;
