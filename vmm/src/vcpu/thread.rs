//! The thread of a vCPU, and the handle others have of it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::VcpuFd;

use super::debug::report_debug;
use super::exits::{ExitCounters, ExitCounts};
use super::stats::{KvmStats, StatsError};
use super::{Command, Registers, Reply, VcpuError, VcpuState, kick};
use crate::boot;
use crate::hook::KernelEntry;
use crate::machine::Machine;
use crate::status::{StopReason, StopRecord};
use crate::time::{GuestClock, GuestTime, MSR_TSC};

/// Times that the counter is read to be told exactly.
const TSC_READINGS: usize = 5;

/// What a vCPU's thread does between two commands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Paused,
    /// Paused in the middle of a hit that came at this time: the hook is to complete it.
    Held(GuestTime),
    Running,
    /// Until the machine is booted again.
    Stopped,
}

/// A vCPU with all that its thread needs.
pub(crate) struct Vcpu {
    pub(super) fd: VcpuFd,
    pub(super) index: u8,
    pub(super) machine: Arc<Machine>,
    pub(super) clock: GuestClock,
    pub(super) exits: Arc<ExitCounters>,
    pub(super) stepping: bool,
    /// The kernel has begun on it, and the hook is to be told before it goes on.
    pub(super) entering: Option<KernelEntry>,
    pub(super) mode: Mode,
    commands: Receiver<Command>,
}

/// How others reach a vCPU.
pub(crate) struct VcpuRemote {
    index: u8,
    commands: Sender<Command>,
    /// Taken out before it is joined, so that nobody kicks a thread that is gone.
    thread: Mutex<Option<JoinHandle<()>>>,
    exits: Arc<ExitCounters>,
    stats: KvmStats,
}

impl Vcpu {
    /// Starts the thread of vCPU `index`; it waits, paused.
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
            let mut vcpu = Self {
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
            // Handlers of probes run on this thread. If one panics, the machine must not go on without
            // this vCPU; the thread answers commands still, so that its registers can be read.
            while catch_unwind(AssertUnwindSafe(|| vcpu.main(&run_page))).is_err() {
                let message = format!("the thread of vCPU {index} panicked");
                vcpu.stop(StopReason::Failed { message });
            }
        })?;
        let thread = Mutex::new(Some(thread));
        Ok(VcpuRemote { index, commands: sender, thread, exits, stats })
    }

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

    /// Runs the guest until it needs this thread, and deals with that.
    fn turn(&mut self) -> bool {
        match self.run_once() {
            super::run::Next::Continue => true,
            super::run::Next::Interrupted => {
                self.fd.set_kvm_immediate_exit(0);
                self.drain()
            }
            super::run::Next::Hold(time) => {
                self.hold(time);
                true
            }
            super::run::Next::Stop(reason) => {
                self.stop(reason);
                true
            }
        }
    }

    /// Answers all commands that have come.
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
            // Others may have come with it, whose kick was for this thread's wait.
            Ok(command) => self.obey(command) && self.drain(),
            Err(_) => false,
        }
    }

    pub(super) fn stop(&mut self, reason: StopReason) {
        self.mode = Mode::Stopped;
        let regs = self.fd.get_regs().unwrap_or_default();
        let seconds = self.clock.seconds(self.clock.now());
        self.machine.stop(StopRecord { reason, vcpu: self.index, regs, seconds });
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
                // Ends when the other end is gone: nothing can be sent.
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
            // One that is still held has come to the answer of a former pause: its own is yet to come.
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

    /// Of several readings that which took least time: the counter was read in the middle of it.
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
        let entry = kvm_msr_entry { index, ..kvm_msr_entry::default() };
        let mut msrs = Msrs::from_entries(&[entry]).expect("one entry");
        match self.fd.get_msrs(&mut msrs)? {
            1 => Ok(msrs.as_slice()[0].data),
            _ => Err(kvm_ioctls::Error::new(libc::EINVAL)),
        }
    }
}

/// Whoever asked may have given up waiting; that is its own affair.
fn answer<T>(reply: &Reply<T>, value: Result<T, kvm_ioctls::Error>) {
    drop(reply.send(value));
}

impl VcpuRemote {
    /// Sends a command that wants no answer.
    pub(crate) fn send(&self, command: Command) -> Result<(), VcpuError> {
        self.commands.send(command).map_err(|_| VcpuError::Gone(self.index))?;
        self.kick();
        Ok(())
    }

    /// Sends a command without waiting: the answer is had from what this gives.
    pub(crate) fn begin<T>(
        &self,
        make: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<Pending<T>, VcpuError> {
        let (reply, answer) = sync_channel(1);
        self.send(make(reply))?;
        Ok(Pending { index: self.index, answer })
    }

    /// Sends a command and waits for its answer.
    pub(crate) fn ask<T>(&self, make: impl FnOnce(Reply<T>) -> Command) -> Result<T, VcpuError> {
        self.begin(make)?.wait()
    }

    fn kick(&self) {
        if let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            kick::kick(thread);
        }
    }

    /// Ends the thread and waits for it.
    pub(crate) fn join(&self) {
        let _ = self.send(Command::Exit);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!(vcpu = self.index, "vCPU thread panicked");
        }
    }

    /// Exits to user space so far.
    pub(crate) fn exit_counts(&self) -> ExitCounts {
        self.exits.snapshot()
    }

    /// KVM's statistics now.
    pub(crate) fn kvm_stats(&self) -> Result<BTreeMap<String, u64>, StatsError> {
        self.stats.read()
    }
}

/// An answer on its way.
pub(crate) struct Pending<T> {
    index: u8,
    answer: Receiver<Result<T, kvm_ioctls::Error>>,
}

impl<T> Pending<T> {
    pub(crate) fn wait(self) -> Result<T, VcpuError> {
        let answer = self.answer.recv().map_err(|_| VcpuError::Gone(self.index))?;
        answer.map_err(VcpuError::Kvm)
    }
}
