//! Return probes, and stacks.

pub(super) mod calls;
pub(super) mod returns;
pub(super) mod stacks;
