//! Calls of KVM that every VMM with the engine makes.

use kvm_bindings::{
    KVM_CAP_X86_USER_SPACE_MSR, KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_SINGLESTEP,
    KVM_GUESTDBG_USE_SW_BP, KVM_MSR_EXIT_REASON_FILTER, KVM_MSR_FILTER_WRITE,
    KVM_VCPUEVENT_VALID_SHADOW, KVM_X86_SHADOW_INT_STI, Msrs, kvm_enable_cap, kvm_guest_debug,
    kvm_msr_entry,
};
use kvm_ioctls::{
    Cap, Error, Kvm, MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VcpuFd, VmFd,
};

use crate::msr::{MSR_GS_BASE, MSR_TSC};
use crate::quirks::SoftwareKvm;
use crate::registers::Registers;
use crate::time::GuestClock;

/// Vector of #BP.
pub const VECTOR_BREAKPOINT: u8 = 3;
const EINVAL: i32 = 22;
/// Number of readings of the time-stamp counter; the quickest is used.
const TSC_READINGS: usize = 5;

/// Returns true if KVM can exit at writes of model-specific registers: Linux 5.10 and later.
#[must_use]
pub fn can_filter_msrs(kvm: &Kvm) -> bool {
    kvm.check_extension(Cap::X86UserSpaceMsr) && kvm.check_extension(Cap::X86MsrFilter)
}

/// Makes writes of model-specific registers exit: with `sees_kernel_entry`, those of IA32_GS_BASE,
/// which report the kernel's entry to the engine; on software-only KVM, those that its quirk needs.
/// Must be called before the vCPUs of a boot run, and is quickest before the interrupt chips are
/// created: after them KVM waits 15 ms for their readers (`synchronize_srcu` is not expedited while
/// a callback is queued).
///
/// # Errors
/// KVM's.
pub fn request_msr_exits(
    vm: &VmFd,
    sees_kernel_entry: bool,
    software: Option<SoftwareKvm>,
) -> Result<(), Error> {
    let quirk = software.and_then(SoftwareKvm::wants_msr);
    let wanted = sees_kernel_entry.then_some(MSR_GS_BASE).into_iter().chain(quirk);
    filter_msrs(vm, &wanted.collect::<Vec<_>>())
}

/// Makes the guest's writes of `msrs` exit (KVM_EXIT_X86_WRMSR), at most 16.
///
/// # Errors
/// KVM's.
fn filter_msrs(vm: &VmFd, msrs: &[u32]) -> Result<(), Error> {
    if msrs.is_empty() {
        return Ok(());
    }
    let flags = MsrFilterRangeFlags::from_bits_truncate(KVM_MSR_FILTER_WRITE);
    let range = |base: &u32| MsrFilterRange { flags, base: *base, msr_count: 1, bitmap: &[0] };
    let ranges: Vec<_> = msrs.iter().map(range).collect();
    let cap = KVM_CAP_X86_USER_SPACE_MSR;
    let mut request = kvm_enable_cap { cap, ..kvm_enable_cap::default() };
    request.args[0] = u64::from(KVM_MSR_EXIT_REASON_FILTER);
    vm.enable_cap(&request)?;
    vm.set_msr_filter(MsrFilterDefaultAction::ALLOW, &ranges)
}

/// Makes the guest's int3s exit and, with `single_step`, each instruction.
///
/// # Errors
/// KVM's.
pub fn report_debug(vcpu: &VcpuFd, single_step: bool) -> Result<(), Error> {
    let step = if single_step { KVM_GUESTDBG_SINGLESTEP } else { 0 };
    let control = KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_SW_BP | step;
    vcpu.set_guest_debug(&kvm_guest_debug { control, ..kvm_guest_debug::default() })
}

/// Injects a #BP, for [`crate::BreakpointAction::PassToGuest`]. RIP must be on the int3 on
/// hardware, where KVM adds its length, and after it on software-only KVM.
///
/// # Errors
/// KVM's.
pub fn inject_breakpoint(vcpu: &VcpuFd) -> Result<(), Error> {
    let mut events = vcpu.get_vcpu_events()?;
    events.exception.injected = 1;
    events.exception.nr = VECTOR_BREAKPOINT;
    events.exception.has_error_code = 0;
    vcpu.set_vcpu_events(&events)
}

/// Holds interrupts until the end of the next instruction, as STI does, for
/// [`crate::HitContext::sti_shadow`] with RFLAGS.IF set. A CPU has no shadow over masked
/// interrupts.
///
/// # Errors
/// KVM's.
///
/// # Panics
/// Never: the flag fits.
pub(super) fn shadow_sti(vcpu: &VcpuFd) -> Result<(), Error> {
    let mut events = vcpu.get_vcpu_events()?;
    events.interrupt.shadow = u8::try_from(KVM_X86_SHADOW_INT_STI).expect("a flag of a byte");
    events.flags |= KVM_VCPUEVENT_VALID_SHADOW;
    vcpu.set_vcpu_events(&events)
}

/// Reads a model-specific register.
///
/// # Errors
/// KVM's; EINVAL for a register that it does not have.
///
/// # Panics
/// Never: one entry fits.
pub(super) fn msr(vcpu: &VcpuFd, index: u32) -> Result<u64, Error> {
    let entry = kvm_msr_entry { index, ..kvm_msr_entry::default() };
    let mut msrs = Msrs::from_entries(&[entry]).expect("one entry");
    match vcpu.get_msrs(&mut msrs)? {
        1 => Ok(msrs.as_slice()[0].data),
        _ => Err(Error::new(EINVAL)),
    }
}

/// Completes a write of a model-specific register that has exited: sets the register or, if KVM
/// refuses the value, makes the instruction end in a #GP. Returns true if it was set.
///
/// # Errors
/// KVM's.
///
/// # Panics
/// Never: one entry fits.
pub(super) fn complete_wrmsr(vcpu: &mut VcpuFd, index: u32, value: u64) -> Result<bool, Error> {
    let entry = kvm_msr_entry { index, data: value, ..kvm_msr_entry::default() };
    let is_set = vcpu.set_msrs(&Msrs::from_entries(&[entry]).expect("one entry"))? == 1;
    if !is_set {
        vcpu.get_kvm_run().__bindgen_anon_1.msr.error = 1;
    }
    Ok(is_set)
}

/// Reads the registers of a vCPU that is out of the guest.
///
/// # Errors
/// KVM's.
pub(super) fn registers(vcpu: &VcpuFd) -> Result<Registers, Error> {
    Ok(Registers { regs: vcpu.get_regs()?, sregs: vcpu.get_sregs()? })
}

/// The number to add to the vCPU's time-stamp counter to get the guest's time, in ticks, for
/// [`crate::Guest::tsc_offset`]. Uses the quickest of several readings: the counter was read in the
/// middle of it.
///
/// # Errors
/// As [`msr`].
///
/// # Panics
/// Never: it reads at least once.
pub(super) fn tsc_offset(vcpu: &VcpuFd, clock: &GuestClock) -> Result<u64, Error> {
    let mut least: Option<(u64, u64)> = None;
    for _ in 0..TSC_READINGS {
        let before = clock.now().0;
        let tsc = msr(vcpu, MSR_TSC)?;
        let took = clock.now().0.saturating_sub(before);
        if least.is_none_or(|(other, _)| took < other) {
            least = Some((took, (before + took / 2).wrapping_sub(tsc)));
        }
    }
    Ok(least.expect("one at least").1)
}
