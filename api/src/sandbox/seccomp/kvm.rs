//! Numbers of KVM's requests (ioctl(2); linux/kvm.h), with their names.

use kvm_bindings::{
    kvm_clear_dirty_log, kvm_clock_data, kvm_cpuid2, kvm_debugregs, kvm_dirty_log, kvm_enable_cap,
    kvm_fpu, kvm_guest_debug, kvm_ioeventfd, kvm_irq_level, kvm_irqchip, kvm_lapic_state,
    kvm_mp_state, kvm_msi, kvm_msr_filter, kvm_msrs, kvm_pit_state2, kvm_regs, kvm_sregs,
    kvm_userspace_memory_region, kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use libc::{_IO, _IOR, _IOW, _IOWR, Ioctl};

use super::call::Value;

const KVMIO: u32 = kvm_bindings::KVMIO;

const fn request(name: &'static str, number: Ioctl) -> Value {
    Value { name, value: number }
}

/// An interrupt of a device, by a message.
pub(super) const SIGNAL_MSI: Value = request("KVM_SIGNAL_MSI", _IOW::<kvm_msi>(KVMIO, 0xa5));
/// An interrupt line.
pub(super) const IRQ_LINE: Value = request("KVM_IRQ_LINE", _IOW::<kvm_irq_level>(KVMIO, 0x61));
/// Notifications of a driver that are events.
pub(super) const IOEVENTFD: Value = request("KVM_IOEVENTFD", _IOW::<kvm_ioeventfd>(KVMIO, 0x79));

const ENABLE_CAP: Value = request("KVM_ENABLE_CAP", _IOW::<kvm_enable_cap>(KVMIO, 0xa3));

/// The log of the pages that the guest writes: it is switched on, read, cleared and switched off.
/// The switch is a flag of the slots of memory.
pub(super) const OF_DIRTY_LOG: &[Value] = &[
    request("KVM_CLEAR_DIRTY_LOG", _IOWR::<kvm_clear_dirty_log>(KVMIO, 0xc0)),
    request("KVM_GET_DIRTY_LOG", _IOW::<kvm_dirty_log>(KVMIO, 0x42)),
    request("KVM_SET_USER_MEMORY_REGION", _IOW::<kvm_userspace_memory_region>(KVMIO, 0x46)),
    ENABLE_CAP,
];

/// Those of a vCPU, and of the machine that its exits need. The first is by far the most frequent,
/// and a filter compares in this order.
pub(super) const OF_VCPU: &[Value] = &[
    request("KVM_RUN", _IO(KVMIO, 0x80)),
    SIGNAL_MSI,
    IRQ_LINE,
    IOEVENTFD,
    request("KVM_GET_REGS", _IOR::<kvm_regs>(KVMIO, 0x81)),
    request("KVM_SET_REGS", _IOW::<kvm_regs>(KVMIO, 0x82)),
    request("KVM_GET_SREGS", _IOR::<kvm_sregs>(KVMIO, 0x83)),
    request("KVM_SET_SREGS", _IOW::<kvm_sregs>(KVMIO, 0x84)),
    request("KVM_GET_MSRS", _IOWR::<kvm_msrs>(KVMIO, 0x88)),
    request("KVM_SET_MSRS", _IOW::<kvm_msrs>(KVMIO, 0x89)),
    request("KVM_SET_FPU", _IOW::<kvm_fpu>(KVMIO, 0x8d)),
    request("KVM_GET_LAPIC", _IOR::<kvm_lapic_state>(KVMIO, 0x8e)),
    request("KVM_SET_LAPIC", _IOW::<kvm_lapic_state>(KVMIO, 0x8f)),
    request("KVM_GET_CPUID2", _IOWR::<kvm_cpuid2>(KVMIO, 0x91)),
    request("KVM_GET_MP_STATE", _IOR::<kvm_mp_state>(KVMIO, 0x98)),
    request("KVM_SET_MP_STATE", _IOW::<kvm_mp_state>(KVMIO, 0x99)),
    request("KVM_SET_GUEST_DEBUG", _IOW::<kvm_guest_debug>(KVMIO, 0x9b)),
    request("KVM_GET_VCPU_EVENTS", _IOR::<kvm_vcpu_events>(KVMIO, 0x9f)),
    request("KVM_SET_VCPU_EVENTS", _IOW::<kvm_vcpu_events>(KVMIO, 0xa0)),
    request("KVM_GET_DEBUGREGS", _IOR::<kvm_debugregs>(KVMIO, 0xa1)),
    request("KVM_SET_DEBUGREGS", _IOW::<kvm_debugregs>(KVMIO, 0xa2)),
    request("KVM_GET_XSAVE", _IOR::<kvm_xsave>(KVMIO, 0xa4)),
    request("KVM_SET_XSAVE", _IOW::<kvm_xsave>(KVMIO, 0xa5)),
    request("KVM_GET_XCRS", _IOR::<kvm_xcrs>(KVMIO, 0xa6)),
    request("KVM_SET_XCRS", _IOW::<kvm_xcrs>(KVMIO, 0xa7)),
];

/// Those of a machine that runs: input of its ports, snapshots, reboots.
pub(super) const OF_MACHINE: &[Value] = &[
    IRQ_LINE,
    SIGNAL_MSI,
    IOEVENTFD,
    request("KVM_GET_IRQCHIP", _IOWR::<kvm_irqchip>(KVMIO, 0x62)),
    request("KVM_SET_IRQCHIP", _IOR::<kvm_irqchip>(KVMIO, 0x63)),
    request("KVM_GET_PIT2", _IOR::<kvm_pit_state2>(KVMIO, 0x9f)),
    request("KVM_SET_PIT2", _IOW::<kvm_pit_state2>(KVMIO, 0xa0)),
    request("KVM_GET_CLOCK", _IOR::<kvm_clock_data>(KVMIO, 0x7c)),
    ENABLE_CAP,
    request("KVM_X86_SET_MSR_FILTER", _IOW::<kvm_msr_filter>(KVMIO, 0xc6)),
];
