//! Requests of the engine to a vCPU's thread.

use std::convert::Infallible as Never;
use std::sync::mpsc::{Receiver, channel};

use kvm_ioctls::VcpuFd;

use super::calls;
use super::thread::{Reply, VcpuThread};
use crate::registers::{Registers, VcpuError};
use crate::time::GuestClock;

/// A command that the engine's calls of [`crate::Guest`] need. A VMM whose threads accept other
/// commands too has a variant for these, and implements `From<Request>`.
pub enum Request {
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
}

impl Request {
    /// Carries out the request on the vCPU's thread, outside the guest. An answer that no thread
    /// waits for any more is dropped.
    pub fn serve(self, vcpu: &VcpuFd, clock: &GuestClock) {
        let registers = || calls::registers(vcpu).map(Box::new);
        match self {
            Self::Sync(reply) => drop(reply.send(Ok(()))),
            Self::Registers(reply) => drop(reply.send(registers())),
            Self::StandStill(until, reply) => {
                drop(reply.send(registers()));
                // Ends when the other end is dropped: nothing can be sent.
                let _ = until.recv();
            }
            Self::Msr(index, reply) => drop(reply.send(calls::msr(vcpu, index))),
            Self::TscOffset(reply) => drop(reply.send(calls::tsc_offset(vcpu, clock))),
        }
    }
}

impl<C: From<Request> + Send + 'static> VcpuThread<C> {
    /// Registers of the vCPU, which is taken out of the guest for a moment.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn registers(&self) -> Result<Registers, VcpuError> {
        self.ask(|reply| Request::Registers(reply).into()).map(|registers| *registers)
    }

    /// A model-specific register of the vCPU.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn msr(&self, index: u32) -> Result<u64, VcpuError> {
        self.ask(|reply| Request::Msr(index, reply).into())
    }

    /// The number to add to the vCPU's time-stamp counter to get the guest's time, in ticks;
    /// accurate to some microseconds.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn tsc_offset(&self) -> Result<u64, VcpuError> {
        self.ask(|reply| Request::TscOffset(reply).into())
    }
}

/// Stops every vCPU of `vcpus` outside the guest, calls `access` with their registers, and resumes
/// them when it returns. Must not be called on a vCPU's thread.
///
/// # Errors
/// [`VcpuError`]; `access` was not called.
pub fn with_vcpus_still<'a, C: From<Request> + Send + 'static, T>(
    vcpus: impl IntoIterator<Item = &'a VcpuThread<C>>,
    access: impl FnOnce(&[Registers]) -> T,
) -> Result<T, VcpuError> {
    let mut standing = Vec::new();
    let mut pending = Vec::new();
    for vcpu in vcpus {
        let (hold, until) = channel();
        standing.push(hold);
        pending.push(vcpu.begin(|reply| Request::StandStill(until, reply).into())?);
    }
    let registers = pending.into_iter().map(|answer| answer.wait().map(|registers| *registers));
    let registers = registers.collect::<Result<Vec<_>, _>>()?;
    let result = access(&registers);
    drop(standing);
    Ok(result)
}
