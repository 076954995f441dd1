//! Commands to a vCPU's thread.

use std::convert::Infallible as Never;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use super::state::{Refusal, VcpuState};
use crate::boot::Entry;
use exoprobe_guest::Registers;

pub(crate) type Reply<T> = SyncSender<Result<T, kvm_ioctls::Error>>;

/// Work that other threads request from a vCPU's thread. It does each outside the guest.
pub(crate) enum Command {
    /// Stay out of the guest.
    Pause(Reply<()>),
    /// The same, sent by a held vCPU, which waits for no answer.
    StayOut,
    /// Run.
    Resume(Reply<()>),
    /// Only answer: the sender then knows that the vCPU has left the guest.
    Sync(Reply<()>),
    /// Read the registers.
    Registers(Reply<Box<Registers>>),
    /// Answer with the registers, and do nothing until the sender drops the other end.
    StandStill(Receiver<Never>, Reply<Box<Registers>>),
    /// Read one model-specific register.
    Msr(u32, Reply<u64>),
    /// Answer with the difference of the guest's time and the time-stamp counter.
    TscOffset(Reply<u64>),
    /// Exit after each instruction, or no more.
    SingleStep(bool, Reply<()>),
    /// Read all state for a snapshot.
    Save(Reply<Box<VcpuState>>),
    /// Drop the guest's state and wait, paused, in this state.
    PowerOn(Arc<VcpuState>, Reply<Result<(), Refusal>>),
    /// Go to the kernel's entry point.
    SetEntry(Entry, Reply<()>),
    /// Another vCPU stopped the machine.
    Halt,
    /// End the thread.
    Exit,
}
