//! KVM_RUN, and what each exit means.

use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::{SyncReg, VcpuExit};

use super::exits::ExitKind;
use super::{Vcpu, debug};
use crate::addr::Gva;
use crate::devices::PortEffect;
use crate::hook::{BreakpointAction, HitContext};
use crate::host::{BreakpointExit, Reinjection};
use crate::preflight::breakpoint_event;
use crate::quirks::software_kvm::{self, EmulationFailure};
use crate::status::StopReason;

const EXCEPTION_DEBUG: u32 = 1;
const EXCEPTION_BREAKPOINT: u32 = 3;

/// What the vCPU's thread does next.
pub(super) enum Next {
    /// Enter the guest again.
    Continue,
    /// A kick: look at the commands first.
    Interrupted,
    /// The guest runs no more.
    Stop(StopReason),
}

/// An exit that needs more than the shared run page.
enum Pending {
    Nothing,
    Interrupted,
    Port(PortEffect),
    Breakpoint,
    Step,
    /// A debug exception that nobody here asked for: its vector and DR6.
    UnexpectedDebug(u32, u64),
    InternalError,
    WriteMsr(u32, u64),
    Stop(StopReason),
}

impl Vcpu {
    /// Enters the guest once and deals with the exit.
    pub(super) fn run_once(&mut self) -> Next {
        if self.stepping
            && let Err(error) = debug::arm_step(&mut self.fd)
        {
            return Next::Stop(failed(format!("single-stepping: {error}")));
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
            // Counted when it is known whether it is a breakpoint.
            Ok(VcpuExit::InternalError) => return Pending::InternalError,
            Ok(VcpuExit::X86Wrmsr(write)) => {
                (ExitKind::Msr, Pending::WriteMsr(write.index, write.data))
            }
            Ok(VcpuExit::Shutdown) => (ExitKind::Other, Pending::Stop(StopReason::TripleFault)),
            Ok(other) => {
                let message = format!("KVM gave an exit without a handler: {other:?}");
                (ExitKind::Other, Pending::Stop(failed(message)))
            }
            Err(error) => match error.errno() {
                libc::EINTR => (ExitKind::Interrupted, Pending::Interrupted),
                // An application processor that waits for its start-up message, and was woken.
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

    /// The guest's int3, on its way to the hook or back to the guest.
    fn breakpoint(&mut self) -> Next {
        let mut regs = self.fd.sync_regs_mut().regs;
        let (vcpu, time) = (self.index, self.clock.now());
        let action = self.machine.hook().map_or(BreakpointAction::PassToGuest, |hook| {
            hook.breakpoint(&mut HitContext { vcpu, regs: &mut regs, time })
        });
        if action == BreakpointAction::PassToGuest {
            if let Err(error) = self.pass_breakpoint() {
                return Next::Stop(failed(format!("handing a breakpoint to the guest: {error}")));
            }
            return Next::Continue;
        }
        self.fd.sync_regs_mut().regs = regs;
        self.fd.set_sync_dirty_reg(SyncReg::Register);
        Next::Continue
    }

    fn pass_breakpoint(&mut self) -> Result<(), kvm_ioctls::Error> {
        if self.machine.profile.reinjection == Reinjection::BehindInt3 {
            self.fd.sync_regs_mut().regs.rip += 1;
            self.fd.set_sync_dirty_reg(SyncReg::Register);
        }
        self.fd.set_vcpu_events(&breakpoint_event(self.fd.get_vcpu_events()?))
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
            EmulationFailure::Fatal => {
                let rip = self.fd.sync_regs_mut().regs.rip;
                Next::Stop(failed(format!("KVM cannot emulate the instruction at {rip:#x}")))
            }
        }
    }

    /// A filtered WRMSR: only the system-call entry is ever filtered.
    fn write_msr(&mut self, index: u32, value: u64) -> Next {
        let machine = &self.machine;
        if let Some(quirk) = machine.profile.software
            && index == software_kvm::MSR_LSTAR
        {
            let installed = self.fd.get_sregs().map_err(|e| e.to_string()).and_then(|sregs| {
                quirk
                    .install_assist(&machine.ram, &machine.hidden, &sregs, Gva(value))
                    .map_err(|e| e.to_string())
            });
            if let Err(error) = installed {
                return Next::Stop(failed(format!("system-call assist: {error}")));
            }
        }
        let entry = kvm_msr_entry { index, data: value, ..kvm_msr_entry::default() };
        let msrs = Msrs::from_entries(&[entry]).expect("one entry");
        match self.fd.set_msrs(&msrs) {
            Ok(1) => Next::Continue,
            Ok(_) => Next::Stop(failed(format!("KVM refuses MSR {index:#x}"))),
            Err(error) => Next::Stop(failed(format!("MSR {index:#x}: {error}"))),
        }
    }
}

fn failed(message: String) -> StopReason {
    StopReason::Failed { message }
}
