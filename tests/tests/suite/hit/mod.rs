//! Hits of kprobes: counts, values, filters, handlers, and the instructions that run displaced.

pub(super) mod counts;
pub(super) mod everywhere;
pub(super) mod faults;
pub(super) mod filters;
pub(super) mod handlers;
pub(super) mod hits;
pub(super) mod holds;
pub(super) mod usermem;
pub(super) mod values;
pub(super) mod vectors;
