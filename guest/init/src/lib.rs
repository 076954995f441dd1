//! The parts of the guest's init that need no kernel: the command language of ttyS1.
//!
//! They live in a library so that `cargo test` runs them on the host.
#![cfg_attr(not(test), no_std)]

pub mod cause;
pub mod command;
pub mod line;
pub mod module;
pub mod text;
