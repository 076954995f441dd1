//! KVM's part of the machine.

use std::sync::Arc;

use exoprobe_guest::quirks::SoftwareKvm;
use exoprobe_guest::{GuestRam, HiddenMemory, KvmError, cpuid, kvm};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_pit_config};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use vm_superio::Trigger;

/// An ISA interrupt line.
pub(crate) struct Line(pub(crate) Arc<VmFd>, pub(crate) u32);

impl Trigger for Line {
    type E = KvmError;

    fn trigger(&self) -> Result<(), KvmError> {
        self.0.set_irq_line(self.1, true)?;
        self.0.set_irq_line(self.1, false)
    }
}

/// Makes a machine with KVM's interrupt chips and timer, RAM, hidden memory, and a vCPU whose int3s
/// exit.
pub(crate) fn create(
    kvm: &Kvm,
    ram: &GuestRam,
    hidden: &HiddenMemory,
    software: Option<SoftwareKvm>,
) -> Result<(VmFd, VcpuFd), KvmError> {
    let vm = kvm.create_vm()?;
    // These two before the interrupt chips: after them KVM waits many milliseconds for its readers.
    kvm::request_msr_exits(&vm, true, software)?;
    // SAFETY: the vCPU's `ProbeExits` has clones of both for as long as it runs.
    unsafe { kvm::register_memory(&vm, ram, hidden)? };
    vm.set_tss_address(0xfffb_d000)?;
    vm.set_identity_map_address(0xfffb_c000)?;
    vm.create_irq_chip()?;
    vm.create_pit2(kvm_pit_config::default())?;
    if let Some(quirk) = software {
        vm.enable_cap(&quirk.capability())?;
    }
    let mut vcpu = vm.create_vcpu(0)?;
    let mut supported = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    cpuid::hide_unfit_features(&mut supported, software);
    vcpu.set_cpuid2(&supported)?;
    kvm::prepare_vcpu(&mut vcpu)?;
    Ok((vm, vcpu))
}
