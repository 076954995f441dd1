//! The end-to-end tests: one program, so that the guest is booted once for all of them, and that it
//! can be carried to another machine.

mod suite;
mod support;

use std::process::ExitCode;

use exoprobe_tests::{SnapshotCleanup, harness};

fn main() -> ExitCode {
    let _snapshots = SnapshotCleanup;
    harness::run(suite::ALL)
}
