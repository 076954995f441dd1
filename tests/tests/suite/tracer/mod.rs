//! The kernel tracer's files.

pub(super) mod tracefs;
pub(super) mod triggers;
