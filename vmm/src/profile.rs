//! Results of preflight: the behaviour of the host's KVM.

use exoprobe_guest::kvm::Reinjection;
use exoprobe_guest::quirks::SoftwareKvm;

/// How the guest's int3 reaches the VMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakpointExit {
    /// KVM_EXIT_DEBUG with exception 3, as KVM documents.
    Debug,
    /// An emulation failure whose instruction bytes start with int3.
    EmulationFailure,
}

/// The behaviour of the host's KVM, found by preflight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostProfile {
    /// How breakpoints exit.
    pub breakpoint: BreakpointExit,
    /// How they are handed back.
    pub reinjection: Reinjection,
    /// Set on software-only KVM.
    pub software: Option<SoftwareKvm>,
    /// KVM's dirty log has every store of the guest. Without it, jmps are written and removed while
    /// the guest stands still until all of its RAM is searched.
    pub dirty_log: bool,
}
