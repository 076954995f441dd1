//! A vCPU: one thread owns its file descriptor and does all its ioctls. Others send it commands
//! and kick it out of the guest (immediate_exit and a real-time signal).

mod kick;
mod run;
mod state;
mod thread;

pub(crate) use state::VcpuState;
pub(crate) use thread::{Vcpu, VcpuRemote};

use std::sync::mpsc::SyncSender;

use kvm_bindings::{kvm_regs, kvm_sregs};

/// Registers of a vCPU that is out of the guest.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    /// General registers.
    pub regs: kvm_regs,
    /// Segment and control registers.
    pub sregs: kvm_sregs,
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

type Reply<T> = SyncSender<Result<T, kvm_ioctls::Error>>;

/// What others ask of a vCPU's thread. Each is answered out of the guest.
pub(crate) enum Command {
    /// Stay out of the guest.
    Pause(Reply<()>),
    /// Run.
    Resume(Reply<()>),
    /// Only answer: whoever waits knows that the vCPU left the guest since.
    Sync(Reply<()>),
    /// Read the registers.
    Registers(Reply<Box<Registers>>),
    /// Read one model-specific register.
    Msr(u32, Reply<u64>),
    /// Read all state for a snapshot.
    Save(Reply<Box<VcpuState>>),
    /// Another vCPU stopped the machine.
    Halt,
    /// End the thread.
    Exit,
}
