//! Determines how this host's KVM behaves, by running guests of a few instructions.

mod error;
mod examine;
mod guest;

pub use error::PreflightError;
pub(crate) use examine::examine;
