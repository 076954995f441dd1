//! The vCPU's thread: KVM_RUN, what each exit means, and answers to other threads.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use exoprobe_guest::msr::{EntryWatch, MSR_GS_BASE, MSR_LSTAR};
use exoprobe_guest::quirks::software_kvm::{EmulationFailure, SoftwareKvm, skip};
use exoprobe_guest::{
    BreakpointAction, ExitHook, GuestClock, GuestRam, Gva, HiddenMemory, HitContext, KernelEntry,
};
use kvm_bindings::{
    KVM_VCPUEVENT_VALID_SHADOW, KVM_X86_SHADOW_INT_STI, Msrs, kvm_msr_entry, kvm_vcpu_events,
};
use kvm_ioctls::{VcpuExit, VcpuFd};

use crate::Result;
use crate::serial::Serial;

const RFLAGS_IF: u64 = 1 << 9;
const BREAKPOINT: u8 = 3;

/// Work that another thread asks of the vCPU's: each is done outside the guest.
pub(crate) type Command = Box<dyn FnOnce(&mut VcpuFd) + Send>;

/// The vCPU with all that its thread needs.
pub(crate) struct Vcpu {
    pub(crate) fd: VcpuFd,
    pub(crate) commands: Receiver<Command>,
    pub(crate) hook: Arc<dyn ExitHook>,
    pub(crate) clock: GuestClock,
    pub(crate) ram: GuestRam,
    pub(crate) hidden: HiddenMemory,
    pub(crate) software: Option<SoftwareKvm>,
    pub(crate) entry: EntryWatch,
    /// The two serial ports, by their first I/O port.
    pub(crate) ports: [(u16, Arc<Mutex<Serial>>); 2],
}

/// An exit, without a borrow of the vCPU.
enum Exit {
    Handled,
    Breakpoint,
    EmulationFailure,
    Wrmsr(u32, u64),
    Other(String),
}

impl Vcpu {
    /// Runs the guest until an exit that this VMM does not know.
    pub(crate) fn run(mut self) -> Result<()> {
        self.entry.begin_boot();
        loop {
            while let Ok(command) = self.commands.try_recv() {
                command(&mut self.fd);
            }
            match self.enter()? {
                Exit::Handled => {}
                Exit::Breakpoint => self.breakpoint()?,
                Exit::EmulationFailure => self.emulation_failure()?,
                Exit::Wrmsr(index, value) => self.wrmsr(index, value)?,
                Exit::Other(exit) => return Err(exit.into()),
            }
        }
    }

    fn enter(&mut self) -> Result<Exit> {
        let port = |ports: &[(u16, Arc<Mutex<Serial>>); 2], at: u16| {
            let (base, serial) = ports.iter().find(|(base, _)| (*base..base + 8).contains(&at))?;
            Some((u8::try_from(at - base).ok()?, Arc::clone(serial)))
        };
        Ok(match self.fd.run() {
            Ok(VcpuExit::IoOut(at, data)) => {
                if let Some((offset, serial)) = port(&self.ports, at) {
                    data.iter().try_for_each(|byte| serial.lock().unwrap().write(offset, *byte))?;
                }
                Exit::Handled
            }
            Ok(VcpuExit::IoIn(at, data)) => {
                data.fill(0xff);
                if let Some((offset, serial)) = port(&self.ports, at) {
                    data.fill_with(|| serial.lock().unwrap().read(offset));
                }
                Exit::Handled
            }
            Ok(VcpuExit::MmioRead(_, data)) => {
                data.fill(0xff);
                Exit::Handled
            }
            Ok(VcpuExit::MmioWrite(..)) => Exit::Handled,
            Ok(VcpuExit::Debug(exit)) if exit.exception == u32::from(BREAKPOINT) => {
                Exit::Breakpoint
            }
            Ok(VcpuExit::InternalError) => Exit::EmulationFailure,
            Ok(VcpuExit::X86Wrmsr(write)) => Exit::Wrmsr(write.index, write.data),
            Ok(other) => Exit::Other(format!("{other:?}")),
            // EINTR: another thread's signal. It has sent a command.
            Err(error) if [4, 11].contains(&error.errno()) => Exit::Handled,
            Err(error) => return Err(error.into()),
        })
    }

    /// An int3 in the guest: the engine's, or the guest's own.
    fn breakpoint(&mut self) -> Result<()> {
        let mut regs = self.fd.get_regs()?;
        let sregs = || self.fd.get_sregs();
        let mut context = HitContext::new(0, &mut regs, self.clock.now(), &sregs);
        let action = self.hook.breakpoint(&mut context);
        let sti_shadow = context.sti_shadow;
        match action {
            BreakpointAction::Resume => self.fd.set_regs(&regs)?,
            BreakpointAction::Hold => return Err("no probe here has the action `hold`".into()),
            BreakpointAction::PassToGuest => {
                // Hardware adds the length of the int3 when KVM injects; software-only KVM does not.
                regs.rip += u64::from(self.software.is_some());
                self.fd.set_regs(&regs)?;
                let mut events = self.fd.get_vcpu_events()?;
                (events.exception.injected, events.exception.nr) = (1, BREAKPOINT);
                events.exception.has_error_code = 0;
                self.fd.set_vcpu_events(&events)?;
            }
        }
        if action == BreakpointAction::Resume && sti_shadow && regs.rflags & RFLAGS_IF != 0 {
            let mut events: kvm_vcpu_events = self.fd.get_vcpu_events()?;
            events.flags |= KVM_VCPUEVENT_VALID_SHADOW;
            events.interrupt.shadow = u8::try_from(KVM_X86_SHADOW_INT_STI)?;
            self.fd.set_vcpu_events(&events)?;
        }
        Ok(())
    }

    /// Software-only KVM reports an int3 as an instruction that it cannot emulate.
    fn emulation_failure(&mut self) -> Result<()> {
        let software = self.software.ok_or("KVM reports an internal error")?;
        let failure = software.classify(self.fd.get_kvm_run());
        let mut regs = self.fd.get_regs()?;
        match failure {
            EmulationFailure::Breakpoint => return self.breakpoint(),
            EmulationFailure::Skip(len) => skip(&mut regs, len),
            EmulationFailure::NoRandomNumber(request) => request.refuse(&mut regs),
            EmulationFailure::Fatal => {
                return Err(format!("KVM cannot emulate the code at {:#x}", regs.rip).into());
            }
        }
        Ok(self.fd.set_regs(&regs)?)
    }

    /// A write that the MSR filter hands over, not done yet.
    fn wrmsr(&mut self, index: u32, value: u64) -> Result<()> {
        let write = kvm_msr_entry { index, data: value, ..kvm_msr_entry::default() };
        if self.fd.set_msrs(&Msrs::from_entries(&[write])?)? != 1 {
            // The guest gets the #GP that it would have got from the CPU.
            self.fd.get_kvm_run().__bindgen_anon_1.msr.error = 1;
            return Ok(());
        }
        let (rip, sregs) = (Gva(self.fd.get_regs()?.rip), self.fd.get_sregs()?);
        if index == MSR_GS_BASE && self.entry.is_entry(index, rip) {
            // The engine may be busy with a call that waits for this vCPU.
            while !self.hook.kernel_entered(&KernelEntry { rip, sregs }) {
                while let Ok(command) = self.commands.try_recv() {
                    command(&mut self.fd);
                }
            }
        }
        if let (MSR_LSTAR, Some(software)) = (index, self.software) {
            software.install_assist(&self.ram, &self.hidden, &sregs, Gva(value))?;
        }
        Ok(())
    }
}
