//! Registration, removal, and the life of a machine with probes.

pub(super) mod lifecycle;
pub(super) mod refusals;
pub(super) mod registration;
pub(super) mod text;
pub(super) mod wildcards;
