//! Which of the guest's writes of model-specific registers come to the VMM before they are done
//! (KVM_X86_SET_MSR_FILTER, Documentation/virt/kvm/api.rst, 4.131).

use kvm_bindings::{
    KVM_CAP_X86_USER_SPACE_MSR, KVM_MSR_EXIT_REASON_FILTER, KVM_MSR_FILTER_WRITE, kvm_enable_cap,
};
use kvm_ioctls::{
    Cap, Error, Kvm, MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VmFd,
};

use crate::profile::HostProfile;
use exoprobe_guest::msr::MSR_GS_BASE;

/// Whether KVM can hand writes over: from Linux 5.10 on.
pub(crate) fn available(kvm: &Kvm) -> bool {
    kvm.check_extension(Cap::X86UserSpaceMsr) && kvm.check_extension(Cap::X86MsrFilter)
}

/// Has KVM hand over what this VMM wants to see: IA32_GS_BASE where it is `available`, and what the host's
/// quirk needs. One call for all, as it takes KVM 15 ms.
///
/// # Errors
/// What KVM said.
pub(crate) fn request(vm: &VmFd, profile: HostProfile, available: bool) -> Result<(), Error> {
    let quirk = profile.software.and_then(|quirk| quirk.wants_msr());
    let wanted = available.then_some(MSR_GS_BASE).into_iter().chain(quirk);
    let ranges: Vec<_> = wanted
        .map(|base| MsrFilterRange {
            flags: MsrFilterRangeFlags::from_bits_truncate(KVM_MSR_FILTER_WRITE),
            base,
            msr_count: 1,
            bitmap: &[0],
        })
        .collect();
    if ranges.is_empty() {
        return Ok(());
    }
    let mut request =
        kvm_enable_cap { cap: KVM_CAP_X86_USER_SPACE_MSR, ..kvm_enable_cap::default() };
    request.args[0] = u64::from(KVM_MSR_EXIT_REASON_FILTER);
    vm.enable_cap(&request)?;
    vm.set_msr_filter(MsrFilterDefaultAction::ALLOW, &ranges)
}
