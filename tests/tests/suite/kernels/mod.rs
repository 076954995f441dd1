//! Kernels other than the tiny one.

pub(super) mod debian;
pub(super) mod kernel_6_12;
pub(super) mod module_jmps;
pub(super) mod self_tracing;
pub(super) mod stock;
mod stock_tools;
