//! Memory slots.

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Error, VmFd};
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

use crate::hidden::HiddenMemory;
use crate::memory::GuestRam;

/// Maps the guest's RAM, one slot per region, and hidden memory in the slot after them.
///
/// # Errors
/// KVM's.
///
/// # Safety
/// `ram` and `hidden`, or clones of them, must live while vCPUs of `vm` run.
pub unsafe fn register_memory(
    vm: &VmFd,
    ram: &GuestRam,
    hidden: &HiddenMemory,
) -> Result<(), Error> {
    let regions = ram.as_vm_memory().iter();
    let slots = regions.map(|region| (region.start_addr().0, region.as_ptr(), region.len()));
    let (host, len) = hidden.host_mapping();
    let slots = slots.chain([(hidden.gpa().0, host, len)]);
    for (slot, (guest_phys_addr, host, memory_size)) in (0..).zip(slots) {
        let region = kvm_userspace_memory_region {
            slot,
            flags: 0,
            guest_phys_addr,
            memory_size,
            userspace_addr: host as u64,
        };
        // SAFETY: the mapping has that length; the caller keeps its owner.
        unsafe { vm.set_user_memory_region(region)? };
    }
    Ok(())
}
