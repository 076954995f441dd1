//! Builds a machine, from a configuration or a snapshot, whose vCPUs wait to be started.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use kvm_bindings::{kvm_msi, kvm_pit_config};
use kvm_ioctls::{VcpuFd, VmFd};

use super::cmdline::final_cmdline;
use super::control::{Devices, Vm};
use super::error::CreateError;
use super::host_limits;
use super::power_on::PowerOn;
use crate::boot::{self, BootEntry};
use crate::config::{DiskConfig, HostSides, VmConfig};
use crate::devices::{
    BAR_LEN, Blk, ConsoleWatch, DiskIdentity, EdgeLine, InvalidState, Ioevents, Message,
    MessageSink, Net, PciBus, PciFunction, PortBus, PowerManagement, PowerSnapshot, Rng,
    SerialPort, SerialSnapshot, VirtioConsole, VirtioDevice, VirtioPci, Vsock,
};
use crate::host::Host;
use crate::hugepages;
use crate::layout::{KVM_IDENTITY_MAP, KVM_TSS, PCI_BARS, SCI, SERIAL0, SERIAL1};
use crate::machine::Machine;
use crate::profile::HostProfile;
use crate::snapshot::{self, SnapshotError, SnapshotMeta};
use crate::threads::Threads;
use crate::vcpu;
use exoprobe_guest::GuestRam;
use exoprobe_guest::cpuid::hide_unfit_features;
use exoprobe_guest::hidden::HiddenMemory;
use exoprobe_guest::kvm::{prepare_vcpu, register_memory, request_msr_exits};
use exoprobe_guest::memory::ram_ranges;
use exoprobe_guest::{GuestClock, GuestTime};

impl Vm {
    /// Makes a machine with the kernel loaded, not yet running.
    ///
    /// # Errors
    /// [`CreateError`]; nothing is left over.
    pub fn create(host: &Host, config: &VmConfig) -> Result<Self, CreateError> {
        config.validate()?;
        host_limits::check(host, config)?;
        let ranges = ram_ranges(config.memory_mib);
        let ram = match config.hugepages {
            true => hugepages::allocate(&ranges)?,
            false => GuestRam::anonymous(&ranges)?,
        };
        let cmdline = final_cmdline(&config.cmdline, config.vcpus, host.profile());
        let entry = boot::load(&ram, config, &cmdline, host.profile())?;
        let builder = Builder::new(host, config.clone(), ram, false)?;
        let vcpus = builder.create_vcpus(host)?;
        builder.finish(vcpus, &Origin::Boot(entry))
    }

    /// Builds a machine from a snapshot file, paused where it was taken. The files that a snapshot
    /// names are not read: the host's sides of its devices are those given, and it cannot be
    /// rebooted before [`Self::set_boot_files`].
    ///
    /// # Errors
    /// [`CreateError::Snapshot`] for an incomplete file, and for another number of devices;
    /// [`crate::DiskError::Changed`] for a disk that is not as it was.
    pub fn restore(host: &Host, path: &Path, sides: &HostSides) -> Result<Self, CreateError> {
        let (mut meta, ram, hidden) = snapshot::open(path)?;
        meta.set_host_sides(sides)?;
        meta.config.validate()?;
        host_limits::check(host, &meta.config)?;
        let restored = Restored { meta, ram, hidden };
        let (config, ram) = (restored.meta.config.clone(), restored.ram.clone());
        let settled = restored.meta.is_settled();
        let builder = Builder::new(host, config, ram, settled)?;
        let vcpus = builder.create_vcpus(host)?;
        builder.finish(vcpus, &Origin::Snapshot(Box::new(restored)))
    }

    /// Stops the machine at what its devices tell from now on, or have told.
    fn watch_devices(&self) {
        self.stop_at_failures();
        self.stop_at_panics();
    }

    /// Stops the machine when the kernel prints to the virtio console that it has panicked. After
    /// the last line, no vCPU may exit again by itself.
    fn stop_at_panics(&self) {
        let Some(console) = &self.devices.console else { return };
        let machine = Arc::downgrade(&self.machine);
        console.on_end(move || {
            if let Some(machine) = machine.upgrade() {
                machine.check_consoles();
            }
        });
        // A restored guest may have printed it already.
        self.machine.check_consoles();
    }

    /// Stops the machine when one of its devices' threads, or the one that starts those, fails.
    fn stop_at_failures(&self) {
        let machine = Arc::downgrade(&self.machine);
        self.failures.on_failure(move |message| {
            if let Some(machine) = machine.upgrade() {
                machine.fail(message);
            }
        });
    }
}

/// The start of a guest.
enum Origin {
    /// At its kernel's entry point.
    Boot(BootEntry),
    /// Where a snapshot was taken.
    Snapshot(Box<Restored>),
}

/// A guest from a snapshot, in place of one that boots.
struct Restored {
    meta: SnapshotMeta,
    ram: GuestRam,
    hidden: Vec<u8>,
}

/// A KVM machine with memory and devices, before its vCPUs have threads.
struct Builder {
    fd: Arc<VmFd>,
    config: VmConfig,
    ram: GuestRam,
    hidden: HiddenMemory,
    profile: HostProfile,
    reports_kernel_entry: bool,
    saved_msrs: Vec<u32>,
    threads: Threads,
}

/// PCI's class and subclass of a disk that is none of the older kinds.
const MASS_STORAGE: [u8; 2] = [1, 0x80];
/// Of an Ethernet controller.
const ETHERNET: [u8; 2] = [2, 0];
/// Of a communication controller that is none of the older kinds.
const COMMUNICATION: [u8; 2] = [7, 0x80];
/// And of a device that fits none.
const OTHER: [u8; 2] = [0xff, 0];

fn kvm(step: &'static str) -> impl Fn(kvm_ioctls::Error) -> CreateError {
    move |source| CreateError::Kvm { step, source }
}

/// Creates KVM's interrupt chips and timer.
fn create_chips(fd: &VmFd) -> Result<(), CreateError> {
    let tss = usize::try_from(KVM_TSS.0).expect("below 4 GiB");
    fd.set_tss_address(tss).map_err(kvm("set the TSS address"))?;
    fd.set_identity_map_address(KVM_IDENTITY_MAP.0).map_err(kvm("set the identity map"))?;
    fd.create_irq_chip().map_err(kvm("create the interrupt chips"))?;
    let pit = kvm_pit_config { flags: kvm_bindings::KVM_PIT_SPEAKER_DUMMY, ..Default::default() };
    fd.create_pit2(pit).map_err(kvm("create the timer"))
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
        // Before the interrupt chips: after them KVM waits many milliseconds for its readers.
        let reports_kernel_entry = exoprobe_guest::kvm::can_filter_msrs(host.kvm());
        if !settled {
            let step = kvm("hand over writes of model-specific registers");
            request_msr_exits(&fd, reports_kernel_entry, profile.software).map_err(step)?;
        }
        let hidden = HiddenMemory::new(&ram, config.vcpus)?;
        // SAFETY: the machine keeps both until all vCPU threads are gone.
        unsafe { register_memory(&fd, &ram, &hidden) }.map_err(kvm("map guest memory"))?;
        create_chips(&fd)?;
        if let Some(quirk) = profile.software {
            fd.enable_cap(&quirk.capability()).map_err(kvm("report what it cannot emulate"))?;
        }
        let msrs = host.kvm().get_msr_index_list().map_err(kvm("list its MSRs"))?;
        let saved_msrs = msrs.as_slice().to_vec();
        let fd = Arc::new(fd);
        let threads = Threads::new(host.thread_hook()).map_err(CreateError::Thread)?;
        Ok(Self { fd, config, ram, hidden, profile, reports_kernel_entry, saved_msrs, threads })
    }

    fn create_vcpus(&self, host: &Host) -> Result<Vec<VcpuFd>, CreateError> {
        let mut supported = host.supported_cpuid().clone();
        // Nested virtualization is hidden by this too: its state is not in a snapshot.
        hide_unfit_features(&mut supported, self.profile.software);
        let mut vcpus = Vec::new();
        for index in 0..self.config.vcpus {
            let mut vcpu = self.fd.create_vcpu(u64::from(index)).map_err(kvm("create a vCPU"))?;
            let cpuid = boot::cpuid_for_vcpu(&supported, index, self.config.vcpus);
            vcpu.set_cpuid2(&cpuid).map_err(kvm("set CPUID"))?;
            boot::application_msrs(&vcpu).map_err(kvm("set MSRs"))?;
            prepare_vcpu(&mut vcpu).map_err(kvm("report breakpoints"))?;
            vcpus.push(vcpu);
        }
        Ok(vcpus)
    }

    fn finish(self, vcpus: Vec<VcpuFd>, origin: &Origin) -> Result<Vm, CreateError> {
        // Saved now: a guest from a snapshot may be rebooted, too.
        let power_on = PowerOn::save(&self.fd, &vcpus, &self.saved_msrs)
            .map_err(kvm("report the power-on state"))?;
        let from = match origin {
            Origin::Boot(entry) => {
                boot::set_boot_registers(&vcpus[0], *entry)
                    .map_err(kvm("set the boot registers"))?;
                None
            }
            Origin::Snapshot(restored) => {
                self.restore_state(&vcpus, restored)?;
                Some(restored)
            }
        };
        let now = from.map_or(GuestTime(0), |restored| restored.meta.time);
        let rate = vcpus[0].get_tsc_khz().map_err(kvm("report the rate of the guest's clock"))?;
        let clock = GuestClock::new(now, rate);
        if let Some(restored) = from {
            restored.meta.check_rate(clock.khz())?;
        }
        let watch = Arc::new(ConsoleWatch::default());
        let saved = from.map(|r| &r.meta.serial);
        let serial = [
            self.serial(SERIAL0, Some(Arc::clone(&watch)), saved.map(|s| &s[0]))?,
            self.serial(SERIAL1, None, saved.map(|s| &s[1]))?,
        ];
        let (pci, devices) = self.pci(from.map(|restored| &restored.meta), &watch)?;
        let power = self.power(from.map(|restored| restored.meta.power).unwrap_or_default());
        let bus = PortBus::new(serial.clone(), pci, power);
        let machine = Arc::new(Machine::new(
            self.ram,
            self.hidden,
            bus,
            watch,
            self.profile,
            self.reports_kernel_entry,
            self.saved_msrs,
        ));
        if from.is_none_or(|restored| !restored.meta.is_settled()) {
            machine.entry.begin_boot();
        }
        let vm = Vm {
            machine: Arc::clone(&machine),
            fd: self.fd,
            serial,
            devices,
            failures: self.threads.failures().clone(),
            config: self.config,
            has_boot_files: from.is_none(),
            clock,
            power_on,
            is_locked: AtomicBool::new(false),
            snapshot: Mutex::default(),
            control: Mutex::new(()),
        };
        let spawn =
            |(index, fd)| vcpu::spawn(fd, index, Arc::clone(&machine), clock, self.threads.hook());
        let remotes = (0u8..).zip(vcpus).map(spawn).collect::<Result<_, _>>();
        drop(machine.vcpus.set(remotes.map_err(CreateError::Thread)?));
        vm.watch_devices();
        Ok(vm)
    }

    /// The bus, with the devices of a snapshot as they were; and some of its devices.
    fn pci(
        &self,
        from: Option<&SnapshotMeta>,
        watch: &Arc<ConsoleWatch>,
    ) -> Result<(PciBus, Devices), CreateError> {
        let disks = self.disks(from.map(|meta| &*meta.disks))?;
        let open = |net| Net::open(net).map(Arc::new);
        let nets = self.config.nets.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let vsock = self.config.vsock.as_ref().map(Vsock::open).transpose()?.map(Arc::new);
        let console = self.console(from, watch)?;
        let devices = Devices { disks, nets, vsock, console };
        let pci = PciBus::new(self.functions(&devices));
        if let Some(meta) = from {
            let invalid = |error: InvalidState| SnapshotError::Content(error.to_string());
            pci.restore(&meta.pci).map_err(invalid)?;
            pci.resume();
        }
        Ok((pci, devices))
    }

    /// The disks, in the order of the configuration; those of a snapshot as they were.
    fn disks(&self, saved: Option<&[DiskIdentity]>) -> Result<Vec<Arc<Blk>>, CreateError> {
        let disk = |(at, disk): (usize, &DiskConfig)| {
            let device = Blk::open(&disk.path, disk.mode, &format!("disk{at}"))?;
            if let Some(saved) = saved {
                device.check(&disk.path, saved.get(at))?;
            }
            Ok(Arc::new(device))
        };
        self.config.disks.iter().enumerate().map(disk).collect()
    }

    /// The virtio console, if there is to be one.
    fn console(
        &self,
        from: Option<&SnapshotMeta>,
        watch: &Arc<ConsoleWatch>,
    ) -> Result<Option<Arc<VirtioConsole>>, CreateError> {
        let saved = from.map(|meta| meta.console.as_ref());
        if saved.is_some_and(|saved| saved.is_some() != self.config.virtio_console) {
            return Err(SnapshotError::Content("its virtio console".to_owned()).into());
        }
        if !self.config.virtio_console {
            return Ok(None);
        }
        let console = VirtioConsole::new(Arc::clone(watch), saved.flatten());
        Ok(Some(Arc::new(console.map_err(CreateError::Console)?)))
    }

    /// The functions of the bus: first those of each guest, then its disks, then its network
    /// interfaces, then its vsock device and its console.
    fn functions(&self, devices: &Devices) -> Vec<Arc<dyn PciFunction>> {
        let Devices { disks, nets, vsock, console } = devices;
        let rng: (Arc<dyn VirtioDevice>, _) = (Arc::new(Rng::default()), OTHER);
        let disk = |disk: &Arc<Blk>| (Arc::clone(disk) as Arc<dyn VirtioDevice>, MASS_STORAGE);
        let net = |net: &Arc<Net>| (Arc::clone(net) as Arc<dyn VirtioDevice>, ETHERNET);
        let devices = std::iter::once(rng).chain(disks.iter().map(disk));
        let vsock = vsock.iter().map(|vsock| (Arc::clone(vsock) as _, COMMUNICATION));
        let console = console.iter().map(|console| (Arc::clone(console) as _, COMMUNICATION));
        let devices = devices.chain(nets.iter().map(net)).chain(vsock).chain(console);
        let messages = self.messages();
        let function = |(slot, (device, class))| {
            let bar = PCI_BARS.0 + slot * BAR_LEN;
            let (messages, ram) = (Arc::clone(&messages), self.ram.clone());
            let ioevents = Arc::clone(&self.fd) as Arc<dyn Ioevents>;
            let threads = self.threads.clone();
            Arc::new(VirtioPci::new(messages, ioevents, ram, device, class, bar, threads)) as _
        };
        (1..).zip(devices).map(function).collect()
    }

    /// Sends the interrupts of PCI functions to the guest's interrupt controllers.
    fn messages(&self) -> MessageSink {
        let fd = Arc::clone(&self.fd);
        Arc::new(move |Message { address, data }| {
            let half = |shift: u32| u32::try_from(address >> shift & 0xffff_ffff).expect("32 bits");
            let (address_lo, address_hi) = (half(0), half(32));
            let msi = kvm_msi { address_lo, address_hi, data, ..kvm_msi::default() };
            // The guest chooses the message: one that goes nowhere is its own fault.
            if let Err(error) = fd.signal_msi(msi) {
                tracing::debug!(%error, "an interrupt of a device");
            }
        })
    }

    fn serial(
        &self,
        (_, irq): (u16, u32),
        watch: Option<Arc<ConsoleWatch>>,
        from: Option<&SerialSnapshot>,
    ) -> Result<Arc<SerialPort>, CreateError> {
        let fd = Arc::clone(&self.fd);
        let line: EdgeLine = Arc::new(move || {
            fd.set_irq_line(irq, true)?;
            fd.set_irq_line(irq, false)
        });
        let port = SerialPort::new(line, watch, from)
            .map_err(|e| SnapshotError::Content(e.to_string()))?;
        Ok(Arc::new(port))
    }

    fn power(&self, from: PowerSnapshot) -> PowerManagement {
        let fd = Arc::clone(&self.fd);
        PowerManagement::new(from, move |level| {
            if let Err(error) = fd.set_irq_line(SCI, level) {
                tracing::error!(%error, "the interrupt of ACPI's events");
            }
        })
    }

    fn restore_state(&self, vcpus: &[VcpuFd], from: &Restored) -> Result<(), CreateError> {
        self.hidden.write(0, &from.hidden);
        self.hidden.restore_base(from.meta.hidden_base);
        from.meta.chips.restore(&self.fd).map_err(kvm("restore its interrupt chips"))?;
        if from.meta.vcpus.len() != vcpus.len() {
            return Err(SnapshotError::Content("vCPU count".to_owned()).into());
        }
        for (state, vcpu) in from.meta.vcpus.iter().zip(vcpus) {
            state.restore(vcpu).map_err(|(step, source)| CreateError::Kvm { step, source })?;
        }
        from.meta.restore_clock(&self.fd).map_err(kvm("restore its clock"))
    }
}
