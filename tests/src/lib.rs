//! Shared by the end-to-end tests and benches: a booted guest, restored for each test from one
//! snapshot, with a probe engine and the workload's port.
//!
//! The workload counts what it really did; every test compares the engine's counts with it.

mod binary;
pub mod confinement;
pub mod counts;
mod definitions;
mod dice;
mod files;
mod functions;
mod guest;
pub mod harness;
mod host_pages;
pub mod http;
mod interface;
pub mod loops;
mod opens;
mod own_event;
mod own_symbols;
mod patience;
mod probing;
mod process;
mod python;
#[cfg(test)]
mod scripts;
mod snapshots;

pub use binary::{Service, exoprobe, program};
pub use definitions::definition;
pub use dice::Dice;
pub use files::{DEBIAN_DISK_ENV, GUEST_ENV, debian_disk, guest_file};
pub use functions::{address, function_size};
pub use guest::{TestGuest, host, kernel_symbols, more_of_cmdline, unfiltered_host};
pub use host_pages::HostPages;
pub use interface::Interface;
pub use opens::{ENTRY, OPENS, assert_callers, assert_opened};
pub use own_event::OwnEvent;
pub use own_symbols::assert_same_symbols;
pub use patience::PATIENCE;
pub use process::{Running, finish};
pub use python::{python_environment, python_file};
pub use snapshots::{SnapshotCleanup, TestKernel, copy_with_time, shared, take_snapshot};

/// How long the stress test goes on, in seconds; each kind of its work is done at least once.
pub const STRESS_SECONDS_ENV: &str = "EXOPROBE_STRESS_SECONDS";

/// In an `impl ExitHook` of a test that looks at breakpoints alone: the rest of it.
#[macro_export]
macro_rules! only_breakpoints {
    () => {
        fn release(&self, _: &mut exoprobe_guest::HitContext<'_>) {
            unreachable!("it holds no vCPU")
        }

        fn kernel_entered(&self, _: &exoprobe_guest::KernelEntry) -> bool {
            true
        }

        fn reset(&self) {}
    };
}
