//! The library's front: `Engine` and its methods.
//!
//! Changes when users get a new question or verb. Takes control's lock, and calls the folders
//! below; holds no state of probes itself.

pub(crate) mod admission;
pub(crate) mod backtrace;
pub(crate) mod batch;
pub(crate) mod drain;
pub(crate) mod dump;
pub(crate) mod engine;
pub(crate) mod filters;
pub(crate) mod instances;
pub(crate) mod mark;
pub(crate) mod optimize;
pub(crate) mod query;
mod replace;
pub(crate) mod sample;
pub(crate) mod scoped;
pub(crate) mod stops;
mod subject;
pub(crate) mod switches;
pub(crate) mod synthetic;
mod target;
pub(crate) mod threads;
pub(crate) mod tick;
pub(crate) mod triggers;
mod variables;
pub(crate) mod wildcard;
