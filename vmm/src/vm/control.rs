//! A virtual machine and its run control.

use std::collections::BTreeMap;
use std::ops::Add;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kvm_ioctls::VmFd;

use super::error::ControlError;
use super::power_on::PowerOn;
use crate::config::VmConfig;
use crate::devices::{Blk, Net, SerialPort, VirtioConsole, Vsock};
use crate::failures::Failures;
use crate::machine::Machine;
use crate::profile::HostProfile;
use crate::progress::WriteProgress;
use crate::status::{StopReason, StopRecord, VmState};
use crate::vcpu::{Command, ExitCounts, StatsError, StepError, VcpuRemote};
use exoprobe_guest::ExitHook;
use exoprobe_guest::GuestClock;
use exoprobe_guest::GuestRam;
use exoprobe_guest::hidden::HiddenMemory;
use exoprobe_guest::kvm::{Pending, Reply, Request, VcpuThread, with_vcpus_still};
use exoprobe_guest::{Registers, VcpuError};

/// Devices that are asked about, in the order of the configuration.
pub(super) struct Devices {
    pub(super) disks: Vec<Arc<Blk>>,
    pub(super) nets: Vec<Arc<Net>>,
    pub(super) console: Option<Arc<VirtioConsole>>,
    pub(super) vsock: Option<Arc<Vsock>>,
}

/// A virtual machine. Dropping it ends its threads and frees its memory.
pub struct Vm {
    pub(super) fd: Arc<VmFd>,
    pub(super) machine: Arc<Machine>,
    pub(super) serial: [Arc<SerialPort>; 2],
    pub(super) devices: Devices,
    /// Those of its threads other than the vCPUs'.
    pub(super) failures: Failures,
    pub(super) config: VmConfig,
    /// The user named the files in `config`; they do not come from a snapshot.
    pub(super) has_boot_files: bool,
    pub(super) clock: GuestClock,
    pub(super) power_on: PowerOn,
    /// Its memory is locked, also after a reboot.
    pub(super) is_locked: AtomicBool,
    /// The snapshot that is being written.
    pub(super) snapshot: Mutex<Option<Arc<WriteProgress>>>,
    /// Held while the run state changes.
    pub(super) control: Mutex<()>,
}

impl Vm {
    /// Starts the vCPUs; `hook` sees their exits from the first instruction on.
    ///
    /// # Errors
    /// [`ControlError::AlreadyStarted`], [`ControlError::Stopped`] after [`Self::shut_down`].
    pub fn start(&self, hook: Arc<dyn ExitHook>) -> Result<(), ControlError> {
        let _control = self.lock();
        if !self.machine.set_hook(hook) {
            return Err(ControlError::AlreadyStarted);
        }
        self.run_all()
    }

    /// Takes all vCPUs out of the guest. Does nothing if they are out.
    ///
    /// # Errors
    /// [`ControlError::Stopped`], [`ControlError::NotStarted`].
    pub fn pause(&self) -> Result<(), ControlError> {
        let _control = self.lock();
        self.pause_locked().map(drop)
    }

    /// Resumes paused vCPUs, also held ones. Does nothing if they run.
    ///
    /// # Errors
    /// [`ControlError::Stopped`], [`ControlError::NotStarted`].
    pub fn resume(&self) -> Result<(), ControlError> {
        let _control = self.lock();
        self.resume_locked()
    }

    /// Pauses the machine. Returns true if it was running.
    pub(super) fn pause_locked(&self) -> Result<bool, ControlError> {
        let was_running = match self.state() {
            VmState::Created => return Err(ControlError::NotStarted),
            VmState::Stopped(_) => return Err(ControlError::Stopped),
            VmState::Paused => false,
            VmState::Running => true,
        };
        // Also for a paused machine: a held vCPU has not waited for the others.
        self.ask_all(Command::Pause)?;
        match self.machine.status.set(VmState::Paused, || ()) {
            true => Ok(was_running),
            false => Err(ControlError::Stopped),
        }
    }

    pub(super) fn resume_locked(&self) -> Result<(), ControlError> {
        match self.state() {
            VmState::Created => Err(ControlError::NotStarted),
            VmState::Stopped(_) => Err(ControlError::Stopped),
            VmState::Running => Ok(()),
            VmState::Paused => self.run_all(),
        }
    }

    /// Resumes the vCPUs and logs it.
    fn run_all(&self) -> Result<(), ControlError> {
        let mut begun = Ok(Vec::new());
        let running = || begun = self.begin_each(Command::Resume);
        if !self.machine.status.set(VmState::Running, running) {
            return Err(ControlError::Stopped);
        }
        Ok(wait_each(begun?)?)
    }

    /// vCPUs that are in the middle of a hit, in order: a hook paused the machine there
    /// (`BreakpointAction::Hold`). None once the machine is resumed, or has stopped.
    #[must_use]
    pub fn held(&self) -> Vec<u8> {
        self.machine.status.held()
    }

    /// Presses the guest's power button, for which a distribution shuts itself down. Does not wait
    /// for that; a guest that is paused sees it when it runs again.
    ///
    /// # Errors
    /// [`ControlError::NotStarted`], [`ControlError::Stopped`], [`ControlError::NoPowerButton`].
    pub fn press_power_button(&self) -> Result<(), ControlError> {
        let _control = self.lock();
        match self.state() {
            VmState::Created => return Err(ControlError::NotStarted),
            VmState::Stopped(_) => return Err(ControlError::Stopped),
            VmState::Running | VmState::Paused => {}
        }
        let is_watched = self.machine.bus.power().press_button();
        if is_watched { Ok(()) } else { Err(ControlError::NoPowerButton) }
    }

    /// Stops the guest as a power cut does.
    pub fn shut_down(&self) {
        let _control = self.lock();
        let regs = self.registers(0).map(|r| r.regs).unwrap_or_default();
        let seconds = self.clock.seconds(self.clock.now());
        let reason = StopReason::ShutDown;
        self.machine.stop(StopRecord { reason, vcpu: 0, regs, seconds });
        // A vCPU whose thread has ended is out of the guest, too.
        let _ = self.halt_all();
    }

    /// Returns once every vCPU is out of the guest, and does not run before its next power-on. All
    /// messages that a vCPU's own thread had for the others (that the guest has stopped, or is
    /// held) are in their queues by then.
    pub(super) fn halt_all(&self) -> Result<(), VcpuError> {
        for vcpu in self.vcpus() {
            let _ = vcpu.send(Command::Halt);
        }
        self.ask_each(|reply| Request::Sync(reply).into())
    }

    /// The state now.
    #[must_use]
    pub fn state(&self) -> VmState {
        self.machine.status.get()
    }

    /// Waits for the guest to stop, at most `timeout`.
    #[must_use]
    pub fn wait_stopped(&self, timeout: Duration) -> Option<StopRecord> {
        self.wait_stopped_after(0, timeout).map(|(_, record)| record)
    }

    /// Waits for the guest to stop in a boot after `boot`, at most `timeout`. Returns the boot and
    /// the stop (see [`Self::boots`]), so that each stop can be reported once.
    #[must_use]
    pub fn wait_stopped_after(&self, boot: u64, timeout: Duration) -> Option<(u64, StopRecord)> {
        self.machine.status.wait_stopped(boot, timeout)
    }

    /// Registers of a vCPU; a running one is taken out of the guest for a moment.
    ///
    /// # Errors
    /// [`VcpuError`].
    pub fn registers(&self, vcpu: u8) -> Result<Registers, VcpuError> {
        self.vcpu(vcpu)?.registers()
    }

    /// A model-specific register of a vCPU.
    ///
    /// # Errors
    /// [`VcpuError`].
    pub fn msr(&self, vcpu: u8, index: u32) -> Result<u64, VcpuError> {
        self.vcpu(vcpu)?.msr(index)
    }

    /// The number to add to a vCPU's time-stamp counter to get the guest's time (`GuestTime`), in
    /// ticks; accurate to some microseconds.
    ///
    /// # Errors
    /// [`VcpuError`].
    pub fn tsc_offset(&self, vcpu: u8) -> Result<u64, VcpuError> {
        self.vcpu(vcpu)?.tsc_offset()
    }

    /// Returns once every vCPU has left the guest since the call. All instructions that the guest
    /// fetches after that see the bytes written to guest memory before (a VM exit serializes, Intel
    /// SDM vol. 3, 9.3).
    ///
    /// # Errors
    /// [`VcpuError`].
    pub fn sync_vcpus(&self) -> Result<(), VcpuError> {
        self.ask_each(|reply| Request::Sync(reply).into())
    }

    /// Stops every vCPU outside the guest, calls `access` with their registers, and resumes them
    /// when it returns: its writes to guest memory become visible to all at once. Must not be
    /// called on a vCPU's thread.
    ///
    /// # Errors
    /// [`VcpuError`]; `access` was not called.
    pub fn with_vcpus_still<T>(
        &self,
        access: impl FnOnce(&[Registers]) -> T,
    ) -> Result<T, VcpuError> {
        with_vcpus_still(self.vcpus(), access)
    }

    /// The guest's RAM.
    #[must_use]
    pub fn ram(&self) -> &GuestRam {
        &self.machine.ram
    }

    /// The guest's hidden region.
    #[must_use]
    pub fn hidden(&self) -> &HiddenMemory {
        &self.machine.hidden
    }

    /// Returns true if a hook is called at the kernel's entry ([`ExitHook::kernel_entered`]): this
    /// needs KVM's exits at writes of model-specific registers. The entry of a guest that had
    /// passed it when its snapshot was taken is not reported again.
    #[must_use]
    pub fn reports_kernel_entry(&self) -> bool {
        self.machine.reports_kernel_entry
    }

    /// The guest's clock.
    #[must_use]
    pub fn clock(&self) -> GuestClock {
        self.clock
    }

    /// The configuration that the machine was made from.
    #[must_use]
    pub fn config(&self) -> &VmConfig {
        &self.config
    }

    /// For each network interface, in the order of the configuration, whether its host side is
    /// still there.
    #[must_use]
    pub fn links_up(&self) -> Vec<bool> {
        self.devices.nets.iter().map(|net| net.is_up()).collect()
    }

    /// Connections of its vsock device, and clients of the host's that have not asked for one yet;
    /// `None` without such a device.
    #[must_use]
    pub fn vsock_connections(&self) -> Option<usize> {
        self.devices.vsock.as_ref().map(|vsock| vsock.connections())
    }

    /// The results of preflight.
    #[must_use]
    pub fn host_profile(&self) -> HostProfile {
        self.machine.profile
    }

    /// Serial port 0 (console) or 1 (workload); `None` for any other.
    #[must_use]
    pub fn serial(&self, port: usize) -> Option<&Arc<SerialPort>> {
        self.serial.get(port)
    }

    /// The virtio console; `None` for a guest without one.
    #[must_use]
    pub fn virtio_console(&self) -> Option<&Arc<VirtioConsole>> {
        self.devices.console.as_ref()
    }

    /// Exits to user space of all vCPUs so far.
    #[must_use]
    pub fn exit_counts(&self) -> ExitCounts {
        self.remotes().iter().map(VcpuRemote::exit_counts).fold(ExitCounts::default(), Add::add)
    }

    /// KVM's own statistics of a vCPU, by KVM's names: `exits` counts VM exits, including those
    /// that KVM handles itself; `insn_emulation` counts instructions that KVM emulated; times are
    /// in the unit that their name ends with. Histograms are omitted. Does not disturb a running
    /// vCPU. The set of statistics depends on the kernel (Documentation/virt/kvm/api.rst, 4.133).
    ///
    /// # Errors
    /// [`StatsError`]; there are none before Linux 5.14.
    pub fn kvm_stats(&self, vcpu: u8) -> Result<BTreeMap<String, u64>, StatsError> {
        self.remote(vcpu)?.kvm_stats()
    }

    /// Makes a vCPU exit after each instruction that the guest completes, or ends this. The guest
    /// continues by itself, and [`ExitCounts::step`] counts. An instruction that a hook emulates is
    /// no step. Returns once the change is made; a running vCPU is taken out of the guest for a
    /// moment.
    ///
    /// KVM sets the guest's trap flag for this (KVM_GUESTDBG_SINGLESTEP;
    /// Documentation/virt/kvm/api.rst, 4.87; Intel SDM vol. 3, 17.3.2). So only code that does not
    /// change the flag is counted completely:
    /// - SYSCALL clears it where IA32_FMASK says so, as under Linux, and so does the delivery of an
    ///   interrupt or exception. Not counted is then what comes until the next exit to user space,
    ///   or until an IRET brings the flag back. Kernel code with interrupts off is the safe use.
    /// - Flags that the guest stores meanwhile (PUSHF, an interrupt's frame) may have the
    ///   flag set: the guest may take a #DB for it when it loads them after stepping has ended.
    /// - On software-only hosts, code in user mode is not stepped.
    /// - An OUT that goes to user space is no step in KVM's emulator, and two with kvm_intel in
    ///   Bochs.
    ///
    /// Meanwhile KVM gives every #DB to user space, the guest's own too. One that differs from a
    /// step, by a breakpoint of the guest's (DR7) that DR6 names, stops the machine with
    /// [`StopReason::Failed`]: it is not handed back. One that cannot be distinguished from a step
    /// is counted as one and does not reach the guest: that of a trap flag which the guest itself
    /// has set, and that of INT1 (which VT-x reports before the instruction, so that the vCPU comes
    /// to it again and again).
    ///
    /// A step takes many times as long as an instruction: a guest whose timer interrupts arrive
    /// faster than its handler can be stepped makes no other progress.
    ///
    /// # Errors
    /// [`StepError::Refused`] if KVM cannot.
    pub fn single_step(&self, vcpu: u8, on: bool) -> Result<(), StepError> {
        let answer = self.vcpu(vcpu)?.ask(|reply| Command::SingleStep(on, reply));
        answer.map_err(|error| match error {
            VcpuError::Kvm(source) => StepError::Refused(source),
            other => other.into(),
        })
    }

    fn remotes(&self) -> &[VcpuRemote] {
        self.machine.vcpus.get().map_or(&[], Vec::as_slice)
    }

    fn remote(&self, index: u8) -> Result<&VcpuRemote, VcpuError> {
        self.remotes().get(usize::from(index)).ok_or(VcpuError::NoSuchVcpu(index))
    }

    pub(super) fn vcpus(&self) -> impl Iterator<Item = &VcpuThread<Command>> {
        self.remotes().iter().map(VcpuRemote::thread)
    }

    pub(super) fn vcpu(&self, index: u8) -> Result<&VcpuThread<Command>, VcpuError> {
        self.remote(index).map(VcpuRemote::thread)
    }

    pub(super) fn begin_each(
        &self,
        make: fn(Reply<()>) -> Command,
    ) -> Result<Vec<Pending<()>>, VcpuError> {
        self.vcpus().map(|vcpu| vcpu.begin(make)).collect()
    }

    pub(super) fn ask_each(&self, make: fn(Reply<()>) -> Command) -> Result<(), VcpuError> {
        wait_each(self.begin_each(make)?)
    }

    fn ask_all(&self, make: fn(Reply<()>) -> Command) -> Result<(), ControlError> {
        Ok(self.ask_each(make)?)
    }

    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, ()> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn wait_each(pending: Vec<Pending<()>>) -> Result<(), VcpuError> {
    pending.into_iter().try_for_each(Pending::wait)
}

impl Drop for Vm {
    fn drop(&mut self) {
        for vcpu in self.remotes() {
            vcpu.join();
        }
        // The threads of devices may use the machine, and must not be the last to do so; nor may
        // the one that starts them, which ends with the machine.
        self.machine.bus.pci().pause();
        self.failures.ignore();
    }
}
