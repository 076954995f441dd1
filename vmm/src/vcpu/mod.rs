//! A vCPU: one thread owns its file descriptor and does all its ioctls. Others send it commands
//! and kick it out of the guest (immediate_exit and a real-time signal).

mod debug;
mod exits;
mod hold;
mod kick;
mod power_on;
mod run;
mod state;
mod stats;
mod thread;

pub(crate) use debug::report_debug;
pub use exits::ExitCounts;
pub(crate) use state::{Refusal, VcpuState};
pub use stats::StatsError;
pub(crate) use thread::{Pending, Vcpu, VcpuRemote};

use std::convert::Infallible as Never;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use kvm_bindings::{kvm_regs, kvm_sregs};

use crate::boot::Entry;

/// Registers of a vCPU that is out of the guest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Registers {
    /// General registers.
    pub regs: kvm_regs,
    /// Segment and control registers.
    pub sregs: kvm_sregs,
}

/// A general-purpose register by the number that instructions have for it: 0 is RAX, 4 RSP, 15 R15 (Intel SDM
/// vol. 2, table 3-1). They have none above 15.
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

/// Why a vCPU gave no answer.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum VcpuError {
    /// Its thread has ended.
    #[error("vCPU {0} has ended")]
    Gone(u8),
    /// There is none of this index.
    #[error("there is no vCPU {0}")]
    NoSuchVcpu(u8),
    /// KVM refused.
    #[error("KVM: {0}")]
    Kvm(#[from] kvm_ioctls::Error),
}

/// Why a vCPU does not step.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum StepError {
    /// It did not answer.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// KVM refused.
    #[error("KVM on this host does not single-step guests (KVM_GUESTDBG_SINGLESTEP): {0}")]
    Refused(kvm_ioctls::Error),
}

pub(crate) type Reply<T> = SyncSender<Result<T, kvm_ioctls::Error>>;

/// What others ask of a vCPU's thread. Each is answered out of the guest.
pub(crate) enum Command {
    /// Stay out of the guest.
    Pause(Reply<()>),
    /// The same, from a vCPU that is held and waits for no answer.
    StayOut,
    /// Run.
    Resume(Reply<()>),
    /// Only answer: whoever waits knows that the vCPU left the guest since.
    Sync(Reply<()>),
    /// Read the registers.
    Registers(Reply<Box<Registers>>),
    /// Tell the registers, and do nothing until whoever asked lets go of the other end.
    StandStill(Receiver<Never>, Reply<Box<Registers>>),
    /// Read one model-specific register.
    Msr(u32, Reply<u64>),
    /// Tell what the time-stamp counter lacks of the guest's time.
    TscOffset(Reply<u64>),
    /// Exit after each instruction, or no more.
    SingleStep(bool, Reply<()>),
    /// Read all state for a snapshot.
    Save(Reply<Box<VcpuState>>),
    /// Forget the guest and wait, paused, in this state.
    PowerOn(Arc<VcpuState>, Reply<Result<(), Refusal>>),
    /// Go to the kernel's entry point.
    SetEntry(Entry, Reply<()>),
    /// Another vCPU stopped the machine.
    Halt,
    /// End the thread.
    Exit,
}
