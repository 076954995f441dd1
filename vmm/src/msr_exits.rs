//! Selects the guest's writes of model-specific registers that exit to the VMM before they are
//! done.

use exoprobe_guest::kvm;
use exoprobe_guest::msr::MSR_GS_BASE;
use kvm_ioctls::{Error, VmFd};

use crate::profile::HostProfile;

/// Makes the writes exit that this VMM handles: of IA32_GS_BASE if it is `available`, and of the
/// register that the host's quirk needs.
///
/// # Errors
/// KVM's.
pub(crate) fn request(vm: &VmFd, profile: HostProfile, available: bool) -> Result<(), Error> {
    let quirk = profile.software.and_then(|quirk| quirk.wants_msr());
    let wanted: Vec<u32> = available.then_some(MSR_GS_BASE).into_iter().chain(quirk).collect();
    kvm::filter_msrs(vm, &wanted)
}
