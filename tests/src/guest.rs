//! A guest in this process.

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use exoprobe::sandbox::seccomp::Seccomp;
use exoprobe_guest::Gva;
use exoprobe_guest::paging::PagingMode;
use exoprobe_introspect::SymbolTable;
use exoprobe_probes::{Engine, Guest, KernelHints, Kprobe, Limits, ProbeError, ProbeStatus};
use exoprobe_vmm::{DEFAULT_KVM, Host, SerialPort, Vm, VmConfig, VmState};

use crate::files::guest_folder;
use crate::harness::{Need, keep_console};
use crate::patience::is_over;
use crate::{definition, guest_file};

const MEMORY_MIB: u64 = 32;
/// How often, and how far apart, a probe's counters are read until they add up: far longer than a
/// hit.
const BALANCE_TRIES: u32 = 3000;
const BALANCE_WAIT: Duration = Duration::from_millis(10);
/// How often a wait for the workload looks whether the guest still runs.
const LOOK: Duration = Duration::from_millis(200);
/// How often a boot is looked at by a test of its moments.
const MOMENT: Duration = Duration::from_millis(100);
/// Texts on the guest's console when its kernel has found an error.
const SIGNS_OF_HARM: [&str; 7] =
    ["BUG", "Oops", "WARNING", "panic", "segfault", "traps:", "rcu_sched"];

/// Symbols of the guest's kernel, which are loaded once.
///
/// # Panics
/// When the build is damaged.
#[must_use]
pub fn kernel_symbols() -> SymbolTable {
    static SYMBOLS: LazyLock<SymbolTable> = LazyLock::new(|| {
        SymbolTable::load(&guest_file("vmlinux")).expect("the guest's vmlinux has symbols")
    });
    SYMBOLS.clone()
}

/// Words of all tests' command lines: where KVM emulates guest kernels, the kernel's text is
/// writable, as its protection takes 2 s of a boot there. On hardware KVM, so in the lab, it is
/// protected.
#[must_use]
pub fn more_of_cmdline() -> &'static str {
    if Need::HardwareKvm.lack().is_some() { "rodata=off" } else { "" }
}

/// A running guest with an engine.
pub struct TestGuest {
    /// The machine.
    pub vm: Arc<Vm>,
    /// Its probes.
    pub engine: Arc<Engine>,
}

/// This machine's KVM, whose machines have the service's filters of system calls.
///
/// # Panics
/// When it cannot run guests, or its kernel has no such filters.
#[must_use]
pub fn host() -> &'static Host {
    static FILTERS: LazyLock<Seccomp> =
        LazyLock::new(|| Seccomp::prepare().expect("the kernel has seccomp filters"));
    // Its preflight is as long as a restore in the lab.
    static HOST: LazyLock<Host> = LazyLock::new(|| {
        let hook = FILTERS.thread_hook().expect("they are on");
        unfiltered_host().with_thread_hook(hook)
    });
    &HOST
}

/// This machine's KVM, whose machines' threads have no filters: for benches.
///
/// # Panics
/// When it cannot run guests.
#[must_use]
pub fn unfiltered_host() -> Host {
    Host::open(Path::new(DEFAULT_KVM)).expect("this host runs guests: see `exoprobe doctor`")
}

impl TestGuest {
    /// The configuration that all tests boot.
    #[must_use]
    pub fn config(kernel: &str, vcpus: u8) -> VmConfig {
        let cmdline = std::fs::read_to_string(guest_folder().join("cmdline"));
        let cmdline = cmdline.expect("guest/cmdline");
        let cmdline = format!("{} {}", cmdline.trim(), more_of_cmdline());
        VmConfig {
            kernel: guest_file(kernel),
            initramfs: Some(guest_file("initramfs.cpio")),
            cmdline,
            memory_mib: MEMORY_MIB,
            hugepages: false,
            vcpus,
            disks: Vec::new(),
            nets: Vec::new(),
            virtio_console: false,
            vsock: None,
        }
    }

    /// Boots a guest to its workload's prompt.
    ///
    /// # Panics
    /// When it does not get there; the console's text is in the message.
    #[must_use]
    pub fn boot(config: &VmConfig) -> Self {
        let guest = Self::start(Vm::create(host(), config).expect("the guest can be made"));
        guest.wait_for_prompt();
        guest
    }

    /// As [`Self::boot`], with an engine that reads the kernel's own symbols.
    ///
    /// # Panics
    /// As [`Self::boot`].
    #[must_use]
    pub fn boot_by_its_symbols(config: &VmConfig) -> Self {
        let vm = Vm::create(host(), config).expect("the guest can be made");
        let guest = Self::of_kernel(vm, None);
        guest.power_on();
        guest.wait_for_prompt();
        guest
    }

    /// Makes an engine for a machine that runs the tiny kernel, and does not start it.
    #[must_use]
    pub fn new(vm: Vm) -> Self {
        Self::of_kernel(vm, kernel_symbols())
    }

    /// As [`Self::new`], for a kernel with these symbols; with none, the engine reads the kernel's
    /// own.
    #[must_use]
    pub fn of_kernel(vm: Vm, symbols: impl Into<Option<SymbolTable>>) -> Self {
        Self::with_hints(vm, KernelHints { symbols: symbols.into(), ..KernelHints::default() })
    }

    /// As [`Self::new`], for a kernel of which the engine is given these.
    #[must_use]
    pub fn with_hints(vm: Vm, given: KernelHints) -> Self {
        let vm = Arc::new(vm);
        let guest: Arc<dyn Guest> = Arc::clone(&vm) as Arc<dyn Guest>;
        let engine = Arc::new(Engine::new(guest, vm.clock(), given, Limits::default()));
        Self { vm, engine }
    }

    /// Makes an engine and starts the machine.
    ///
    /// # Panics
    /// When it was started before.
    #[must_use]
    pub fn start(vm: Vm) -> Self {
        let guest = Self::new(vm);
        guest.power_on();
        guest
    }

    /// Starts the machine.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub fn power_on(&self) {
        self.vm.start(self.engine.exit_hook()).expect("a new machine starts");
    }

    /// Waits until the workload takes commands.
    ///
    /// # Panics
    /// As [`Self::boot`].
    pub fn wait_for_prompt(&self) {
        self.wait_for_prompt_from(0);
    }

    /// Calls `act` at each 100 ms, until the workload takes commands. Returns how often.
    ///
    /// # Panics
    /// As [`Self::boot`].
    pub fn at_each_moment_of_boot(&self, mut act: impl FnMut(&Self)) -> u32 {
        let log = self.workload_port().log();
        let begun = Instant::now();
        let mut moments = 0;
        while log.wait_line(0, MOMENT, |line| line == "ready").is_none() {
            let state = self.vm.state();
            let boots = !matches!(state, VmState::Stopped(_)) && !is_over(begun);
            assert!(boots, "no prompt; state {state:?}; console:\n{}", self.console());
            act(self);
            moments += 1;
        }
        moments
    }

    /// Boots the guest again, to its workload's prompt.
    ///
    /// # Panics
    /// As [`Self::boot`].
    pub fn reboot(&self) {
        let from = self.workload_port().log().end();
        self.vm.reboot().expect("the guest can be booted again");
        self.wait_for_prompt_from(from);
    }

    fn wait_for_prompt_from(&self, from: u64) {
        let prompt = self.workload_line(from, |line| line == "ready");
        assert!(
            prompt.is_some(),
            "no prompt; state {:?}; console:\n{}",
            self.vm.state(),
            self.console()
        );
    }

    /// The first line of the workload from `from` on that `accept`s; `None` once the guest has
    /// stopped without it, or [`PATIENCE`](crate::PATIENCE) is over.
    fn workload_line(&self, from: u64, accept: impl Fn(&str) -> bool) -> Option<String> {
        let log = self.workload_port().log();
        let begun = Instant::now();
        loop {
            // Asked before reading, so that what it wrote last is read.
            let stopped = matches!(self.vm.state(), VmState::Stopped(_));
            if let Some((line, _)) = log.wait_line(from, LOOK, &accept) {
                return Some(line);
            }
            if stopped || is_over(begun) {
                return None;
            }
        }
    }

    fn workload_port(&self) -> &SerialPort {
        self.vm.serial(1).expect("every guest has port 1")
    }

    /// How the first vCPU's page tables are walked at the moment.
    ///
    /// # Panics
    /// When the vCPU has ended.
    #[must_use]
    pub fn paging_mode(&self) -> PagingMode {
        let sregs = self.vm.registers(0).expect("a vCPU answers").sregs;
        PagingMode::of(&sregs).expect("it runs Linux")
    }

    /// Has the workload carry out a command. Returns the count it answers.
    ///
    /// # Panics
    /// When it answers with an error or not at all.
    pub fn work(&self, command: &str) -> u64 {
        let from = self.send(command);
        self.answer(from, command)
    }

    /// Sends a command to the workload. Returns where its answer will be in the port's log.
    ///
    /// # Panics
    /// When the guest does not read.
    #[must_use]
    pub fn send(&self, command: &str) -> u64 {
        let port = self.workload_port();
        let from = port.log().end();
        port.send(format!("{command}\n").as_bytes()).expect("the workload reads");
        from
    }

    /// Whether the port's log has nothing after `from`.
    #[must_use]
    pub fn is_silent(&self, from: u64) -> bool {
        self.workload_port().log().read(from).bytes.is_empty()
    }

    /// Has the workload carry out `command`, as often as it takes until `round` was carried out
    /// `rounds` times meanwhile: however fast the guest is beside this thread. `round` gets its
    /// number, from 0. Returns the sum of the counts.
    ///
    /// # Panics
    /// As [`Self::work`], and when the guest stops.
    pub fn work_during(&self, command: &str, rounds: usize, mut round: impl FnMut(usize)) -> u64 {
        let (mut count, mut done) = (0, 0);
        while done < rounds {
            let from = self.send(command);
            let begun = Instant::now();
            while self.is_silent(from) {
                assert!(matches!(self.vm.state(), VmState::Running), "{}", self.console());
                assert!(!is_over(begun), "no answer after {done} rounds");
                round(done);
                done += 1;
            }
            count += self.answer(from, command);
        }
        count
    }

    /// Waits for the answer to a command sent when the port's log ended at `from`. Returns its
    /// count.
    ///
    /// # Panics
    /// As [`Self::work`].
    pub fn answer(&self, from: u64, command: &str) -> u64 {
        let line = self.answer_line(from, command);
        let count = line.strip_prefix("done ").and_then(|l| l.rsplit(' ').next()?.parse().ok());
        count.unwrap_or_else(|| panic!("`{command}` gave `{line}`; console:\n{}", self.console()))
    }

    /// As [`Self::answer`], for a command that may fail. Returns the answer as it is.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn answer_line(&self, from: u64, command: &str) -> String {
        let answer =
            self.workload_line(from, |l| l.starts_with("done ") || l.starts_with("error "));
        let Some(line) = answer else {
            panic!(
                "no answer to `{command}`; state {:?}; console:\n{}",
                self.vm.state(),
                self.console()
            );
        };
        line
    }

    /// Registers a line of kprobe_events' language.
    ///
    /// # Panics
    /// When it is refused.
    pub fn probe(&self, line: &str) {
        self.engine.register(definition(line)).unwrap_or_else(|e| panic!("{line}: {e}"));
    }

    /// Waits for what is sure to come.
    ///
    /// # Panics
    /// When the guest stops before, or [`PATIENCE`](crate::PATIENCE) is over.
    pub fn wait_until(&self, what: &str, reached: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !reached(self) {
            let state = self.vm.state();
            let alive = matches!(state, VmState::Running) && !is_over(begun);
            assert!(alive, "{what}: not reached; state {state:?}; console:\n{}", self.console());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the error of registering a line. Nothing is registered: the line is the first of a
    /// batch whose last is always refused, and a batch is looked at whole before anything of it
    /// goes to the guest.
    ///
    /// # Errors
    /// [`ProbeError`]: why it would be refused.
    ///
    /// # Panics
    /// When the line is none of kprobe_events' language.
    pub fn check(&self, line: &str) -> Result<(), ProbeError> {
        // An address and no unknown symbol, for which a similar one would be looked for: that is
        // slow.
        let nowhere = definition("p:nowhere 0x1");
        let batch = [definition(line), nowhere];
        let refused = self.engine.register(batch).expect_err("its last is refused");
        if refused.index == 0 { Err(refused.error) } else { Ok(()) }
    }

    /// Registers probes, all or none. Returns their number.
    ///
    /// # Panics
    /// When one is refused.
    pub fn probes(&self, lines: impl Iterator<Item = String>) -> usize {
        let probes: Vec<Kprobe> = lines.map(|line| definition(&line).into()).collect();
        let count = probes.len();
        self.engine.register(probes).unwrap_or_else(|e| panic!("{e}"));
        count
    }

    /// The text of kprobes/list.
    #[must_use]
    pub fn list_text(&self) -> String {
        exoprobe_tracer::list_text(&self.engine.list())
    }

    /// Reads a probe's counters, which must add up.
    ///
    /// # Panics
    /// When there is none of that name, or its counters do not add up.
    #[must_use]
    pub fn status(&self, event: &str) -> ProbeStatus {
        let mut tries = 0;
        loop {
            let status = self.engine.show("kprobes", event).unwrap_or_else(|e| panic!("{e}"));
            if status.hits == status.recorded + status.filtered + status.lost {
                return status;
            }
            // A vCPU may be in the middle of a hit, which is counted before it is recorded.
            tries += 1;
            assert!(tries < BALANCE_TRIES, "the counters do not add up: {status:?}");
            std::thread::sleep(BALANCE_WAIT);
        }
    }

    /// Hits of a probe.
    ///
    /// # Panics
    /// As [`Self::status`].
    #[must_use]
    pub fn hits(&self, event: &str) -> u64 {
        self.status(event).hits
    }

    /// Bytes of the guest's memory.
    ///
    /// # Panics
    /// Where nothing is mapped.
    #[must_use]
    pub fn bytes(&self, at: Gva, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.engine.read_memory(at, &mut bytes).expect("kernel memory is mapped");
        bytes
    }

    /// Console text so far.
    #[must_use]
    pub fn console(&self) -> String {
        let chunk = self.vm.serial(0).expect("port 0").log().read(0);
        String::from_utf8_lossy(&chunk.bytes).into_owned()
    }

    /// The guest still works, and its kernel found nothing wrong.
    ///
    /// # Panics
    /// When it does not.
    pub fn assert_unharmed(&self) {
        self.assert_unharmed_but_for("no sign");
    }

    /// As [`Self::assert_unharmed`], where one of the signs of harm is what the test wanted.
    ///
    /// # Panics
    /// As [`Self::assert_unharmed`].
    pub fn assert_unharmed_but_for(&self, wanted: &str) {
        assert!(matches!(self.vm.state(), VmState::Running), "{:?}", self.vm.state());
        assert_eq!(self.work("getpid 3"), 3);
        assert_eq!(self.work("fork 1"), 1);
        let console = self.console();
        for sign in SIGNS_OF_HARM.into_iter().filter(|sign| *sign != wanted) {
            assert!(!console.contains(sign), "the guest's console shows {sign}:\n{console}");
        }
    }
}

/// A test that fails shows what its guest wrote.
impl Drop for TestGuest {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let console = self.console();
            eprintln!("console of the guest:\n{console}");
            keep_console(&console);
        }
    }
}
