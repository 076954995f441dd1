//! The exits that concern the engine.

use std::sync::Arc;

use kvm_ioctls::{Error, SyncReg, VcpuExit, VcpuFd};

use super::calls::{complete_wrmsr, inject_breakpoint, report_debug, shadow_sti};
use crate::addr::Gva;
use crate::hidden::HiddenMemory;
use crate::hook::{BreakpointAction, ExitHook, HitContext, KernelEntry};
use crate::memory::GuestRam;
use crate::msr::{EntryWatch, MSR_LSTAR};
use crate::quirks::software_kvm::{AssistError, EmulationFailure, SoftwareKvm, skip};
use crate::time::{GuestClock, GuestTime};

const EXCEPTION_BREAKPOINT: u32 = 3;

/// Value of RIP at which a #BP must be injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reinjection {
    /// On the int3: KVM adds its length when it injects.
    OnInt3,
    /// After the int3: software-only KVM.
    AfterInt3,
}

/// Makes int3s exit and makes KVM_RUN share the general registers (KVM_CAP_SYNC_REGS), so that a
/// hit costs no ioctl for them. Must be called once per vCPU, before it runs.
///
/// # Errors
/// KVM's.
pub fn prepare_vcpu(vcpu: &mut VcpuFd) -> Result<(), Error> {
    vcpu.set_sync_valid_reg(SyncReg::Register);
    report_debug(vcpu, false)
}

/// An exit that concerns the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeExit {
    /// KVM_EXIT_DEBUG with exception 3.
    Breakpoint,
    /// KVM_EXIT_INTERNAL_ERROR: on software-only KVM, an int3 or an instruction that KVM does not
    /// emulate.
    InternalError,
    /// KVM_EXIT_X86_WRMSR: a register and its new value.
    WriteMsr(u32, u64),
}

impl ProbeExit {
    /// `None` for an exit that does not concern the engine: it is the VMM's own.
    #[must_use]
    pub fn of(exit: &VcpuExit<'_>) -> Option<Self> {
        match exit {
            VcpuExit::Debug(arch) if arch.exception == EXCEPTION_BREAKPOINT => {
                Some(Self::Breakpoint)
            }
            VcpuExit::InternalError => Some(Self::InternalError),
            VcpuExit::X86Wrmsr(write) => Some(Self::WriteMsr(write.index, write.data)),
            _ => None,
        }
    }
}

/// The VMM's next step after [`ProbeExits::handle`].
#[derive(Clone, Debug)]
pub enum AfterExit {
    /// Enter the guest again.
    Run,
    /// A probe holds the guest in a hit of this time ([`BreakpointAction::Hold`]): keep the vCPU
    /// outside until it is resumed, then call [`ProbeExits::release`]. The registers are in KVM.
    Hold(GuestTime),
    /// The kernel has begun: call [`ExitHook::kernel_entered`] until it returns true, before the
    /// vCPU enters the guest. Answer other threads between the calls.
    KernelEntry(Box<KernelEntry>),
}

/// The reason why the guest cannot continue after an exit.
#[derive(Debug, thiserror::Error)]
pub enum ExitError {
    /// KVM refused to carry out the hook's answer to a breakpoint.
    #[error("KVM refused the answer to a breakpoint: {0}")]
    Breakpoint(Error),
    /// KVM refused a call for a write of a model-specific register.
    #[error("MSR {index:#x}: {source}")]
    Msr {
        /// The register.
        index: u32,
        /// KVM's error.
        source: Error,
    },
    /// The stub for system calls could not be placed.
    #[error("system-call assist: {0}")]
    Assist(#[from] AssistError),
    /// KVM_EXIT_INTERNAL_ERROR, on hardware.
    #[error("KVM reports an internal error")]
    Internal,
    /// Software-only KVM has no emulation for an instruction of the guest's kernel.
    #[error("KVM cannot emulate the instruction at {0}")]
    NotEmulated(Gva),
}

/// Handles the exits of one vCPU that concern the engine. The vCPU must have been passed to
/// [`prepare_vcpu`]. Registers that [`Self::handle`] changes reach KVM at the next KVM_RUN, and
/// KVM_GET_REGS returns the old ones until then: so answer other threads after KVM_RUN has returned
/// EINTR, or when [`AfterExit`] says so.
#[derive(Clone, Debug)]
pub struct ProbeExits {
    /// Index of the vCPU.
    pub vcpu: u8,
    /// The guest's clock.
    pub clock: GuestClock,
    /// The way in which a #BP of the guest's own is injected.
    pub reinjection: Reinjection,
    /// Set on software-only KVM.
    pub software: Option<SoftwareKvm>,
    /// Recognizes the kernel's entry: one for all vCPUs of a guest.
    pub entry: Arc<EntryWatch>,
    /// The guest's RAM.
    pub ram: GuestRam,
    /// The guest's hidden memory.
    pub hidden: HiddenMemory,
}

impl ProbeExits {
    /// Handles an exit of `vcpu`. Without a hook the guest gets its #BP at each int3.
    ///
    /// # Errors
    /// [`ExitError`]: the guest must not continue.
    pub fn handle(
        &self,
        vcpu: &mut VcpuFd,
        exit: ProbeExit,
        hook: Option<&dyn ExitHook>,
    ) -> Result<AfterExit, ExitError> {
        match exit {
            ProbeExit::Breakpoint => self.breakpoint(vcpu, hook).map_err(ExitError::Breakpoint),
            ProbeExit::InternalError => self.internal_error(vcpu, hook),
            ProbeExit::WriteMsr(index, value) => self.write_msr(vcpu, index, value),
        }
    }

    /// Returns true if an internal error that has just exited is an int3.
    #[must_use]
    pub fn is_breakpoint(&self, vcpu: &mut VcpuFd) -> bool {
        let failure = self.software.map(|quirk| quirk.classify(vcpu.get_kvm_run()));
        failure == Some(EmulationFailure::Breakpoint)
    }

    /// Makes the hook complete a held hit of `time`. Writes the registers to KVM at once.
    ///
    /// # Errors
    /// KVM's.
    pub fn release(
        &self,
        vcpu: &VcpuFd,
        hook: &dyn ExitHook,
        time: GuestTime,
    ) -> Result<(), Error> {
        let mut regs = vcpu.get_regs()?;
        let sregs = || vcpu.get_sregs();
        let mut context = HitContext::new(self.vcpu, &mut regs, time, &sregs);
        hook.release(&mut context);
        let sti_shadow = context.has_sti_shadow();
        vcpu.set_regs(&regs)?;
        if sti_shadow { shadow_sti(vcpu) } else { Ok(()) }
    }

    fn breakpoint(
        &self,
        vcpu: &mut VcpuFd,
        hook: Option<&dyn ExitHook>,
    ) -> Result<AfterExit, Error> {
        let mut regs = vcpu.sync_regs_mut().regs;
        let time = self.clock.now();
        let sregs = || vcpu.get_sregs();
        let mut context = HitContext::new(self.vcpu, &mut regs, time, &sregs);
        let pass = BreakpointAction::PassToGuest;
        let action = hook.map_or(pass, |hook| hook.breakpoint(&mut context));
        let sti_shadow = context.has_sti_shadow();
        match action {
            BreakpointAction::Resume => {
                vcpu.sync_regs_mut().regs = regs;
                vcpu.set_sync_dirty_reg(SyncReg::Register);
                if sti_shadow {
                    shadow_sti(vcpu)?;
                }
            }
            // Written to KVM at once: registers requested meanwhile are read from KVM.
            BreakpointAction::Hold => {
                vcpu.set_regs(&regs)?;
                return Ok(AfterExit::Hold(time));
            }
            BreakpointAction::PassToGuest => {
                regs.rip = vcpu.sync_regs_mut().regs.rip;
                vcpu.sync_regs_mut().regs = regs;
                vcpu.set_sync_dirty_reg(SyncReg::Register);
                if self.reinjection == Reinjection::AfterInt3 {
                    skip(&mut vcpu.sync_regs_mut().regs, 1);
                }
                inject_breakpoint(vcpu)?;
            }
        }
        Ok(AfterExit::Run)
    }

    fn internal_error(
        &self,
        vcpu: &mut VcpuFd,
        hook: Option<&dyn ExitHook>,
    ) -> Result<AfterExit, ExitError> {
        let software = self.software.ok_or(ExitError::Internal)?;
        let failure = software.classify(vcpu.get_kvm_run());
        let regs = &mut vcpu.sync_regs_mut().regs;
        match failure {
            EmulationFailure::Breakpoint => {
                return self.breakpoint(vcpu, hook).map_err(ExitError::Breakpoint);
            }
            EmulationFailure::Fatal => return Err(ExitError::NotEmulated(Gva(regs.rip))),
            EmulationFailure::Skip(len) => skip(regs, len),
            EmulationFailure::NoRandomNumber(request) => request.refuse(regs),
        }
        vcpu.set_sync_dirty_reg(SyncReg::Register);
        Ok(AfterExit::Run)
    }

    /// A filtered WRMSR, which is not done yet.
    fn write_msr(&self, vcpu: &mut VcpuFd, index: u32, value: u64) -> Result<AfterExit, ExitError> {
        let refused = |source| ExitError::Msr { index, source };
        if !complete_wrmsr(vcpu, index, value).map_err(refused)? {
            return Ok(AfterExit::Run);
        }
        let rip = Gva(vcpu.sync_regs().regs.rip);
        let assist = self.software.filter(|_| index == MSR_LSTAR);
        let is_entry = self.entry.is_entry(index, rip);
        if !is_entry && assist.is_none() {
            return Ok(AfterExit::Run);
        }
        let sregs = vcpu.get_sregs().map_err(refused)?;
        if let Some(quirk) = assist {
            quirk.install_assist(&self.ram, &self.hidden, &sregs, Gva(value))?;
        }
        let entry = is_entry.then(|| Box::new(KernelEntry { rip, sregs }));
        Ok(entry.map_or(AfterExit::Run, AfterExit::KernelEntry))
    }
}
