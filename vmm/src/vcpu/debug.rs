//! Single steps.

use exoprobe_guest::kvm::report_debug;
use kvm_bindings::kvm_debug_exit_arch;
use kvm_ioctls::{Error, SyncReg, VcpuFd};

/// Sets the trap flag for the next entry. KVM keeps it only while nothing but the guest moves RIP
/// (kvm_set_rflags compares RIP with the value at KVM_SET_GUEST_DEBUG), and a hook moves it.
pub(super) fn arm_step(fd: &mut VcpuFd) -> Result<(), Error> {
    // Changed registers must be in KVM before it compares RIP: KVM_RUN would take them after that.
    if fd.get_kvm_run().kvm_dirty_regs & SyncReg::Register as u64 != 0 {
        fd.set_regs(&fd.sync_regs().regs)?;
        fd.clear_sync_dirty_reg(SyncReg::Register);
    }
    report_debug(fd, true)
}

/// Returns true if a #DB exit is, perhaps besides a step's, for one of the guest's own breakpoints:
/// DR6 has the bit of one that DR7 enables (the CPU also sets those of breakpoints that are not),
/// or BD, for an access to the debug registers themselves (Intel SDM vol. 3, 17.2.3 and 17.2.4).
pub(super) fn is_guests_own(exit: &kvm_debug_exit_arch) -> bool {
    const BD: u64 = 1 << 13;
    let enabled = |n: u32| exit.dr7 >> (2 * n) & 0b11 != 0;
    let hit = |n: u32| exit.dr6 >> n & 1 != 0;
    exit.dr6 & BD != 0 || (0..4).any(|n| enabled(n) && hit(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_enabled_breakpoints_are_the_guests_own() {
        const LOW: u64 = 0xffff_0ff0;
        const BS: u64 = 1 << 14;
        let own = |dr6, dr7| {
            is_guests_own(&kvm_debug_exit_arch { exception: 1, dr6, dr7, ..Default::default() })
        };
        assert!(!own(LOW | BS, 0x400), "a step");
        assert!(!own(LOW | BS | 0xf, 0x400), "none is enabled");
        assert!(!own(LOW | BS | 0b0001, 0x400 | 0b1000), "another is enabled");
        for n in 0..4 {
            for kind in [0b01, 0b10] {
                assert!(own(LOW | 1 << n, 0x400 | kind << (2 * n)), "{n}");
                assert!(own(LOW | BS | 1 << n, 0x400 | kind << (2 * n)), "{n} and a step");
            }
        }
        assert!(own(LOW | 1 << 13, 0x2400), "BD");
    }
}
