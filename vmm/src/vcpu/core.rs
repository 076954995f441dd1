//! The state of a vCPU's thread.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use kvm_ioctls::VcpuFd;

use super::command::Command;
use super::exits::ExitCounters;
use crate::machine::Machine;
use crate::status::{StopReason, StopRecord};
use exoprobe_guest::GuestTime;
use exoprobe_guest::KernelEntry;
use exoprobe_guest::kvm::ProbeExits;

/// The work of a vCPU's thread between two commands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Paused,
    /// Paused in the middle of a hit at this time; the hook must complete it.
    Held(GuestTime),
    Running,
    /// Until the machine is booted again.
    Stopped,
}

/// A vCPU with all that its thread needs.
pub(crate) struct Vcpu {
    pub(super) fd: VcpuFd,
    pub(super) index: u8,
    pub(super) machine: Arc<Machine>,
    /// Deals with the exits that concern the hook.
    pub(super) probes: ProbeExits,
    pub(super) exits: Arc<ExitCounters>,
    pub(super) stepping: bool,
    /// The kernel has begun on this vCPU. The hook must be called before the vCPU continues.
    pub(super) entering: Option<KernelEntry>,
    pub(super) mode: Mode,
    pub(super) commands: Receiver<Command>,
}

impl Vcpu {
    /// Stops the machine for `reason`.
    pub(super) fn stop(&mut self, reason: StopReason) {
        self.mode = Mode::Stopped;
        let regs = self.fd.get_regs().unwrap_or_default();
        let seconds = self.probes.clock.seconds(self.probes.clock.now());
        self.machine.stop(StopRecord { reason, vcpu: self.index, regs, seconds });
    }
}
