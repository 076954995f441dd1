//! Helpers that several suites use. No suite imports another.

pub(crate) mod devices;
pub(crate) mod frames;
pub(crate) mod histograms;
pub(crate) mod jails;
pub(crate) mod mounted;
pub(crate) mod network;
pub(crate) mod pahole;
pub(crate) mod planted;
pub(crate) mod questions;
pub(crate) mod refused;
pub(crate) mod returned;
pub(crate) mod tables;
pub(crate) mod terminal;
pub(crate) mod tracer;
