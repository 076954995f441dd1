//! The thread of a vCPU.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::channel;

use kvm_ioctls::VcpuFd;

use super::command::{Command, Reply};
use super::core::{Mode, Vcpu};
use super::exits::ExitCounters;
use super::kick;
use super::remote::VcpuRemote;
use super::run::Next;
use super::state::VcpuState;
use super::stats::KvmStats;
use crate::boot;
use crate::machine::Machine;
use crate::status::StopReason;
use exoprobe_guest::GuestClock;
use exoprobe_guest::Registers;
use exoprobe_guest::kvm::{self, report_debug};
use exoprobe_guest::msr::MSR_TSC;

/// Number of readings of the counter; the quickest is used.
const TSC_READINGS: usize = 5;

/// Starts the thread of vCPU `index`, paused.
pub(crate) fn spawn(
    fd: VcpuFd,
    index: u8,
    machine: Arc<Machine>,
    clock: GuestClock,
) -> std::io::Result<VcpuRemote> {
    kick::install_handler().map_err(std::io::Error::from_raw_os_error)?;
    let (sender, commands) = channel();
    let run_page = kick::RunPage::map(&fd)?;
    let stats = KvmStats::open(&fd);
    let exits = Arc::new(ExitCounters::default());
    let counted = Arc::clone(&exits);
    let thread = std::thread::Builder::new().name(format!("vcpu{index}")).spawn(move || {
        let mut vcpu = Vcpu {
            fd,
            index,
            machine,
            clock,
            exits: counted,
            stepping: false,
            entering: None,
            mode: Mode::Paused,
            commands,
        };
        // Handlers of probes run on this thread. If one panics, the machine must not continue
        // without this vCPU. The thread still answers commands, so that its registers can be read.
        while catch_unwind(AssertUnwindSafe(|| vcpu.main(&run_page))).is_err() {
            let message = format!("the thread of vCPU {index} panicked");
            vcpu.stop(StopReason::Failed { message });
        }
    })?;
    Ok(VcpuRemote::new(index, sender, thread, exits, stats))
}

impl Vcpu {
    fn main(&mut self, run_page: &kick::RunPage) {
        let _armed = kick::Armed::new(run_page);
        self.fd.set_sync_valid_reg(kvm_ioctls::SyncReg::Register);
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
            Command::Sync(reply) => answer(&reply, Ok(())),
            Command::Registers(reply) => answer(&reply, self.registers()),
            Command::StandStill(until, reply) => {
                answer(&reply, self.registers());
                // Ends when the other end is dropped: nothing can be sent.
                let _ = until.recv();
            }
            Command::Msr(index, reply) => answer(&reply, self.msr(index)),
            Command::TscOffset(reply) => answer(&reply, self.tsc_offset()),
            Command::SingleStep(on, reply) => answer(&reply, self.single_step(on)),
            Command::Save(reply) => {
                answer(&reply, VcpuState::save(&self.fd, self.machine.saved_msrs()).map(Box::new))
            }
            Command::PowerOn(state, reply) => answer(&reply, Ok(self.power_on(&state))),
            Command::SetEntry(entry, reply) => {
                answer(&reply, boot::set_boot_registers(&self.fd, entry))
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

    fn registers(&self) -> Result<Box<Registers>, kvm_ioctls::Error> {
        Ok(Box::new(Registers { regs: self.fd.get_regs()?, sregs: self.fd.get_sregs()? }))
    }

    /// Uses the quickest of several readings: the counter was read in the middle of it.
    fn tsc_offset(&self) -> Result<u64, kvm_ioctls::Error> {
        let mut least: Option<(u64, u64)> = None;
        for _ in 0..TSC_READINGS {
            let before = self.clock.now().0;
            let tsc = self.msr(MSR_TSC)?;
            let took = self.clock.now().0.saturating_sub(before);
            if least.is_none_or(|(other, _)| took < other) {
                least = Some((took, (before + took / 2).wrapping_sub(tsc)));
            }
        }
        Ok(least.expect("one at least").1)
    }

    fn msr(&self, index: u32) -> Result<u64, kvm_ioctls::Error> {
        kvm::msr(&self.fd, index)
    }
}

/// Sends an answer. The requester may have given up waiting, which is no error here.
fn answer<T>(reply: &Reply<T>, value: Result<T, kvm_ioctls::Error>) {
    drop(reply.send(value));
}
