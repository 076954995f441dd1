//! Finds out how this host's KVM behaves, by running guests of a few instructions.

mod guest;

use kvm_bindings::kvm_vcpu_events;
use kvm_ioctls::Kvm;

use crate::host::{BreakpointExit, HostProfile, Reinjection};
use crate::quirks::SoftwareKvm;
use guest::{Observed, ProbeGuest};

const VECTOR_BREAKPOINT: u8 = 3;
const VECTOR_PAGE_FAULT: u8 = 14;

/// Why the host could not be understood.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// KVM refused to make or run a probe guest.
    #[error("KVM cannot run a probe guest: {0}")]
    Kvm(#[from] kvm_ioctls::Error),
    /// Memory for it could not be mapped.
    #[error(transparent)]
    Memory(#[from] crate::memory::MemoryError),
    /// It did something no known host does.
    #[error("probe guest `{probe}`: {observed}; please report this host")]
    Unknown {
        /// Which one.
        probe: &'static str,
        /// What was seen.
        observed: String,
    },
}

/// Runs all probe guests.
///
/// # Errors
/// [`PreflightError`].
pub(crate) fn examine(kvm: &Kvm) -> Result<HostProfile, PreflightError> {
    let breakpoint = breakpoint_exit(kvm)?;
    let reinjection = reinjection(kvm)?;
    let syscall_faults = syscall_faults(kvm)?;
    let software = (breakpoint == BreakpointExit::EmulationFailure || syscall_faults)
        .then_some(SoftwareKvm { syscall_faults });
    Ok(HostProfile { breakpoint, reinjection, software })
}

fn unknown(probe: &'static str, observed: &Observed) -> PreflightError {
    PreflightError::Unknown { probe, observed: format!("{observed:?}") }
}

fn breakpoint_exit(kvm: &Kvm) -> Result<BreakpointExit, PreflightError> {
    let mut probe = ProbeGuest::kernel(kvm, &[0xcc, 0xf4])?;
    match probe.run()? {
        Observed::Debug { exception: VECTOR_BREAKPOINT } => Ok(BreakpointExit::Debug),
        Observed::EmulationFailure => Ok(BreakpointExit::EmulationFailure),
        other => Err(unknown("int3 in kernel mode", &other)),
    }
}

/// Hands a guest its own int3 back both ways; right is the one after which its handler finds the
/// address behind the int3 on its stack.
fn reinjection(kvm: &Kvm) -> Result<Reinjection, PreflightError> {
    let mut last = Observed::Halted;
    for candidate in [Reinjection::OnInt3, Reinjection::BehindInt3] {
        let mut probe = ProbeGuest::kernel(kvm, &[0xcc, 0xf4])?;
        probe.run()?;
        let advance = u64::from(candidate == Reinjection::BehindInt3);
        let mut regs = probe.vcpu.get_regs()?;
        regs.rip = guest::CODE + advance;
        probe.vcpu.set_regs(&regs)?;
        probe.vcpu.set_vcpu_events(&breakpoint_event(probe.vcpu.get_vcpu_events()?))?;
        last = probe.run()?;
        let expected = Observed::Vector { number: VECTOR_BREAKPOINT, rip: guest::CODE + 1 };
        if last == expected {
            return Ok(candidate);
        }
    }
    Err(unknown("int3 handed back", &last))
}

/// `events` with a #BP that KVM is to inject.
pub(crate) fn breakpoint_event(mut events: kvm_vcpu_events) -> kvm_vcpu_events {
    events.exception.injected = 1;
    events.exception.nr = VECTOR_BREAKPOINT;
    events.exception.has_error_code = 0;
    events
}

fn syscall_faults(kvm: &Kvm) -> Result<bool, PreflightError> {
    let mut probe = ProbeGuest::user(kvm, &[0x0f, 0x05])?;
    match probe.run()? {
        Observed::SystemCall => Ok(false),
        Observed::Vector { number: VECTOR_PAGE_FAULT, .. } => Ok(true),
        other => Err(unknown("syscall from user mode", &other)),
    }
}
