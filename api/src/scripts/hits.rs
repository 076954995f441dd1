//! From recorded hits to a script's actions.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::{ArcSwap, ArcSwapOption};
use exoprobe_guest::{GuestClock, Gva};
use exoprobe_introspect::SymbolTable;
use exoprobe_probes::{Engine, HitConsumer, KernelMemory, MemoryAtHit, RecordedHit};
use exoprobe_script::{
    AttachmentKind, Datum, Flow, Format, Hit, Host, Limits, MapBudget, Memory, OwnedDatum, Program,
    Runtime, SymbolOffset,
};
use tokio::sync::watch;

use super::arm::Plan;
use super::files::GuestFiles;
use super::output::ScriptOutput;

/// Runs a script's actions, one at a time.
pub(super) struct Actions {
    program: Arc<Program>,
    plans: Vec<Plan>,
    runtime: Mutex<Runtime>,
    host: ScriptHost,
    clock: GuestClock,
    pub(super) output: Arc<ScriptOutput>,
    /// The status that the script has ended itself with.
    exit: watch::Sender<Option<i32>>,
    pub(super) counts: Counts,
}

/// Counts of a script's hits: each runs or is filtered, by each action of its probe.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) run: AtomicU64,
    pub(super) filtered: AtomicU64,
    /// Runs that ended at a limit.
    pub(super) limited: AtomicU64,
    /// Hits after the script's exit().
    pub(super) late: AtomicU64,
}

impl Actions {
    pub(super) fn new(
        program: Program,
        plans: Vec<Plan>,
        format: Format,
        engine: &Engine,
        maps: &Arc<MapBudget>,
    ) -> Self {
        let program = Arc::new(program);
        let (limits, maps) = (Limits::default(), Arc::clone(maps));
        let runtime = Mutex::new(Runtime::within(Arc::clone(&program), format, limits, maps));
        let (clock, output) = (engine.clock(), Arc::<ScriptOutput>::default());
        let (host, exit) = (ScriptHost::new(engine, &output), watch::Sender::new(None));
        Self { program, plans, runtime, host, clock, output, exit, counts: Counts::default() }
    }

    /// The status that the script ends itself with, once it does.
    pub(super) fn exit(&self) -> watch::Receiver<Option<i32>> {
        self.exit.subscribe()
    }

    /// Its plans, by attachment.
    pub(super) fn plans(&self) -> &[Plan] {
        &self.plans
    }

    /// Begins: the output says how many probes there are, and BEGIN runs.
    pub(super) fn begin(&self, engine: &Engine) {
        let time = now(engine);
        self.host.set_time(time);
        self.lock().start(time, &mut &*self.output);
        self.run_all(&AttachmentKind::Begin, engine);
    }

    /// Ends, after the last hit: END runs, and the maps are shown.
    pub(super) fn end(&self, engine: &Engine) {
        self.host.see_kernel(engine);
        self.run_all(&AttachmentKind::End, engine);
        self.lock().finish(&self.host, &mut &*self.output);
        self.output.complete();
    }

    /// Runs what has no place in the guest.
    fn run_all(&self, kind: &AttachmentKind, engine: &Engine) {
        let attachments = self.program.attachments.iter().enumerate();
        for (index, _) in attachments.filter(|(_, attachment)| attachment.kind == *kind) {
            self.run_timed(index, engine);
        }
    }

    /// Runs the actions of an attachment without a place in the guest. Waits for the engine.
    pub(super) fn run_timed(&self, attachment: usize, engine: &Engine) {
        // Before the lock: the engine's holder may wait for it, to run actions over hits.
        self.host.see_kernel(engine);
        for (body, reads) in &self.plans[attachment].timed {
            let (time, memory) = (now(engine), engine.kernel_memory().ok());
            let address_of = |name: &str| self.host.address_of(name);
            let read = reads.iter().map(|read| read.read(memory.as_ref(), &address_of));
            let read: Vec<_> = read.collect();
            let values: Vec<Datum<'_>> = read.iter().map(OwnedDatum::datum).collect();
            let memory = memory.map(FixedMemory);
            let memory = memory.as_ref().map(|memory| memory as &dyn Memory);
            let host = HostWithMemory { host: &self.host, memory };
            let mut runtime = self.lock();
            let hit = Hit { time, cpu: 0, values: &values };
            let _ = self.run(&mut runtime, (attachment, *body), &hit, &host);
        }
    }

    /// The intervals, in nanoseconds, with the attachments that they are of.
    pub(super) fn intervals(&self) -> Vec<(usize, u64)> {
        let nanoseconds = |kind: &AttachmentKind| match kind {
            AttachmentKind::Interval { nanoseconds } => Some(*nanoseconds),
            _ => None,
        };
        let attachments = self.program.attachments.iter().enumerate();
        attachments.filter_map(|(index, it)| Some((index, nanoseconds(&it.kind)?))).collect()
    }

    /// All maps as JSON.
    pub(super) fn maps(&self) -> String {
        self.lock().maps_json(&self.host)
    }

    /// Runs the actions over a hit. Returns the result that override() wants the function to have.
    fn run_hit(&self, attachment: usize, hit: &RecordedHit, host: &dyn Host) -> Option<u64> {
        let plan = self.plans.get(attachment)?;
        self.host.see_symbols(hit.symbols());
        let (time, cpu) = (self.clock.nanos(hit.time().0), u32::from(hit.vcpu()));
        let mut runtime = self.lock();
        let mut result = None;
        for (body, sources) in &plan.bodies {
            let values: Vec<Datum<'_>> = sources.iter().map(|source| source.of(hit)).collect();
            let hit = Hit { time, cpu, values: &values };
            result = self.run(&mut runtime, (attachment, *body), &hit, host).or(result);
        }
        result
    }

    fn run(
        &self,
        runtime: &mut Runtime,
        (attachment, body): (usize, usize),
        hit: &Hit<'_>,
        host: &dyn Host,
    ) -> Option<u64> {
        if self.exit.borrow().is_some()
            && self.program.attachments[attachment].kind != AttachmentKind::End
        {
            self.counts.late.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let outcome = runtime.run(attachment, body, hit, host, &mut &*self.output);
        let counter = match outcome.as_ref().map(|outcome| outcome.flow) {
            Ok(Flow::Filtered) => &self.counts.filtered,
            Ok(Flow::Exit(status)) => {
                self.exit.send_if_modified(|exit| exit.replace(status).is_none());
                &self.counts.run
            }
            Ok(Flow::Ran) => &self.counts.run,
            Err(limit) => {
                self.output.warn(&limit.to_string());
                &self.counts.limited
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
        outcome.ok()?.override_return
    }

    fn lock(&self) -> MutexGuard<'_, Runtime> {
        self.runtime.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HitConsumer for Actions {
    fn take(&self, probe: usize, hit: RecordedHit) {
        let _ = self.run_hit(probe, &hit, &self.host);
    }

    fn take_at_hit(
        &self,
        probe: usize,
        hit: RecordedHit,
        memory: &mut dyn MemoryAtHit,
    ) -> Option<u64> {
        let memory = SharedMemory(RefCell::new(memory));
        self.run_hit(probe, &hit, &HostWithMemory { host: &self.host, memory: Some(&memory) })
    }
}

/// The world of a script: the kernel's symbols, and clocks.
struct ScriptHost {
    /// Those of the last hit: a reboot may place the kernel elsewhere, and modules come and go.
    symbols: ArcSwapOption<SymbolTable>,
    files: ArcSwap<GuestFiles>,
    /// Nanoseconds from 1970 to the guest's boot.
    boot: AtomicU64,
    random: AtomicU64,
    output: Arc<ScriptOutput>,
}

impl ScriptHost {
    fn new(engine: &Engine, output: &Arc<ScriptOutput>) -> Self {
        let (boot, random) = (AtomicU64::new(0), AtomicU64::new(wall_clock()));
        let (symbols, files) = (ArcSwapOption::empty(), ArcSwap::default());
        let host = Self { symbols, files, boot, random, output: Arc::clone(output) };
        host.see_kernel(engine);
        host
    }

    /// Notes the guest's time that it is now.
    fn set_time(&self, time: u64) {
        self.boot.store(wall_clock().saturating_sub(time), Ordering::Relaxed);
    }

    /// Looks for the kernel's symbols and memory as they are now. Waits for the engine.
    fn see_kernel(&self, engine: &Engine) {
        let symbols = engine.symbols().ok();
        let files = GuestFiles::of(engine.kernel_memory().ok(), symbols.as_ref());
        self.files.store(Arc::new(files));
        self.see_symbols(symbols.as_ref());
    }

    /// The address of a symbol of the kernel's, at the last look.
    fn address_of(&self, name: &str) -> Option<u64> {
        Some(self.symbols.load().as_ref()?.address_of(name)?.0)
    }

    /// Uses these symbols from now on; those of before if there are none, as while a guest boots.
    fn see_symbols(&self, symbols: Option<&SymbolTable>) {
        let Some(now) = symbols else { return };
        let known = self.symbols.load();
        if !known.as_ref().is_some_and(|known| known.is_same(now)) {
            self.symbols.store(Some(Arc::new(now.clone())));
        }
    }
}

/// The guest's time, in nanoseconds since its boot.
fn now(engine: &Engine) -> u64 {
    engine.micros().saturating_mul(1000)
}

/// Nanoseconds from 1970.
fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Host for ScriptHost {
    fn symbol(&self, address: u64) -> Option<SymbolOffset> {
        let symbols = self.symbols.load();
        let found = symbols.as_ref()?.resolve(Gva(address))?;
        let (name, module) = (found.name.to_owned(), found.module.map(str::to_owned));
        Some(SymbolOffset { name, offset: found.offset, module })
    }

    fn wall_clock(&self, time: u64) -> i64 {
        i64::try_from(self.boot.load(Ordering::Relaxed).saturating_add(time)).unwrap_or(i64::MAX)
    }

    fn file(&self, path: &str) -> Result<Vec<u8>, String> {
        self.files.load().read(path).map_err(|error| error.to_string())
    }

    fn command(&self, command: &str) -> Result<Option<Vec<u8>>, String> {
        self.output.command(command);
        Ok(None)
    }

    /// The next number of SplitMix64.
    fn random(&self) -> u32 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let state = self.random.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from(mixed >> 32).expect("32 bits")
    }
}

/// The guest's memory, at a hit.
struct SharedMemory<'a>(RefCell<&'a mut dyn MemoryAtHit>);

impl Memory for SharedMemory<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.0.borrow_mut().read(Gva(address), into)
    }
}

/// The kernel's memory, at any time.
struct FixedMemory(KernelMemory);

impl Memory for FixedMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.0.read(Gva(address), into).is_ok()
    }
}

/// The same world, with the guest's memory.
struct HostWithMemory<'a> {
    host: &'a ScriptHost,
    memory: Option<&'a dyn Memory>,
}

impl Host for HostWithMemory<'_> {
    fn symbol(&self, address: u64) -> Option<SymbolOffset> {
        self.host.symbol(address)
    }

    fn wall_clock(&self, time: u64) -> i64 {
        self.host.wall_clock(time)
    }

    fn random(&self) -> u32 {
        self.host.random()
    }

    fn file(&self, path: &str) -> Result<Vec<u8>, String> {
        self.host.file(path)
    }

    fn command(&self, command: &str) -> Result<Option<Vec<u8>>, String> {
        self.host.command(command)
    }

    fn memory(&self) -> Option<&dyn Memory> {
        self.memory
    }
}
