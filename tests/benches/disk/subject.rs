//! A machine that is measured.

use std::collections::BTreeMap;

/// KVM's own statistics of a vCPU, by name.
pub(crate) type Statistics = BTreeMap<String, u64>;

/// A running guest with a disk, of any VMM.
pub(crate) trait Subject {
    /// Has the guest's workload carry out a command. Returns the count that it answers.
    fn work(&mut self, command: &str) -> u64;
    /// KVM's statistics of its vCPU.
    fn statistics(&mut self) -> Statistics;
}

/// The time-stamp counter.
pub(crate) fn tsc() -> u64 {
    // SAFETY: every x86-64 CPU has RDTSC, and Linux lets programs run it.
    unsafe { core::arch::x86_64::_rdtsc() }
}
