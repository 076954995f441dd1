//! Memory slots.

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Error, VmFd};
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion, GuestRegionMmap};

use crate::hidden::HiddenMemory;
use crate::memory::GuestRam;

/// Maps the guest's RAM, one slot per region, and hidden memory in the slot after them.
///
/// # Errors
/// KVM's.
///
/// # Panics
/// Never: there are a few regions.
///
/// # Safety
/// `ram` and `hidden`, or clones of them, must live while vCPUs of `vm` run.
pub unsafe fn register_memory(
    vm: &VmFd,
    ram: &GuestRam,
    hidden: &HiddenMemory,
) -> Result<(), Error> {
    let (host, len) = hidden.host_mapping();
    let ram = slots(ram, 0);
    let slot = u32::try_from(ram.len()).expect("a few regions");
    let hidden = kvm_userspace_memory_region {
        slot,
        flags: 0,
        guest_phys_addr: hidden.gpa().0,
        memory_size: len,
        userspace_addr: host as u64,
    };
    for region in ram.into_iter().chain([hidden]) {
        // SAFETY: the mapping has that length; the caller keeps its owner.
        unsafe { vm.set_user_memory_region(region)? };
    }
    Ok(())
}

/// The memory slots of RAM, by number: one per region, in order.
pub(super) fn slots(ram: &GuestRam, flags: u32) -> Vec<kvm_userspace_memory_region> {
    let slot = |(slot, region): (u32, &GuestRegionMmap)| kvm_userspace_memory_region {
        slot,
        flags,
        guest_phys_addr: region.start_addr().0,
        memory_size: region.len(),
        userspace_addr: region.as_ptr() as u64,
    };
    (0..).zip(ram.as_vm_memory().iter()).map(slot).collect()
}
