//! The machine as the engine drives it: `impl Guest`.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use exoprobe_guest::msr::MSR_TSC;
use exoprobe_guest::{
    Guest, GuestClock, GuestRam, HiddenMemory, KvmError, Registers, VcpuError, kvm_sregs,
};
use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::VcpuFd;
use libc::{c_int, c_void, siginfo_t};
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

use crate::vcpu::{Command, Vcpu};

/// One vCPU and the memory.
pub(crate) struct Machine {
    pub(crate) ram: GuestRam,
    pub(crate) hidden: HiddenMemory,
    pub(crate) clock: GuestClock,
    pub(crate) commands: Sender<Command>,
    pub(crate) thread: OnceLock<JoinHandle<()>>,
}

impl Machine {
    /// Runs the vCPU in a thread of its own. Its signal does nothing but end KVM_RUN.
    pub(crate) fn start(&self, vcpu: Vcpu) -> std::io::Result<()> {
        extern "C" fn ignore(_: c_int, _: *mut siginfo_t, _: *mut c_void) {}
        register_signal_handler(SIGRTMIN(), ignore)?;
        let thread = Builder::new().name("vcpu0".to_owned()).spawn(move || {
            if let Err(error) = vcpu.run() {
                eprintln!("the vCPU has stopped: {error}");
            }
        })?;
        self.thread.set(thread).map_err(|_| std::io::Error::other("started twice"))
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.thread.get().is_some_and(JoinHandle::is_finished)
    }

    /// Has the vCPU's thread do something outside the guest, where it stays until `hold` is gone.
    fn ask_and_hold<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut VcpuFd) -> Result<T, KvmError> + Send + 'static,
        hold: Receiver<()>,
    ) -> Result<T, VcpuError> {
        let (reply, answer) = sync_channel(1);
        let command = move |fd: &mut VcpuFd| {
            let _ = (reply.send(work(fd)), hold.recv());
        };
        self.commands.send(Box::new(command)).map_err(|_| VcpuError::Gone(0))?;
        loop {
            // A signal that comes just before KVM_RUN is lost: the next one is not.
            let _ = self.thread.get().ok_or(VcpuError::Gone(0))?.kill(SIGRTMIN());
            match answer.recv_timeout(Duration::from_millis(1)) {
                Ok(answer) => return Ok(answer?),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(VcpuError::Gone(0)),
            }
        }
    }

    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut VcpuFd) -> Result<T, KvmError> + Send + 'static,
    ) -> Result<T, VcpuError> {
        self.ask_and_hold(work, channel().1)
    }
}

impl Guest for Machine {
    fn ram(&self) -> &GuestRam {
        &self.ram
    }

    fn hidden(&self) -> &HiddenMemory {
        &self.hidden
    }

    fn vcpus(&self) -> u8 {
        1
    }

    fn sregs(&self) -> Result<kvm_sregs, VcpuError> {
        self.ask(|fd| fd.get_sregs())
    }

    fn msr(&self, index: u32) -> Result<u64, VcpuError> {
        self.ask(move |fd| {
            let entry = kvm_msr_entry { index, ..kvm_msr_entry::default() };
            let mut msrs = Msrs::from_entries(&[entry]).expect("one entry");
            fd.get_msrs(&mut msrs)?;
            Ok(msrs.as_slice()[0].data)
        })
    }

    fn tsc_offset(&self) -> Result<u64, VcpuError> {
        Ok(self.clock.now().0.wrapping_sub(self.msr(MSR_TSC)?))
    }

    fn sync_vcpus(&self) -> Result<(), VcpuError> {
        self.ask(|_| Ok(()))
    }

    fn with_vcpus_still(&self, access: &mut dyn FnMut(&[Registers])) -> Result<(), VcpuError> {
        let (hold, released) = channel();
        let registers =
            |fd: &mut VcpuFd| Ok(Registers { regs: fd.get_regs()?, sregs: fd.get_sregs()? });
        access(&[self.ask_and_hold(registers, released)?]);
        drop(hold);
        Ok(())
    }

    fn stopped(&self) -> bool {
        self.has_ended()
    }
}
