//! What of a vCPU's debugging KVM reports: breakpoints always, single steps on request.

use kvm_bindings::{
    KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_SINGLESTEP, KVM_GUESTDBG_USE_SW_BP, kvm_guest_debug,
};
use kvm_ioctls::{Error, SyncReg, VcpuFd};

/// Has KVM report the guest's int3s and, if `single_step`, each instruction.
pub(crate) fn report_debug(fd: &VcpuFd, single_step: bool) -> Result<(), Error> {
    let step = if single_step { KVM_GUESTDBG_SINGLESTEP } else { 0 };
    fd.set_guest_debug(&kvm_guest_debug {
        control: KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_SW_BP | step,
        ..kvm_guest_debug::default()
    })
}

/// Sets the trap flag for the next entry. KVM keeps it only as long as nobody but the guest moves RIP
/// (kvm_set_rflags looks whether RIP is where KVM_SET_GUEST_DEBUG saw it), and a hook does.
pub(super) fn arm_step(fd: &mut VcpuFd) -> Result<(), Error> {
    // Changed registers must be in KVM before it looks at RIP: KVM_RUN would take them in after.
    if fd.get_kvm_run().kvm_dirty_regs & SyncReg::Register as u64 != 0 {
        fd.set_regs(&fd.sync_regs().regs)?;
        fd.clear_sync_dirty_reg(SyncReg::Register);
    }
    report_debug(fd, true)
}
