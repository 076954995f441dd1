//! Probes and queries from the first instruction of a boot.

pub(super) mod boot;
pub(super) mod cpus;
pub(super) mod early;
pub(super) mod entry;
pub(super) mod memory;
pub(super) mod moments;
pub(super) mod own_symbols;
