//! Runs KVM_RUN and handles each exit.

use exoprobe_guest::kvm;
use kvm_ioctls::{SyncReg, VcpuExit};

use super::core::Vcpu;
use super::debug;
use super::exits::ExitKind;
use crate::devices::PortEffect;
use crate::profile::{BreakpointExit, Reinjection};
use crate::status::StopReason;
use exoprobe_guest::GuestTime;
use exoprobe_guest::Gva;
use exoprobe_guest::msr::{MSR_GS_BASE, MSR_LSTAR};
use exoprobe_guest::quirks::software_kvm::{self, EmulationFailure};
use exoprobe_guest::{BreakpointAction, HitContext, KernelEntry};

const EXCEPTION_DEBUG: u32 = 1;
const EXCEPTION_BREAKPOINT: u32 = 3;

/// The next step of the vCPU's thread.
pub(super) enum Next {
    /// Enter the guest again.
    Continue,
    /// A kick: read the commands first.
    Interrupted,
    /// Pause the machine in the middle of a hit at this time.
    Hold(GuestTime),
    /// The guest has stopped.
    Stop(StopReason),
}

/// An exit that needs more than the shared run page.
enum Pending {
    Nothing,
    Interrupted,
    Port(PortEffect),
    Breakpoint,
    Step,
    /// A debug exception that was not requested: its vector and DR6.
    UnexpectedDebug(u32, u64),
    InternalError,
    WriteMsr(u32, u64),
    Stop(StopReason),
}

impl Vcpu {
    /// Enters the guest once and handles the exit.
    pub(super) fn run_once(&mut self) -> Next {
        if self.stepping
            && let Err(error) = debug::arm_step(&mut self.fd)
        {
            return Next::Stop(failed(format!("single-stepping: {error}")));
        }
        if let Some(entry) = self.entering
            && let Some(hook) = self.machine.hook()
        {
            if !hook.kernel_entered(&entry) {
                std::thread::yield_now();
                return Next::Interrupted;
            }
            self.entering = None;
        }
        let pending = self.enter();
        self.finish(pending)
    }

    fn enter(&mut self) -> Pending {
        let bus = &self.machine.bus;
        let (kind, pending) = match self.fd.run() {
            Ok(VcpuExit::IoOut(port, data)) => {
                (ExitKind::Port, Pending::Port(bus.write(port, data)))
            }
            Ok(VcpuExit::IoIn(port, data)) => {
                bus.read(port, data);
                (ExitKind::Port, Pending::Nothing)
            }
            Ok(VcpuExit::MmioRead(_, data)) => {
                data.fill(0xff);
                (ExitKind::Mmio, Pending::Nothing)
            }
            Ok(VcpuExit::MmioWrite(..)) => (ExitKind::Mmio, Pending::Nothing),
            Ok(VcpuExit::Debug(arch)) => {
                let int3s_come_here = self.machine.profile.breakpoint == BreakpointExit::Debug;
                match arch.exception {
                    EXCEPTION_BREAKPOINT if int3s_come_here => {
                        (ExitKind::Breakpoint, Pending::Breakpoint)
                    }
                    EXCEPTION_DEBUG if self.stepping && !debug::is_guests_own(&arch) => {
                        (ExitKind::Step, Pending::Step)
                    }
                    other => (ExitKind::Other, Pending::UnexpectedDebug(other, arch.dr6)),
                }
            }
            // Counted once it is known whether it is a breakpoint.
            Ok(VcpuExit::InternalError) => return Pending::InternalError,
            Ok(VcpuExit::X86Wrmsr(write)) => {
                (ExitKind::Msr, Pending::WriteMsr(write.index, write.data))
            }
            Ok(VcpuExit::Shutdown) => (ExitKind::Other, Pending::Stop(StopReason::TripleFault)),
            Ok(other) => {
                let message = format!("KVM returned an exit without a handler: {other:?}");
                (ExitKind::Other, Pending::Stop(failed(message)))
            }
            Err(error) => match error.errno() {
                libc::EINTR => (ExitKind::Interrupted, Pending::Interrupted),
                // An application processor that waits for its start-up message was woken.
                libc::EAGAIN => (ExitKind::Interrupted, Pending::Nothing),
                _ => (ExitKind::Other, Pending::Stop(failed(format!("KVM_RUN: {error}")))),
            },
        };
        self.exits.count(kind);
        pending
    }

    fn finish(&mut self, pending: Pending) -> Next {
        match pending {
            Pending::Nothing | Pending::Step => Next::Continue,
            Pending::Interrupted => Next::Interrupted,
            Pending::Port(effect) => self.after_port(effect),
            Pending::Breakpoint => self.breakpoint(),
            Pending::UnexpectedDebug(exception, dr6) => Next::Stop(failed(format!(
                "a debug exception (vector {exception}, DR6 {dr6:#x}) of the guest's own, which cannot \
                 be handed back to it"
            ))),
            Pending::InternalError => self.internal_error(),
            Pending::WriteMsr(index, value) => self.write_msr(index, value),
            Pending::Stop(reason) => Next::Stop(self.machine.refine(reason)),
        }
    }

    fn after_port(&self, effect: PortEffect) -> Next {
        if effect == PortEffect::Reset {
            return Next::Stop(self.machine.refine(StopReason::Reset));
        }
        match self.machine.console_watch.end() {
            Some(reason) => Next::Stop(reason),
            None => Next::Continue,
        }
    }

    /// The guest's int3: calls the hook or passes it to the guest.
    fn breakpoint(&mut self) -> Next {
        let mut regs = self.fd.sync_regs_mut().regs;
        let (vcpu, time) = (self.index, self.clock.now());
        let sregs = || self.fd.get_sregs();
        let mut context = HitContext::new(vcpu, &mut regs, time, &sregs);
        let action = self
            .machine
            .hook()
            .map_or(BreakpointAction::PassToGuest, |hook| hook.breakpoint(&mut context));
        let sti_shadow = context.has_sti_shadow();
        match action {
            BreakpointAction::Resume => {
                self.fd.sync_regs_mut().regs = regs;
                self.fd.set_sync_dirty_reg(SyncReg::Register);
                match self.shadow_sti(sti_shadow) {
                    Ok(()) => Next::Continue,
                    Err(error) => {
                        Next::Stop(failed(format!("holding interrupts after an STI: {error}")))
                    }
                }
            }
            // Written to KVM at once: registers requested meanwhile are read from KVM.
            BreakpointAction::Hold => match self.fd.set_regs(&regs) {
                Ok(()) => Next::Hold(time),
                Err(error) => {
                    Next::Stop(failed(format!("holding a vCPU at a breakpoint: {error}")))
                }
            },
            BreakpointAction::PassToGuest => match self.pass_breakpoint() {
                Ok(()) => Next::Continue,
                Err(error) => {
                    Next::Stop(failed(format!("passing a breakpoint to the guest: {error}")))
                }
            },
        }
    }

    /// Holds interrupts after an STI that a hook has emulated.
    pub(super) fn shadow_sti(&self, wanted: bool) -> Result<(), kvm_ioctls::Error> {
        if wanted { kvm::shadow_sti(&self.fd) } else { Ok(()) }
    }

    fn pass_breakpoint(&mut self) -> Result<(), kvm_ioctls::Error> {
        if self.machine.profile.reinjection == Reinjection::BehindInt3 {
            let regs = &mut self.fd.sync_regs_mut().regs;
            regs.rip = regs.rip.wrapping_add(1);
            self.fd.set_sync_dirty_reg(SyncReg::Register);
        }
        kvm::inject_breakpoint(&self.fd)
    }

    fn internal_error(&mut self) -> Next {
        let Some(quirk) = self.machine.profile.software else {
            self.exits.count(ExitKind::Other);
            return Next::Stop(failed("KVM reports an internal error".to_owned()));
        };
        let failure = quirk.classify(self.fd.get_kvm_run());
        let breakpoint = failure == EmulationFailure::Breakpoint;
        self.exits.count(if breakpoint { ExitKind::Breakpoint } else { ExitKind::Other });
        match failure {
            EmulationFailure::Breakpoint => self.breakpoint(),
            EmulationFailure::Skip(len) => {
                software_kvm::skip(&mut self.fd.sync_regs_mut().regs, len);
                self.fd.set_sync_dirty_reg(SyncReg::Register);
                Next::Continue
            }
            EmulationFailure::NoRandomNumber(request) => {
                request.refuse(&mut self.fd.sync_regs_mut().regs);
                self.fd.set_sync_dirty_reg(SyncReg::Register);
                Next::Continue
            }
            EmulationFailure::Fatal => {
                let rip = self.fd.sync_regs_mut().regs.rip;
                Next::Stop(failed(format!("KVM cannot emulate the instruction at {rip:#x}")))
            }
        }
    }

    /// A filtered WRMSR, which is not done yet (see `msr_exits`).
    fn write_msr(&mut self, index: u32, value: u64) -> Next {
        match kvm::complete_wrmsr(&mut self.fd, index, value) {
            Ok(true) => {}
            Ok(false) => return Next::Continue,
            Err(error) => return Next::Stop(failed(format!("MSR {index:#x}: {error}"))),
        }
        let done = match index {
            MSR_GS_BASE => self.tell_kernel_entry(),
            MSR_LSTAR => self.assist_system_calls(Gva(value)),
            _ => Ok(()),
        };
        done.map_or_else(|message| Next::Stop(failed(message)), |()| Next::Continue)
    }

    /// Handles a write of IA32_GS_BASE: the first one at the kernel's own addresses marks the
    /// kernel's beginning.
    fn tell_kernel_entry(&mut self) -> Result<(), String> {
        let rip = Gva(self.fd.sync_regs().regs.rip);
        if !self.machine.entry.is_entry(MSR_GS_BASE, rip) {
            return Ok(());
        }
        let sregs = self.fd.get_sregs().map_err(|e| format!("at the kernel's entry: {e}"))?;
        self.entering = Some(KernelEntry { rip, sregs });
        Ok(())
    }

    fn assist_system_calls(&self, lstar: Gva) -> Result<(), String> {
        let machine = &self.machine;
        let Some(quirk) = machine.profile.software else { return Ok(()) };
        let sregs = self.fd.get_sregs().map_err(|e| format!("system-call assist: {e}"))?;
        quirk
            .install_assist(&machine.ram, &machine.hidden, &sregs, lstar)
            .map_err(|e| format!("system-call assist: {e}"))
    }
}

fn failed(message: String) -> StopReason {
    StopReason::Failed { message }
}
