//! Optimized probes, and changes of all kinds under load.

pub(super) mod arrays;
pub(super) mod optimize;
pub(super) mod smp;
pub(super) mod stress;
pub(super) mod texts;
