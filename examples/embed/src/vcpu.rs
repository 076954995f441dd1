//! The vCPU's thread: KVM_RUN, and the meaning of each exit.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use exoprobe_guest::quirks::software_kvm::{EmulationFailure, SoftwareKvm, skip};
use exoprobe_guest::{BreakpointAction, ExitHook, GuestClock, GuestRam, HiddenMemory, HitContext};
use exoprobe_guest::{Gva, KernelEntry, kvm, msr};
use kvm_ioctls::{VcpuExit, VcpuFd};

use crate::error::Result;
use crate::machine::{Command, Port};

/// The vCPU, and all that its exits need.
pub(crate) struct Vcpu {
    pub(crate) fd: VcpuFd,
    pub(crate) commands: Receiver<Command>,
    pub(crate) clock: GuestClock,
    pub(crate) ram: GuestRam,
    pub(crate) hidden: HiddenMemory,
    pub(crate) software: Option<SoftwareKvm>,
    pub(crate) entry: msr::EntryWatch,
    pub(crate) ports: [(u16, Port); 2],
}

/// An exit that needs the vCPU's registers.
enum Exit {
    Done,
    Breakpoint,
    EmulationFailure,
    Wrmsr(u32, u64),
}

impl Vcpu {
    /// Runs the guest until an exit that this VMM does not know.
    pub(crate) fn run(&mut self, hook: &Arc<dyn ExitHook>) -> Result<()> {
        self.entry.begin_boot();
        loop {
            self.obey();
            match self.enter()? {
                Exit::Done => {}
                Exit::Breakpoint => self.breakpoint(hook)?,
                Exit::EmulationFailure => self.emulation_failure(hook)?,
                Exit::Wrmsr(index, value) => self.wrmsr(index, value, hook)?,
            }
        }
    }

    fn obey(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            command(&mut self.fd);
        }
    }

    fn enter(&mut self) -> Result<Exit> {
        let port = |at: u16| self.ports.iter().find(|(base, _)| (*base..base + 8).contains(&at));
        match self.fd.run() {
            Ok(VcpuExit::IoOut(at, data)) => {
                if let Some((base, port)) = port(at) {
                    let _ = port.lock().unwrap().write(u8::try_from(at - base)?, data[0]);
                }
            }
            Ok(VcpuExit::IoIn(at, data)) => match port(at) {
                Some((base, port)) => data[0] = port.lock().unwrap().read(u8::try_from(at - base)?),
                None => data.fill(0xff),
            },
            Ok(VcpuExit::MmioRead(_, data)) => data.fill(0xff),
            Ok(VcpuExit::MmioWrite(..)) => {}
            Ok(VcpuExit::Debug(exit)) if exit.exception == 3 => return Ok(Exit::Breakpoint),
            Ok(VcpuExit::InternalError) => return Ok(Exit::EmulationFailure),
            Ok(VcpuExit::X86Wrmsr(write)) => return Ok(Exit::Wrmsr(write.index, write.data)),
            Ok(other) => return Err(format!("an exit that is not known: {other:?}").into()),
            // A command has come.
            Err(error) if error.errno() == libc::EINTR => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Exit::Done)
    }

    /// An int3: the engine's, or the guest's own.
    fn breakpoint(&mut self, hook: &Arc<dyn ExitHook>) -> Result<()> {
        let (mut regs, sregs) = (self.fd.get_regs()?, || self.fd.get_sregs());
        let mut context = HitContext::new(0, &mut regs, self.clock.now(), &sregs);
        let action = hook.breakpoint(&mut context);
        let shadow = context.has_sti_shadow();
        // Software-only KVM does not add the int3's length when it injects.
        let own = action == BreakpointAction::PassToGuest;
        regs.rip += u64::from(own && self.software.is_some());
        self.fd.set_regs(&regs)?;
        match action {
            BreakpointAction::Resume if shadow => kvm::shadow_sti(&self.fd)?,
            BreakpointAction::Resume => {}
            BreakpointAction::PassToGuest => kvm::inject_breakpoint(&self.fd)?,
            BreakpointAction::Hold => return Err("no probe here holds the guest".into()),
        }
        Ok(())
    }

    /// Software-only KVM cannot emulate an int3, and some instructions that are no matter.
    fn emulation_failure(&mut self, hook: &Arc<dyn ExitHook>) -> Result<()> {
        let software = self.software.ok_or("KVM reports an internal error")?;
        let failure = software.classify(self.fd.get_kvm_run());
        let mut regs = self.fd.get_regs()?;
        match failure {
            EmulationFailure::Breakpoint => return self.breakpoint(hook),
            EmulationFailure::Skip(len) => skip(&mut regs, len),
            EmulationFailure::NoRandomNumber(request) => request.refuse(&mut regs),
            EmulationFailure::Fatal => return Err(format!("cannot emulate {:#x}", regs.rip).into()),
        }
        Ok(self.fd.set_regs(&regs)?)
    }

    /// A write that the MSR filter has stopped.
    fn wrmsr(&mut self, index: u32, value: u64, hook: &Arc<dyn ExitHook>) -> Result<()> {
        let (rip, sregs) = (Gva(self.fd.get_regs()?.rip), self.fd.get_sregs()?);
        if !kvm::complete_wrmsr(&mut self.fd, index, value)? {
            return Ok(());
        }
        if self.entry.is_entry(index, rip) {
            // The engine may be in a call that waits for this very vCPU.
            while !hook.kernel_entered(&KernelEntry { rip, sregs: self.fd.get_sregs()? }) {
                self.obey();
            }
        }
        if let (msr::MSR_LSTAR, Some(software)) = (index, self.software) {
            software.install_assist(&self.ram, &self.hidden, &sregs, Gva(value))?;
        }
        Ok(())
    }
}
