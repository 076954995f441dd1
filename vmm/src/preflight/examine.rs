//! The probe guests, and the conclusions drawn from them.

use kvm_bindings::CpuId;
use kvm_ioctls::Kvm;

use super::error::PreflightError;
use super::guest::{self, BareHost, Observed, ProbeGuest};
use crate::profile::{BreakpointExit, HostProfile};
use exoprobe_guest::Gpa;
use exoprobe_guest::dirty::{DirtyLog, PageSet};
use exoprobe_guest::kvm::{KvmDirtyLog, Reinjection, VECTOR_BREAKPOINT, inject_breakpoint};
use exoprobe_guest::quirks::SoftwareKvm;

const VECTOR_PAGE_FAULT: u8 = 14;

/// Runs all probe guests. `supported_cpuid` is KVM's answer to KVM_GET_SUPPORTED_CPUID.
///
/// # Errors
/// [`PreflightError`].
pub(crate) fn examine(kvm: &Kvm, supported_cpuid: &CpuId) -> Result<HostProfile, PreflightError> {
    let host = BareHost { kvm, supported_cpuid };
    let breakpoint = breakpoint_exit(host)?;
    let reinjection = reinjection(host)?;
    let user = user_mode(host)?;
    let software =
        (breakpoint == BreakpointExit::EmulationFailure || user.syscall_faults).then_some(user);
    Ok(HostProfile { breakpoint, reinjection, software, dirty_log: logs_stores(host)? })
}

/// Returns true if KVM's dirty log has stores of each kind, also after it was cleared. KVM of Linux
/// 5.19 to 6.7 leaves out those of a locked cmpxchg that it emulates.
fn logs_stores(host: BareHost<'_>) -> Result<bool, PreflightError> {
    // push rax; mov [0xd000], rax; mov rax, [0xe000]; mov ebx, 1; lock cmpxchg [0xe000], rbx;
    // mov edi, 0xf000; mov ecx, 1; rep stosq; hlt; jmp to the start
    const CODE: [u8; 48] = [
        0x50, 0x48, 0x89, 0x04, 0x25, 0, 0xd0, 0, 0, 0x48, 0x8b, 0x04, 0x25, 0, 0xe0, 0, 0, 0xbb,
        1, 0, 0, 0, 0xf0, 0x48, 0x0f, 0xb1, 0x1c, 0x25, 0, 0xe0, 0, 0, 0xbf, 0, 0xf0, 0, 0, 0xb9,
        1, 0, 0, 0, 0xf3, 0x48, 0xab, 0xf4, 0xeb, 0xd0,
    ];
    const STORED: [Gpa; 4] = [Gpa(0xa000), Gpa(0xd000), Gpa(0xe000), Gpa(0xf000)];
    let mut probe = ProbeGuest::kernel(host, &CODE)?;
    // SAFETY: the RAM is the machine's one slot.
    let Ok(mut log) = (unsafe { KvmDirtyLog::start(&probe.vm, &probe.ram) }) else {
        return Ok(false);
    };
    let mut pages = PageSet::all(&probe.ram);
    for _ in 0..2 {
        while let Some(run) = pages.take_run(usize::MAX) {
            if log.clear(&run).is_err() {
                return Ok(false);
            }
        }
        match guest::observe(&mut probe.vcpu, &probe.ram)? {
            Observed::Halted => {}
            other => return Err(unknown("stores in kernel mode", &other)),
        }
        let has_all = |pages: &PageSet| STORED.into_iter().all(|page| pages.contains(page));
        if log.read(&mut pages).is_err() || !has_all(&pages) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn unknown(probe: &'static str, observed: &Observed) -> PreflightError {
    PreflightError::Unknown { probe, observed: format!("{observed:?}") }
}

fn breakpoint_exit(host: BareHost<'_>) -> Result<BreakpointExit, PreflightError> {
    let mut probe = ProbeGuest::kernel(host, &[0xcc, 0xf4])?;
    match probe.run()? {
        Observed::Debug { exception: VECTOR_BREAKPOINT } => Ok(BreakpointExit::Debug),
        Observed::EmulationFailure => Ok(BreakpointExit::EmulationFailure),
        other => Err(unknown("int3 in kernel mode", &other)),
    }
}

/// Injects a guest's own int3 in both ways. The correct one is the one after which the guest's
/// handler finds the address after the int3 on its stack.
fn reinjection(host: BareHost<'_>) -> Result<Reinjection, PreflightError> {
    let mut last = Observed::Halted;
    for candidate in [Reinjection::OnInt3, Reinjection::AfterInt3] {
        let mut probe = ProbeGuest::kernel(host, &[0xcc, 0xf4])?;
        probe.run()?;
        let advance = u64::from(candidate == Reinjection::AfterInt3);
        let mut regs = probe.vcpu.get_regs()?;
        regs.rip = guest::CODE + advance;
        probe.vcpu.set_regs(&regs)?;
        inject_breakpoint(&probe.vcpu)?;
        last = probe.run()?;
        let expected = Observed::Vector { number: VECTOR_BREAKPOINT, rip: guest::CODE + 1 };
        if last == expected {
            return Ok(candidate);
        }
    }
    Err(unknown("int3 handed back", &last))
}

/// Reads CPUID and makes a system call in user mode. CR4.OSXSAVE is clear: so is the flag in CPUID,
/// unless it is the host's own.
fn user_mode(host: BareHost<'_>) -> Result<SoftwareKvm, PreflightError> {
    // mov eax, 1; cpuid; mov esi, ecx; syscall
    const CODE: [u8; 11] = [0xb8, 1, 0, 0, 0, 0x0f, 0xa2, 0x89, 0xce, 0x0f, 0x05];
    const ECX_OSXSAVE: u64 = 1 << 27;
    let mut probe = ProbeGuest::user(host, &CODE)?;
    let syscall_faults = match probe.run()? {
        Observed::SystemCall => false,
        Observed::Vector { number: VECTOR_PAGE_FAULT, .. } => true,
        other => return Err(unknown("cpuid and syscall in user mode", &other)),
    };
    let host_cpuid = probe.vcpu.get_regs()?.rsi & ECX_OSXSAVE != 0;
    Ok(SoftwareKvm { syscall_faults, host_cpuid })
}
