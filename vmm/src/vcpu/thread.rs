//! The thread of a vCPU.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use kvm_ioctls::VcpuFd;

use super::command::Command;
use super::core::{Mode, Vcpu};
use super::exits::ExitCounters;
use super::remote::VcpuRemote;
use super::run::Next;
use super::state::VcpuState;
use super::stats::KvmStats;
use crate::boot;
use crate::machine::Machine;
use crate::status::StopReason;
use crate::threads::{ThreadHook, ThreadKind};
use exoprobe_guest::GuestClock;
use exoprobe_guest::kvm::{ProbeExits, Reply, VcpuThread, report_debug};

/// Starts the thread of vCPU `index`, paused. It calls `hook` first.
pub(crate) fn spawn(
    fd: VcpuFd,
    index: u8,
    machine: Arc<Machine>,
    clock: GuestClock,
    hook: Option<ThreadHook>,
) -> std::io::Result<VcpuRemote> {
    let stats = KvmStats::open(&fd);
    let exits = Arc::new(ExitCounters::default());
    let counted = Arc::clone(&exits);
    let probes = ProbeExits {
        vcpu: index,
        clock,
        reinjection: machine.profile.reinjection,
        software: machine.profile.software,
        entry: Arc::clone(&machine.entry),
        ram: machine.ram.clone(),
        hidden: machine.hidden.clone(),
    };
    let thread = VcpuThread::spawn(index, fd, move |fd, commands| {
        if let Some(hook) = hook {
            hook(ThreadKind::Vcpu);
        }
        let mut vcpu = Vcpu {
            fd,
            index,
            machine,
            probes,
            exits: counted,
            stepping: false,
            entering: None,
            mode: Mode::Paused,
            commands,
        };
        // Handlers of probes run on this thread. If one panics, the machine must not go on without
        // this vCPU; the thread answers commands still, so that its registers can be read.
        while catch_unwind(AssertUnwindSafe(|| vcpu.main())).is_err() {
            let message = format!("the thread of vCPU {index} panicked");
            vcpu.stop(StopReason::Failed { message });
        }
    })?;
    Ok(VcpuRemote::new(thread, exits, stats))
}

impl Vcpu {
    fn main(&mut self) {
        loop {
            let go_on = if self.mode == Mode::Running { self.turn() } else { self.wait() };
            if !go_on {
                return;
            }
        }
    }

    /// Runs the guest until an exit or command needs this thread, and handles that.
    fn turn(&mut self) -> bool {
        match self.run_once() {
            Next::Continue => true,
            Next::Interrupted => {
                self.fd.set_kvm_immediate_exit(0);
                self.drain()
            }
            Next::Hold(time) => {
                self.hold(time);
                true
            }
            Next::Stop(reason) => {
                self.stop(reason);
                true
            }
        }
    }

    /// Answers all waiting commands.
    fn drain(&mut self) -> bool {
        while let Ok(command) = self.commands.try_recv() {
            if !self.obey(command) {
                return false;
            }
        }
        true
    }

    /// Waits for one command, out of the guest.
    fn wait(&mut self) -> bool {
        match self.commands.recv() {
            // Others may have come with it; their kick was for this thread's wait.
            Ok(command) => self.obey(command) && self.drain(),
            Err(_) => false,
        }
    }

    /// Carries out one command; `false` ends the thread.
    fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Pause(reply) => {
                self.stay_out();
                answer(&reply, Ok(()));
            }
            Command::StayOut => self.stay_out(),
            Command::Resume(reply) => {
                self.resume();
                answer(&reply, Ok(()));
            }
            Command::Guest(request) => request.serve(&self.fd, &self.probes.clock),
            Command::SingleStep(on, reply) => answer(&reply, self.single_step(on)),
            Command::Save(reply) => {
                answer(&reply, VcpuState::save(&self.fd, self.machine.saved_msrs()).map(Box::new))
            }
            Command::PowerOn(state, reply) => answer(&reply, Ok(self.power_on(&state))),
            Command::SetEntry(entry, reply) => {
                answer(&reply, boot::set_boot_registers(&self.fd, entry))
            }
            Command::CheckConsoles => {
                if self.mode != Mode::Stopped
                    && let Some(reason) = self.machine.console_watch.end()
                {
                    self.stop(reason);
                }
            }
            // Devices of a machine that has stopped are reset before it is booted again.
            Command::Fail(message) => {
                if self.mode != Mode::Stopped {
                    self.stop(StopReason::Failed { message });
                }
            }
            Command::Halt => self.mode = Mode::Stopped,
            Command::Exit => return false,
        }
        true
    }

    fn stay_out(&mut self) {
        if self.mode == Mode::Running {
            self.mode = Mode::Paused;
        }
    }

    fn resume(&mut self) {
        match self.mode {
            Mode::Paused => self.mode = Mode::Running,
            // A held vCPU may read the answer to a previous pause here: its own is still to come.
            Mode::Held(time) if !self.machine.status.is_held(self.index) => self.release(time),
            Mode::Held(_) | Mode::Running | Mode::Stopped => {}
        }
    }

    fn single_step(&mut self, on: bool) -> Result<(), kvm_ioctls::Error> {
        report_debug(&self.fd, on)?;
        self.stepping = on;
        Ok(())
    }
}

/// The thread that asked may have given up waiting.
fn answer<T>(reply: &Reply<T>, value: Result<T, kvm_ioctls::Error>) {
    drop(reply.send(value));
}
