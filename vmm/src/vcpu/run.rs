//! Runs KVM_RUN and handles each exit.

use exoprobe_guest::kvm::{AfterExit, ProbeExit};
use kvm_ioctls::VcpuExit;

use super::core::Vcpu;
use super::debug;
use super::exits::ExitKind;
use crate::devices::PortEffect;
use crate::profile::BreakpointExit;
use crate::status::StopReason;
use exoprobe_guest::GuestTime;

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
    Probe(ProbeExit),
    Step,
    /// A debug exception that was not requested: its vector and DR6.
    UnexpectedDebug(u32, u64),
    /// It is counted when it is known whether it is a breakpoint.
    InternalError,
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
            Ok(VcpuExit::MmioRead(gpa, data)) => {
                if !bus.pci().read_memory(gpa, data) {
                    data.fill(0xff);
                }
                (ExitKind::Mmio, Pending::Nothing)
            }
            Ok(VcpuExit::MmioWrite(gpa, data)) => {
                bus.pci().write_memory(gpa, data);
                (ExitKind::Mmio, Pending::Nothing)
            }
            Ok(VcpuExit::Debug(arch)) => {
                let int3s_come_here = self.machine.profile.breakpoint == BreakpointExit::Debug;
                match arch.exception {
                    EXCEPTION_BREAKPOINT if int3s_come_here => {
                        (ExitKind::Breakpoint, Pending::Probe(ProbeExit::Breakpoint))
                    }
                    EXCEPTION_DEBUG if self.stepping && !debug::is_guests_own(&arch) => {
                        (ExitKind::Step, Pending::Step)
                    }
                    other => (ExitKind::Other, Pending::UnexpectedDebug(other, arch.dr6)),
                }
            }
            Ok(VcpuExit::InternalError) => return Pending::InternalError,
            Ok(VcpuExit::X86Wrmsr(write)) => {
                (ExitKind::Msr, Pending::Probe(ProbeExit::WriteMsr(write.index, write.data)))
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
            Pending::Probe(exit) => self.probe_exit(exit),
            Pending::UnexpectedDebug(exception, dr6) => Next::Stop(failed(format!(
                "a debug exception (vector {exception}, DR6 {dr6:#x}) of the guest's own, which cannot \
                 be handed back to it"
            ))),
            Pending::InternalError => {
                let is_breakpoint = self.probes.is_breakpoint(&mut self.fd);
                self.exits.count(if is_breakpoint {
                    ExitKind::Breakpoint
                } else {
                    ExitKind::Other
                });
                self.probe_exit(ProbeExit::InternalError)
            }
            Pending::Stop(reason) => Next::Stop(self.machine.refine(reason)),
        }
    }

    fn after_port(&self, effect: PortEffect) -> Next {
        match effect {
            PortEffect::Reset => return Next::Stop(self.machine.refine(StopReason::Reset)),
            PortEffect::PowerOff => return Next::Stop(StopReason::PoweredOff),
            PortEffect::None => {}
        }
        match self.machine.console_watch.end() {
            Some(reason) => Next::Stop(reason),
            None => Next::Continue,
        }
    }

    /// An exit that concerns the hook.
    fn probe_exit(&mut self, exit: ProbeExit) -> Next {
        let hook = self.machine.hook().map(|hook| &**hook);
        match self.probes.handle(&mut self.fd, exit, hook) {
            Ok(AfterExit::Run) => Next::Continue,
            Ok(AfterExit::Hold(time)) => Next::Hold(time),
            Ok(AfterExit::KernelEntry(entry)) => {
                self.entering = Some(*entry);
                Next::Continue
            }
            Err(error) => Next::Stop(failed(error.to_string())),
        }
    }
}

fn failed(message: String) -> StopReason {
    StopReason::Failed { message }
}
