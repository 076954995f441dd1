//! Commands to a vCPU's thread.

use std::sync::Arc;

use super::state::{Refusal, VcpuState};
use crate::boot::BootEntry;
use exoprobe_guest::kvm::{Reply, Request};

/// Work that other threads request from a vCPU's thread. It does each outside the guest.
pub(crate) enum Command {
    /// Stay out of the guest.
    Pause(Reply<()>),
    /// The same, sent by a held vCPU, which waits for no answer.
    StayOut,
    /// Run.
    Resume(Reply<()>),
    /// The engine's.
    Guest(Request),
    /// Exit after each instruction, or no more.
    SingleStep(bool, Reply<()>),
    /// Read all state for a snapshot.
    Save(Reply<Box<VcpuState>>),
    /// Drop the guest's state and wait, paused, in this state.
    PowerOn(Arc<VcpuState>, Reply<Result<(), Refusal>>),
    /// Go to the kernel's entry point.
    SetEntry(BootEntry, Reply<()>),
    /// Stop the machine, if the text of its consoles says that the guest has stopped.
    CheckConsoles,
    /// Stop the machine: a thread other than a vCPU's has failed. The message says which.
    Fail(String),
    /// Another vCPU stopped the machine.
    Halt,
    /// End the thread.
    Exit,
}

impl From<Request> for Command {
    fn from(request: Request) -> Self {
        Self::Guest(request)
    }
}
