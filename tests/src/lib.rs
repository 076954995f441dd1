//! What the end-to-end tests and benches share: a booted guest, restored for each test from one
//! snapshot, with a probe engine and the workload's port.
//!
//! The workload counts what it really did; every test compares the engine's counts with it.

mod binary;
mod guest;
pub mod http;
pub mod loops;

pub use binary::{Service, exoprobe};
pub use guest::{TestGuest, guest_file, kernel_symbols};
