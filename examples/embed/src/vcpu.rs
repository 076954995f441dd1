//! The vCPU's thread: KVM_RUN, and the meaning of each exit.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use exoprobe_guest::ExitHook;
use exoprobe_guest::kvm::{AfterExit, ProbeExit, ProbeExits, Request};
use kvm_ioctls::{VcpuExit, VcpuFd};
use vm_superio::{Serial, serial::NoEvents};

use crate::error::Result;
use crate::machine::Line;

pub(crate) type Port = Arc<Mutex<Serial<Line, NoEvents, Vec<u8>>>>;

/// The vCPU, and all that its exits need.
pub(crate) struct Vcpu {
    pub(crate) fd: VcpuFd,
    pub(crate) requests: Receiver<Request>,
    pub(crate) probes: ProbeExits,
    pub(crate) ports: [(u16, Port); 2],
}

impl Vcpu {
    /// Runs the guest until an exit that this VMM does not know.
    pub(crate) fn run(&mut self, hook: &dyn ExitHook) -> Result<()> {
        self.probes.entry.begin_boot();
        loop {
            if let Some(exit) = self.enter()? {
                self.deal_with(exit, hook)?;
            }
        }
    }

    /// Enters the guest once. Returns an exit that concerns the engine.
    fn enter(&mut self) -> Result<Option<ProbeExit>> {
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
            Ok(exit) => match ProbeExit::of(&exit) {
                None => return Err(format!("an exit that is not known: {exit:?}").into()),
                probe => return Ok(probe),
            },
            Err(error) if error.errno() == libc::EINTR => self.answer(),
            Err(error) => return Err(error.into()),
        }
        Ok(None)
    }

    /// The engine asks for something.
    fn answer(&mut self) {
        self.fd.set_kvm_immediate_exit(0);
        while let Ok(request) = self.requests.try_recv() {
            request.serve(&self.fd, &self.probes.clock);
        }
    }

    fn deal_with(&mut self, exit: ProbeExit, hook: &dyn ExitHook) -> Result<()> {
        match self.probes.handle(&mut self.fd, exit, Some(hook))? {
            AfterExit::Run => {}
            AfterExit::Hold(_) => return Err("no probe here holds the guest".into()),
            // The engine may be in a call that waits for this very vCPU.
            AfterExit::KernelEntry(entry) => {
                while !hook.kernel_entered(&entry) {
                    self.answer();
                }
            }
        }
        Ok(())
    }
}
