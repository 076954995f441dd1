//! A virtual machine from configuration to shutdown.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kvm_bindings::{
    KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_USE_SW_BP, kvm_guest_debug, kvm_pit_config,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{VcpuFd, VmFd};
use vm_memory::{GuestAddress, GuestMemoryBackend};

use crate::addr::Gpa;
use crate::boot::{self, BootError};
use crate::config::{ConfigError, VmConfig};
use crate::devices::{ConsoleWatch, PortBus, SerialPort, SerialSnapshot};
use crate::hidden::HiddenMemory;
use crate::hook::ExitHook;
use crate::host::{Host, HostProfile};
use crate::layout::{KVM_IDENTITY_MAP, KVM_TSS, SERIAL0, SERIAL1};
use crate::machine::Machine;
use crate::memory::{GuestRam, MemoryError, RamRange, ram_ranges};
use crate::quirks::software_kvm;
use crate::snapshot::{self, Chips, SnapshotError, SnapshotMeta};
use crate::status::{StopReason, StopRecord, VmState};
use crate::time::{GuestClock, GuestTime};
use crate::vcpu::{Command, Registers, Vcpu, VcpuError, VcpuRemote};

/// Why a machine could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Guest memory could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Kernel, initramfs or command line.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// KVM refused a step.
    #[error("KVM refused to {step}: {source}")]
    Kvm {
        /// Which.
        step: &'static str,
        /// What it said.
        source: kvm_ioctls::Error,
    },
    /// A vCPU's thread could not be started.
    #[error("cannot start a vCPU thread: {0}")]
    Thread(std::io::Error),
    /// A snapshot is unusable.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

/// Why a running machine did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Only a machine that is not running yet can be started.
    #[error("the guest was started already")]
    AlreadyStarted,
    /// The guest has stopped for good.
    #[error("the guest has stopped")]
    Stopped,
    /// The guest was not started.
    #[error("the guest was not started yet")]
    NotStarted,
    /// A vCPU gave no answer.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// Writing a snapshot failed.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// KVM refused to give its state.
    #[error("KVM: {0}")]
    Kvm(#[from] kvm_ioctls::Error),
}

/// A virtual machine. Dropping it ends its threads and frees its memory.
pub struct Vm {
    fd: Arc<VmFd>,
    machine: Arc<Machine>,
    serial: [Arc<SerialPort>; 2],
    config: VmConfig,
    clock: GuestClock,
    /// Held while the run state changes.
    control: Mutex<()>,
}

/// What comes from a snapshot in place of a boot.
struct Restored {
    meta: SnapshotMeta,
    ram: GuestRam,
    hidden: Vec<u8>,
}

impl Vm {
    /// Makes a machine with the kernel loaded, not yet running.
    ///
    /// # Errors
    /// [`CreateError`]: nothing is left behind.
    pub fn create(host: &Host, config: &VmConfig) -> Result<Self, CreateError> {
        config.validate()?;
        let ram = GuestRam::anonymous(&ram_ranges(config.memory_mib))?;
        let cmdline = final_cmdline(&config.cmdline, host.profile());
        let entry = boot::load(&ram, config, &cmdline)?;
        let builder = Builder::new(host, config.clone(), ram, false)?;
        let vcpus = builder.create_vcpus(host)?;
        boot::set_boot_registers(&vcpus[0], entry).map_err(kvm("set the boot registers"))?;
        builder.finish(vcpus, None)
    }

    /// Makes a machine from a snapshot file, paused where it was taken.
    ///
    /// # Errors
    /// [`CreateError::Snapshot`] for a file that is not whole.
    pub fn restore(host: &Host, path: &Path) -> Result<Self, CreateError> {
        let (meta, ram, hidden) = snapshot::open(path)?;
        let restored = Restored { meta, ram, hidden };
        let (config, ram) = (restored.meta.config.clone(), restored.ram.clone());
        // Hidden memory was mapped, so what the host needs in the guest is in place already.
        let settled = restored.meta.hidden_base.is_some();
        let builder = Builder::new(host, config, ram, settled)?;
        let vcpus = builder.create_vcpus(host)?;
        builder.finish(vcpus, Some(&restored))
    }

    /// Starts the vCPUs; `hook` sees their exits from the first instruction on.
    ///
    /// # Errors
    /// [`ControlError::AlreadyStarted`], [`ControlError::Stopped`] after [`Self::shut_down`].
    pub fn start(&self, hook: Arc<dyn ExitHook>) -> Result<(), ControlError> {
        let _control = self.lock();
        if !self.machine.set_hook(hook) {
            return Err(ControlError::AlreadyStarted);
        }
        if !self.machine.status.set(VmState::Running) {
            return Err(ControlError::Stopped);
        }
        self.ask_all(Command::Resume)
    }

    /// Takes all vCPUs out of the guest. Does nothing when they are.
    ///
    /// # Errors
    /// [`ControlError::Stopped`], [`ControlError::NotStarted`].
    pub fn pause(&self) -> Result<(), ControlError> {
        let _control = self.lock();
        self.pause_locked().map(drop)
    }

    /// Lets paused vCPUs run again. Does nothing when they do.
    ///
    /// # Errors
    /// [`ControlError::Stopped`], [`ControlError::NotStarted`].
    pub fn resume(&self) -> Result<(), ControlError> {
        let _control = self.lock();
        self.resume_locked()
    }

    /// Says whether it was running.
    fn pause_locked(&self) -> Result<bool, ControlError> {
        match self.state() {
            VmState::Created => Err(ControlError::NotStarted),
            VmState::Stopped(_) => Err(ControlError::Stopped),
            VmState::Paused => Ok(false),
            VmState::Running => {
                self.ask_all(Command::Pause)?;
                match self.machine.status.set(VmState::Paused) {
                    true => Ok(true),
                    false => Err(ControlError::Stopped),
                }
            }
        }
    }

    fn resume_locked(&self) -> Result<(), ControlError> {
        match self.state() {
            VmState::Created => Err(ControlError::NotStarted),
            VmState::Stopped(_) => Err(ControlError::Stopped),
            VmState::Running => Ok(()),
            VmState::Paused => {
                self.machine.status.set(VmState::Running);
                self.ask_all(Command::Resume)
            }
        }
    }

    /// Writes the whole machine to `path`, atomically; a running guest is paused meanwhile.
    ///
    /// # Errors
    /// [`ControlError`]; the guest goes on as before.
    pub fn snapshot(&self, path: &Path) -> Result<(), ControlError> {
        let _control = self.lock();
        let was_running = self.pause_locked()?;
        let written = self.write_snapshot(path);
        if was_running {
            self.resume_locked()?;
        }
        written
    }

    fn write_snapshot(&self, path: &Path) -> Result<(), ControlError> {
        // In the direction of interrupts: an edge between two steps is then in the later one, and
        // at worst comes twice.
        let serial = [self.serial[0].snapshot(), self.serial[1].snapshot()];
        let chips = Chips::save(&self.fd)?;
        let mut vcpus = Vec::new();
        for vcpu in self.vcpus() {
            vcpus.push(*vcpu.ask(Command::Save)?);
        }
        let meta = SnapshotMeta {
            config: self.config.clone(),
            time: self.clock.now(),
            tsc_khz: self.clock.khz(),
            hidden_base: self.machine.hidden.base(),
            vcpus,
            serial,
            chips,
            clock: self.fd.get_clock()?,
        };
        Ok(snapshot::write(path, &meta, &self.machine.ram, &self.machine.hidden)?)
    }

    /// Stops the guest for good, as if its plug were pulled.
    pub fn shut_down(&self) {
        let _control = self.lock();
        let regs = self.registers(0).map(|r| r.regs).unwrap_or_default();
        let seconds = self.clock.seconds(self.clock.now());
        let reason = StopReason::ShutDown;
        self.machine.stop(StopRecord { reason, vcpu: 0, regs, seconds });
        for vcpu in self.vcpus() {
            let _ = vcpu.send(Command::Halt);
        }
        // Every vCPU has left the guest once it answers.
        let _ = self.ask_all(Command::Sync);
    }

    /// The state now.
    #[must_use]
    pub fn state(&self) -> VmState {
        self.machine.status.get()
    }

    /// Waits for the guest to stop, at most `timeout`.
    #[must_use]
    pub fn wait_stopped(&self, timeout: Duration) -> Option<StopRecord> {
        self.machine.status.wait_stopped(timeout)
    }

    /// Registers of a vCPU; a running one is taken out of the guest for a moment.
    ///
    /// # Errors
    /// [`VcpuError`].
    pub fn registers(&self, vcpu: u8) -> Result<Registers, VcpuError> {
        self.vcpu(vcpu)?.ask(Command::Registers).map(|registers| *registers)
    }

    /// A model-specific register of a vCPU.
    ///
    /// # Errors
    /// [`VcpuError`].
    pub fn msr(&self, vcpu: u8, index: u32) -> Result<u64, VcpuError> {
        self.vcpu(vcpu)?.ask(|reply| Command::Msr(index, reply))
    }

    /// Returns once every vCPU has left the guest since the call: what was written to guest memory
    /// before is seen by all instructions the guest fetches after (a VM exit serializes, Intel SDM
    /// vol. 3, 9.3).
    ///
    /// # Errors
    /// [`VcpuError`].
    pub fn sync_vcpus(&self) -> Result<(), VcpuError> {
        self.ask_each(Command::Sync)
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

    /// The guest's clock.
    #[must_use]
    pub fn clock(&self) -> GuestClock {
        self.clock
    }

    /// What the machine was made from.
    #[must_use]
    pub fn config(&self) -> &VmConfig {
        &self.config
    }

    /// Serial port 0 (console) or 1 (workload); `None` for any other.
    #[must_use]
    pub fn serial(&self, port: usize) -> Option<&Arc<SerialPort>> {
        self.serial.get(port)
    }

    /// Exits to user space of all vCPUs so far.
    #[must_use]
    pub fn exits(&self) -> u64 {
        self.vcpus().iter().map(VcpuRemote::exits).sum()
    }

    fn vcpus(&self) -> &[VcpuRemote] {
        self.machine.vcpus.get().map_or(&[], Vec::as_slice)
    }

    fn vcpu(&self, index: u8) -> Result<&VcpuRemote, VcpuError> {
        self.vcpus().get(usize::from(index)).ok_or(VcpuError::NoSuchVcpu(index))
    }

    fn ask_each(
        &self,
        make: fn(std::sync::mpsc::SyncSender<Result<(), kvm_ioctls::Error>>) -> Command,
    ) -> Result<(), VcpuError> {
        let mut pending = Vec::new();
        for vcpu in self.vcpus() {
            pending.push(vcpu.begin(make)?);
        }
        pending.into_iter().try_for_each(|answer| answer.wait())
    }

    fn ask_all(
        &self,
        make: fn(std::sync::mpsc::SyncSender<Result<(), kvm_ioctls::Error>>) -> Command,
    ) -> Result<(), ControlError> {
        Ok(self.ask_each(make)?)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ()> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        for vcpu in self.vcpus() {
            vcpu.join();
        }
    }
}

/// A KVM machine with memory and devices, before its vCPUs have threads.
struct Builder {
    fd: Arc<VmFd>,
    config: VmConfig,
    ram: GuestRam,
    hidden: HiddenMemory,
    profile: HostProfile,
    saved_msrs: Vec<u32>,
}

fn kvm(step: &'static str) -> impl Fn(kvm_ioctls::Error) -> CreateError {
    move |source| CreateError::Kvm { step, source }
}

impl Builder {
    fn new(
        host: &Host,
        config: VmConfig,
        ram: GuestRam,
        settled: bool,
    ) -> Result<Self, CreateError> {
        let profile = host.profile();
        let fd = host.kvm().create_vm().map_err(kvm("create a VM"))?;
        let tss = usize::try_from(KVM_TSS.0).expect("below 4 GiB");
        fd.set_tss_address(tss).map_err(kvm("set the TSS address"))?;
        fd.set_identity_map_address(KVM_IDENTITY_MAP.0).map_err(kvm("set the identity map"))?;
        fd.create_irq_chip().map_err(kvm("create the interrupt chips"))?;
        let pit =
            kvm_pit_config { flags: kvm_bindings::KVM_PIT_SPEAKER_DUMMY, ..Default::default() };
        fd.create_pit2(pit).map_err(kvm("create the timer"))?;
        if let Some(quirk) = profile.software {
            quirk.prepare_vm(&fd, settled).map_err(kvm("report what it cannot emulate"))?;
        }
        let hidden = HiddenMemory::new(&ram)?;
        register_memory(&fd, &ram, &hidden)?;
        let msrs = host.kvm().get_msr_index_list().map_err(kvm("list its MSRs"))?;
        let saved_msrs = msrs.as_slice().to_vec();
        Ok(Self { fd: Arc::new(fd), config, ram, hidden, profile, saved_msrs })
    }

    fn create_vcpus(&self, host: &Host) -> Result<Vec<VcpuFd>, CreateError> {
        let mut supported = host
            .kvm()
            .get_supported_cpuid(kvm_bindings::KVM_MAX_CPUID_ENTRIES)
            .map_err(kvm("list its CPUID"))?;
        if let Some(quirk) = self.profile.software {
            quirk.adjust_cpuid(&mut supported);
        }
        let mut vcpus = Vec::new();
        for index in 0..self.config.vcpus {
            let vcpu = self.fd.create_vcpu(u64::from(index)).map_err(kvm("create a vCPU"))?;
            let cpuid = boot::cpuid_for_vcpu(&supported, index, self.config.vcpus);
            vcpu.set_cpuid2(&cpuid).map_err(kvm("set CPUID"))?;
            boot::application_msrs(&vcpu).map_err(kvm("set MSRs"))?;
            vcpu.set_guest_debug(&kvm_guest_debug {
                control: KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_SW_BP,
                ..kvm_guest_debug::default()
            })
            .map_err(kvm("report breakpoints"))?;
            vcpus.push(vcpu);
        }
        Ok(vcpus)
    }

    fn finish(self, vcpus: Vec<VcpuFd>, from: Option<&Restored>) -> Result<Vm, CreateError> {
        if let Some(restored) = from {
            self.restore_state(&vcpus, restored)?;
        }
        let power_on = from.map_or(GuestTime(0), |restored| restored.meta.time);
        let clock = GuestClock::showing(power_on, &vcpus[0])
            .map_err(kvm("tell the rate of the guest's clock"))?;
        if let Some(restored) = from {
            restored.meta.check_rate(clock.khz())?;
        }
        let watch = Arc::new(ConsoleWatch::default());
        let saved = from.map(|r| &r.meta.serial);
        let serial = [
            self.serial(SERIAL0, Some(Arc::clone(&watch)), saved.map(|s| &s[0]))?,
            self.serial(SERIAL1, None, saved.map(|s| &s[1]))?,
        ];
        let bus = PortBus::new([Arc::clone(&serial[0]), Arc::clone(&serial[1])]);
        let machine =
            Machine::new(self.ram, self.hidden, bus, watch, self.profile, self.saved_msrs);
        let machine = Arc::new(machine);
        let vm = Vm {
            machine: Arc::clone(&machine),
            fd: self.fd,
            serial,
            config: self.config,
            clock,
            control: Mutex::new(()),
        };
        let mut remotes = Vec::new();
        for (index, fd) in (0u8..).zip(vcpus) {
            let remote = Vcpu::spawn(fd, index, Arc::clone(&machine), clock);
            remotes.push(remote.map_err(CreateError::Thread)?);
        }
        drop(machine.vcpus.set(remotes));
        Ok(vm)
    }

    fn serial(
        &self,
        (_, irq): (u16, u32),
        watch: Option<Arc<ConsoleWatch>>,
        from: Option<&SerialSnapshot>,
    ) -> Result<Arc<SerialPort>, CreateError> {
        let port = SerialPort::new(Arc::clone(&self.fd), irq, watch, from)
            .map_err(|e| SnapshotError::Content(e.to_string()))?;
        Ok(Arc::new(port))
    }

    fn restore_state(&self, vcpus: &[VcpuFd], from: &Restored) -> Result<(), CreateError> {
        self.hidden.write(0, &from.hidden);
        self.hidden.restore_base(from.meta.hidden_base);
        from.meta.chips.restore(&self.fd).map_err(kvm("restore its interrupt chips"))?;
        if from.meta.vcpus.len() != vcpus.len() {
            return Err(SnapshotError::Content("vCPU count".to_owned()).into());
        }
        for (state, vcpu) in from.meta.vcpus.iter().zip(vcpus) {
            state.restore(vcpu).map_err(kvm("restore a vCPU"))?;
        }
        from.meta.restore_clock(&self.fd).map_err(kvm("restore its clock"))
    }
}

fn final_cmdline(cmdline: &str, profile: HostProfile) -> String {
    match profile.software {
        None => cmdline.to_owned(),
        // What stands behind ` -- ` is for init, not for the kernel.
        Some(_) => match cmdline.split_once(" -- ") {
            Some((kernel, init)) => format!("{kernel} {} -- {init}", software_kvm::CMDLINE),
            None => format!("{cmdline} {}", software_kvm::CMDLINE),
        },
    }
}

/// Host address of the first byte of the RAM range that starts at `start`.
pub(crate) fn host_address(ram: &GuestRam, start: Gpa) -> u64 {
    let host = ram.as_vm_memory().get_host_address(GuestAddress(start.0));
    host.expect("the range starts in RAM") as u64
}

fn register_memory(fd: &VmFd, ram: &GuestRam, hidden: &HiddenMemory) -> Result<(), CreateError> {
    let (hidden_host, hidden_len) = hidden.host_mapping();
    let mut slots: Vec<(RamRange, u64)> =
        ram.ranges().into_iter().map(|range| (range, host_address(ram, range.start))).collect();
    slots.push((RamRange { start: hidden.gpa(), len: hidden_len }, hidden_host as u64));
    for (slot, (range, userspace_addr)) in (0u32..).zip(slots) {
        let region = kvm_userspace_memory_region {
            slot,
            flags: 0,
            guest_phys_addr: range.start.0,
            memory_size: range.len,
            userspace_addr,
        };
        // SAFETY: the address is of a mapping of that length, owned by `ram` or `hidden`, which the
        // machine keeps until all vCPU threads are gone; without a vCPU no guest touches it.
        unsafe { fd.set_user_memory_region(region) }.map_err(kvm("map guest memory"))?;
    }
    Ok(())
}
