//! The engine: registers probes, arms and disarms them, and keeps their books.
//!
//! Registration and removal take one lock; hits take none. They meet in an immutable table that is
//! replaced as a whole. Order matters on both ways: a site is in the table before its int3 is in the
//! guest's text, and leaves it only after the byte is back and every vCPU has been out of the guest.
//! [`Engine::settle`] is the one place that does both.

mod guest;
mod hit;
mod kernel;
mod register;
mod slots;
mod text;

pub use guest::Guest;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use exoprobe_introspect::SymbolTable;
use exoprobe_vmm::{ExitHook, GuestClock, GuestTime, Gva, kvm_regs};

use crate::definition::{Flag, ProbeDefinition, ProbeKind};
use crate::error::{AttachError, BatchError, ProbeError};
use crate::events::{Event, EventStore, Record, Ring};
use crate::status::ProbeStatus;
use hit::{HitPath, Probe, Site, Table};
use kernel::Kernel;
use slots::Slots;

/// Words of each vCPU's ring: 20,000 records of three arguments.
const RING_WORDS: usize = 1 << 17;
/// Events kept for readers unless told otherwise.
pub const DEFAULT_EVENTS: usize = 1 << 16;

/// What a pre-handler decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on: other probes, then the instruction.
    Continue,
    /// It set RIP itself: nothing more happens at this hit (a non-zero return of a pre_handler).
    Done,
}

/// Runs before the probed instruction, on the vCPU's thread; may change the registers.
pub type PreHandler = Box<dyn Fn(&mut kvm_regs) -> Verdict + Send + Sync>;
/// Runs after the probed instruction, on the vCPU's thread; may change the registers.
pub type PostHandler = Box<dyn Fn(&mut kvm_regs) + Send + Sync>;

/// A kprobe to register.
#[derive(Default)]
pub struct Kprobe {
    /// Where, what to record, and under which name.
    pub definition: ProbeDefinition,
    /// Called before the instruction, if any.
    pub pre_handler: Option<PreHandler>,
    /// Called after it, if any. The instruction is then emulated or stepped.
    pub post_handler: Option<PostHandler>,
}

impl From<ProbeDefinition> for Kprobe {
    fn from(definition: ProbeDefinition) -> Self {
        Self { definition, ..Self::default() }
    }
}

/// Everything that registration changes.
struct Registry {
    probes: BTreeMap<u32, Registered>,
    sites: HashMap<Gva, Arc<Site>>,
    names: HashMap<(Arc<str>, Arc<str>), u32>,
    slots: Slots,
    kernel: Option<Arc<Kernel>>,
    next_id: u32,
}

/// A probe and where it ended up.
struct Registered {
    probe: Arc<Probe>,
    at: Gva,
    symbol: Option<Arc<str>>,
    offset: u64,
    /// The address as text, as its events show it.
    addr: Arc<str>,
}

/// The probe engine of one guest.
pub struct Engine {
    guest: Arc<dyn Guest>,
    clock: GuestClock,
    symbols: SymbolTable,
    hits: Arc<HitPath>,
    registry: Mutex<Registry>,
    store: EventStore,
    /// Held by whoever drains the rings: they have one consumer.
    draining: Mutex<()>,
}

impl Engine {
    /// An engine for `guest`; `symbols` are as linked, without KASLR's slide.
    #[must_use]
    pub fn new(
        guest: Arc<dyn Guest>,
        clock: GuestClock,
        symbols: SymbolTable,
        events: usize,
    ) -> Self {
        let rings = (0..guest.vcpus()).map(|_| Ring::new(RING_WORDS)).collect();
        // A guest from a snapshot may have tasks in slots of before.
        let table = Table::new([].iter(), guest.hidden().code_window());
        let hits = HitPath { table: ArcSwap::from_pointee(table), rings };
        let registry = Registry {
            probes: BTreeMap::new(),
            sites: HashMap::new(),
            names: HashMap::new(),
            slots: Slots::default(),
            kernel: None,
            next_id: 1,
        };
        Self {
            guest,
            clock,
            symbols,
            hits: Arc::new(hits),
            registry: Mutex::new(registry),
            store: EventStore::new(events),
            draining: Mutex::new(()),
        }
    }

    /// The hook to start the machine with.
    #[must_use]
    pub fn exit_hook(&self) -> Arc<dyn ExitHook> {
        Arc::clone(&self.hits) as Arc<dyn ExitHook>
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The symbols, where the guest has them once it is known (KASLR), else as linked.
    #[must_use]
    pub fn symbols(&self) -> SymbolTable {
        let registry = self.lock();
        registry.kernel.as_ref().map_or_else(|| self.symbols.clone(), |k| k.symbols.clone())
    }

    /// Reads the kernel's memory at a virtual address.
    ///
    /// # Errors
    /// [`ProbeError::Read`] where nothing is mapped, [`ProbeError::Attach`].
    pub fn read_memory(&self, at: Gva, buf: &mut [u8]) -> Result<(), ProbeError> {
        let mut registry = self.lock();
        let kernel = self.attach(&mut registry)?;
        Ok(kernel.memory().read(at, buf)?)
    }

    /// Registers one probe; gives its id.
    ///
    /// # Errors
    /// [`ProbeError`]: nothing was changed.
    pub fn register_kprobe(&self, probe: impl Into<Kprobe>) -> Result<u32, ProbeError> {
        let ids = self.register_kprobes(vec![probe.into()]).map_err(|batch| batch.error)?;
        Ok(ids[0])
    }

    /// Registers all or none; gives their ids in order.
    ///
    /// # Errors
    /// [`BatchError`] naming the first that was refused.
    pub fn register_kprobes(&self, probes: Vec<Kprobe>) -> Result<Vec<u32>, BatchError> {
        let mut registry = self.lock();
        let first = probes.first().map(|p| p.definition.event_name()).unwrap_or_default();
        let kernel = self.attach(&mut registry).map_err(|error| BatchError {
            index: 0,
            name: first,
            error: error.into(),
        })?;
        self.add_all(&mut registry, &kernel, probes)
    }

    /// Removes a probe: the guest's byte is back, and no hit is under way, when this returns.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`]; [`ProbeError::Clobbered`] when the guest changed the text
    /// (the probe is gone all the same, and the text is as the guest wants it).
    pub fn unregister_kprobe(&self, group: &str, event: &str) -> Result<(), ProbeError> {
        let mut registry = self.lock();
        let id = registry.id(group, event)?;
        self.remove_all(&mut registry, &[id])
    }

    /// Removes all probes.
    ///
    /// # Errors
    /// As [`Self::unregister_kprobe`], after removing all.
    pub fn unregister_all(&self) -> Result<(), ProbeError> {
        let mut registry = self.lock();
        let ids: Vec<u32> = registry.probes.keys().copied().collect();
        self.remove_all(&mut registry, &ids)
    }

    /// Arms a disabled probe again.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`], [`ProbeError::Clobbered`].
    pub fn enable_kprobe(&self, group: &str, event: &str) -> Result<(), ProbeError> {
        self.set_enabled(group, event, true)
    }

    /// Disarms a probe and keeps it: no hit is counted after this returns.
    ///
    /// # Errors
    /// As [`Self::enable_kprobe`].
    pub fn disable_kprobe(&self, group: &str, event: &str) -> Result<(), ProbeError> {
        self.set_enabled(group, event, false)
    }

    /// Every probe, in order of registration.
    #[must_use]
    pub fn list(&self) -> Vec<ProbeStatus> {
        let registry = self.lock();
        registry.probes.values().map(|probe| registry.status(probe)).collect()
    }

    /// One probe.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub fn show(&self, group: &str, event: &str) -> Result<ProbeStatus, ProbeError> {
        let registry = self.lock();
        let id = registry.id(group, event)?;
        Ok(registry.status(&registry.probes[&id]))
    }

    /// The text of kprobes/list, in order of registration.
    #[must_use]
    pub fn list_text(&self) -> String {
        self.list().iter().map(ProbeStatus::list_line).collect()
    }

    /// The events so far. Hits are in it once drained: see [`Self::drain`].
    #[must_use]
    pub fn events(&self) -> &EventStore {
        &self.store
    }

    /// Is any probe registered?
    #[must_use]
    pub fn has_probes(&self) -> bool {
        !self.lock().probes.is_empty()
    }

    /// Runs `work` while no probe is registered and none can be; `None` when there are some.
    pub fn while_unprobed<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let registry = self.lock();
        registry.probes.is_empty().then(work)
    }

    /// Moves all recorded hits into the event store, merged by time.
    pub fn drain(&self) {
        let registry = self.lock();
        self.drain_locked(&registry);
    }

    fn drain_locked(&self, registry: &Registry) {
        let _one = self.draining.lock().unwrap_or_else(PoisonError::into_inner);
        let mut batch: Vec<(u8, Record)> = Vec::new();
        for (vcpu, ring) in (0u8..).zip(&self.hits.rings) {
            ring.drain(|record| batch.push((vcpu, record)));
        }
        batch.sort_by_key(|(_, record)| record.time);
        batch.retain(|(_, record)| registry.probes.contains_key(&record.probe));
        self.store.append(batch, |seq, (vcpu, record)| {
            self.event(seq, vcpu, &record, &registry.probes[&record.probe])
        });
    }

    fn event(&self, seq: u64, vcpu: u8, record: &Record, from: &Registered) -> Event {
        let definition = &from.probe.definition;
        let values = record.args.iter().enumerate();
        let args = values
            .map(|(i, value)| (definition.arg_name(i), format!("{value:#x}").into()))
            .collect();
        Event {
            seq,
            time: self.clock.seconds(GuestTime(record.time)),
            vcpu,
            group: Arc::clone(&from.probe.group),
            event: Arc::clone(&from.probe.event),
            symbol_name: from.symbol.clone(),
            offset: from.offset,
            addr: Arc::clone(&from.addr),
            args,
        }
    }

    /// The kernel, looked at once.
    fn attach(&self, registry: &mut Registry) -> Result<Arc<Kernel>, AttachError> {
        if self.guest.stopped() {
            return Err(AttachError::Stopped);
        }
        if let Some(kernel) = &registry.kernel {
            // The guest may have changed its tables since: slots need the mapping.
            self.guest.hidden().map(self.guest.ram(), kernel.view.mode)?;
            return Ok(Arc::clone(kernel));
        }
        let kernel = Arc::new(Kernel::attach(&self.guest, &self.symbols)?);
        registry.kernel = Some(Arc::clone(&kernel));
        Ok(kernel)
    }

    /// Makes the hit path see the sites as they are now.
    fn publish(&self, registry: &Registry) {
        let slots = self.guest.hidden().code_window();
        let table = Table::new(registry.sites.values(), slots);
        self.hits.table.store(Arc::new(table));
    }
}

impl Registry {
    fn id(&self, group: &str, event: &str) -> Result<u32, ProbeError> {
        let key = (Arc::from(group), Arc::from(event));
        let found = self.names.get(&key).copied();
        found.ok_or_else(|| ProbeError::NoSuchProbe(format!("{group}/{event}")))
    }

    fn status(&self, registered: &Registered) -> ProbeStatus {
        let probe = &registered.probe;
        let site = &self.sites[&registered.at];
        // Recorded and lost first: a hit is counted before it goes into either.
        let (recorded, lost) =
            (probe.recorded.load(Ordering::Acquire), probe.lost.load(Ordering::Acquire));
        ProbeStatus {
            id: probe.id,
            kind: ProbeKind::Kprobe,
            group: probe.group.to_string(),
            event: probe.event.to_string(),
            symbol_name: registered.symbol.as_deref().map(str::to_owned),
            offset: registered.offset,
            addr: registered.at,
            flags: if probe.is_enabled() { Vec::new() } else { vec![Flag::Disabled] },
            hits: probe.hits.load(Ordering::Acquire),
            nmissed: 0,
            recorded,
            filtered: 0,
            lost,
            instruction: site.insn.text(),
            displaced: site.displaced_by(),
            clobbered: site.clobbered,
            definition: probe.definition.to_string(),
        }
    }
}
