//! Registers of a vCPU, and the errors of reading them.

use kvm_bindings::{kvm_regs, kvm_sregs};

/// Registers of a vCPU that is out of the guest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Registers {
    /// General registers.
    pub regs: kvm_regs,
    /// Segment and control registers.
    pub sregs: kvm_sregs,
}

/// A general-purpose register by its number in the encoding of instructions: 0 is RAX, 4 RSP, 15
/// R15 (Intel SDM vol. 2, table 3-1). No number is above 15.
pub fn gpr(regs: &mut kvm_regs, number: u8) -> &mut u64 {
    match number {
        0 => &mut regs.rax,
        1 => &mut regs.rcx,
        2 => &mut regs.rdx,
        3 => &mut regs.rbx,
        4 => &mut regs.rsp,
        5 => &mut regs.rbp,
        6 => &mut regs.rsi,
        7 => &mut regs.rdi,
        8 => &mut regs.r8,
        9 => &mut regs.r9,
        10 => &mut regs.r10,
        11 => &mut regs.r11,
        12 => &mut regs.r12,
        13 => &mut regs.r13,
        14 => &mut regs.r14,
        _ => &mut regs.r15,
    }
}

/// The reason why a vCPU gave no answer.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum VcpuError {
    /// Its thread has ended.
    #[error("vCPU {0} has ended")]
    Gone(u8),
    /// No vCPU has this index.
    #[error("there is no vCPU {0}")]
    NoSuchVcpu(u8),
    /// KVM refused.
    #[error("KVM: {0}")]
    Kvm(#[from] vmm_sys_util::errno::Error),
}
