//! The machines that Bochs emulates for us.

use std::path::Path;

use crate::build::Build;

/// A machine: which KVM the lab's host then has, and what is missing there.
#[derive(Clone, Copy)]
pub(crate) struct Machine {
    /// The KVM module that drives it.
    pub(crate) kvm: &'static str,
    /// The emulator.
    pub(crate) build: Build,
    /// Bochs' name of the CPU.
    cpu: &'static str,
    /// How many of them.
    cpus: u32,
    /// Instructions of a second of the machine's time.
    ips: u32,
    /// RAM in MiB.
    memory: u32,
    /// Words on its Linux's command line, besides [`CMDLINE`].
    cmdline: &'static str,
    /// Needs of tests that it lacks, for `exoprobe_tests::harness`: `need=reason;...`.
    pub(crate) lacks: &'static str,
}

/// VT-x with EPT, and SMAP. This CPU's CPUID has no leaf that claims a frequency, so Linux measures
/// that the time-stamp counter runs at [`IPS`], and its seconds are those of Bochs.
pub(crate) const INTEL: Machine = Machine {
    kvm: "kvm_intel",
    build: Build::Quick,
    cpu: "broadwell_ult",
    cpus: 1,
    ips: IPS,
    memory: 768,
    cmdline: NO_ERMS,
    lacks: "contended_locks=one CPU, and a vCPU that spins with interrupts off keeps it",
};

/// Linux copies by `rep movsq`, not by `rep movsb`: Bochs' clock counts each turn of them as an
/// instruction.
const NO_ERMS: &str = "clearcpuid=erms";

/// As [`INTEL`], where two vCPUs run at once: its two CPUs take turns of 32 instructions, in as
/// many of the clock's ticks.
pub(crate) const INTEL_SMP: Machine =
    Machine { cpus: 2, cmdline: "clearcpuid=erms idle=halt", lacks: "", ..INTEL };

/// As [`INTEL_SMP`], with room for a GiB of a guest. Two vCPUs and a search of RAM have a CPU each:
/// on two, a vCPU waits for the others' turns, of 10 ms.
pub(crate) const INTEL_STOPS: Machine = Machine { memory: 1536, cpus: 3, ..INTEL_SMP };

/// As [`INTEL_STOPS`], with room for 8 GiB of a guest.
pub(crate) const INTEL_TOUCHED: Machine = Machine { memory: 10240, ..INTEL_STOPS };

/// As [`INTEL`], with room for a distribution's kernel.
pub(crate) const INTEL_LARGE: Machine = Machine { memory: 1536, ..INTEL };

/// As [`INTEL`], with room for a guest that is a whole distribution.
pub(crate) const INTEL_DEBIAN: Machine = Machine { memory: 2048, ..INTEL };

/// SVM with nested paging: the one AMD CPU of Bochs 2.7 on which kvm_amd loads, with an option not
/// to use what Bochs has not.
pub(crate) const AMD: Machine = Machine {
    kvm: "kvm_amd",
    build: Build::Debian,
    cpu: "phenom_8650_toliman",
    cpus: 1,
    ips: IPS,
    memory: 768,
    cmdline: "clearcpuid=popcnt kvm_amd.lbrv=0 kvm_amd.vls=0 kvm_amd.avic=0",
    lacks: "smp=Bochs refuses a second vCPU's long mode under SVM;\
            single_step=KVM_GUESTDBG_SINGLESTEP ends Bochs under SVM;\
            triple_fault=a guest's triple fault ends Bochs under SVM;\
            own_breakpoint=an int3 handed back is lost now and then, why is not known (docs/limits.md)",
};

/// Ten times what Bochs does in a second of ours, so that a timer's tick is to an exit as on
/// silicon.
const IPS: u32 = 500_000_000;
/// For [`Machine::counting`].
const COUNTING_IPS: u32 = 50_000_000;

/// Command line of the lab's Linux: a panic ends the run, by a triple fault.
pub(crate) const CMDLINE: &str = "console=ttyS0 quiet panic=-1 reboot=t mitigations=off nokaslr";

impl Machine {
    /// The same for counting instructions: slow enough for KVM's conversions of time, whose steps
    /// would be seen in the counts, to be few.
    pub(crate) const fn counting(&self) -> Self {
        Self { ips: COUNTING_IPS, ..*self }
    }

    /// The same with a clock of its own, if one is given.
    pub(crate) fn at_rate(&self, ips: Option<u32>) -> Self {
        Self { ips: ips.unwrap_or(self.ips), ..*self }
    }

    /// Kernel command line of the lab's host.
    pub(crate) fn cmdline(&self) -> String {
        format!("{CMDLINE} {}", self.cmdline).trim_end().to_owned()
    }

    /// Content of the file [`MSRS`], of registers that Bochs does not have by itself, if there is
    /// one: address, type 0, initial value, and which bits are reserved or ignored.
    ///
    /// Without IA32_MISC_ENABLE's bit of fast strings (Intel SDM vol. 4, 2.1), Linux copies memory
    /// by single words, which takes a fifth of the emulator's time.
    pub(crate) fn msrs(&self) -> Option<&'static str> {
        let misc_enable = "0x1a0 0 00000000 00000001 00000000 00000000 00000000 00000000\n";
        (self.build == Build::Quick).then_some(misc_enable)
    }

    /// Bochs' configuration, with a second disk if one is given; files are relative to the folder
    /// of the run. The clock starts at a fixed time: nothing in the machine depends on when it
    /// runs.
    pub(crate) fn bochsrc(&self, disk: Option<&Path>) -> String {
        let Self { cpu, cpus, ips, memory, .. } = self;
        let disk =
            disk.map(|path| format!("ata0-slave: type=disk, path={}, mode=flat\n", path.display()));
        let disk = disk.unwrap_or_default();
        let display = self.build.display();
        let msrs = self.msrs().map_or(String::new(), |_| format!(", msrs={MSRS}"));
        format!(
            "plugin_ctrl: unmapped=true, biosdev=true, speaker=false, extfpuirq=true, \
             parallel=false, serial=true\n\
             memory: guest={memory}, host={memory}\n\
             romimage: file=/usr/share/bochs/BIOS-bochs-latest\n\
             vgaromimage: file=/usr/share/seabios/vgabios.bin\n\
             boot: cdrom\n\
             ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14\n\
             ata0-master: type=cdrom, path=lab.iso, status=inserted\n\
             {disk}\
             cpu: model={cpu}, count={cpus}, quantum=32, ips={ips}, reset_on_triple_fault=0{msrs}\n\
             clock: sync=none, time0=946684800\n\
             display_library: {display}\n\
             com1: enabled=1, mode=file, dev={CONSOLE}\n\
             com2: enabled=1, mode=file, dev={RESULTS}\n\
             log: bochs.log\n\
             panic: action=fatal\n\
             error: action=ignore\n\
             info: action=ignore\n\
             debug: action=ignore\n\
             mouse: enabled=0\n"
        )
    }
}

/// File, in the folder of a run, of [`Machine::msrs`].
pub(crate) const MSRS: &str = "msrs.def";
/// File, in the folder of a run, of what the lab's host writes to its console.
pub(crate) const CONSOLE: &str = "console.txt";
/// File of what comes on its second serial port.
pub(crate) const RESULTS: &str = "results.txt";
