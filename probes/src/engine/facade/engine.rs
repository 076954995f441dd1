//! The engine of one guest: registration, removal and listing of probes.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use exoprobe_guest::{ExitHook, GuestClock};
use exoprobe_introspect::Btf;
use rustc_hash::FxHashMap;

use crate::engine::control::lock::ControlLock;
use crate::engine::control::register::Registration;
use crate::engine::control::registry::Registered;
use crate::engine::control::room::Limits;
use crate::engine::control::state::Control;
use crate::engine::facade::batch::{Batch, Selection, UnregisterError};
use crate::engine::facade::stops::TimedGuest;
use crate::engine::hit::path::HitPath;
use crate::engine::hook::Hook;
use crate::engine::kernel::reserved::BlacklistEntry;
use crate::engine::kernel::state::KernelHints;
use crate::engine::kernel::state::RunningKernel;
use crate::engine::optimize::search::SearchStatistics;
use crate::error::{BatchError, ProbeError};
use crate::events::EventStore;
use crate::status::ProbeStatus;
use crate::synthetic::SYNTHETIC_GROUP;
use crate::trigger::Triggers;
use exoprobe_guest::Guest;

/// Keeps the probes as they are while the guest's memory is written to a file: no probe comes or
/// goes. Meanwhile [`Engine::running_kernel`] answers without a wait.
pub struct KeptProbes<'a> {
    engine: &'a Engine,
    pub(crate) control: MutexGuard<'a, Control>,
}

impl<'a> KeptProbes<'a> {
    pub(crate) fn new(engine: &'a Engine, control: MutexGuard<'a, Control>) -> Self {
        engine
            .kept_kernel
            .store(Some(Arc::new(RunningKernel::of(control.kernel.running.as_deref()))));
        Self { engine, control }
    }
}

impl Drop for KeptProbes<'_> {
    fn drop(&mut self) {
        // Before the registry is unlocked: from then on it may change.
        self.engine.kept_kernel.store(None);
    }
}

/// The probe engine of one guest. Its methods may wait for vCPUs: handlers, which run on vCPUs'
/// threads, must not call them.
pub struct Engine {
    pub(crate) guest: Arc<dyn Guest>,
    /// The same, with its stops.
    pub(crate) timed: Arc<TimedGuest>,
    pub(crate) clock: GuestClock,
    pub(crate) control: Arc<ControlLock>,
    pub(crate) hits: Arc<HitPath>,
    pub(crate) store: EventStore,
    /// The kernel's types, where they were given: answered without a wait for the lock.
    pub(crate) given_types: Option<Arc<Btf>>,
    /// What [`Self::running_kernel`] says while [`KeptProbes`] keep the registry locked.
    pub(crate) kept_kernel: ArcSwapOption<RunningKernel>,
    /// Locked while RAM is searched, and before [`Self::control`].
    pub(crate) searches: Mutex<SearchStatistics>,
    /// The last patrol of [`Self::tick`].
    pub(crate) patrolled: Mutex<Option<Instant>>,
    /// Calls of [`Self::tick`] since the last hit.
    pub(crate) quiet: AtomicU32,
}

impl Engine {
    /// Makes an engine for `guest` that keeps within `limits`.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    ///
    /// use exoprobe_guest::{ExitHook, Guest, GuestClock};
    /// use exoprobe_probes::{Engine, KernelHints, Limits};
    ///
    /// fn start(guest: Arc<dyn Guest>, clock: GuestClock) -> (Engine, Arc<dyn ExitHook>) {
    ///     let engine = Engine::new(guest, clock, KernelHints::default(), Limits::default());
    ///     // The VMM calls the hook at its exits: docs/embedding.md.
    ///     let hook = engine.exit_hook();
    ///     (engine, hook)
    /// }
    /// ```
    #[must_use]
    pub fn new(
        guest: Arc<dyn Guest>,
        clock: GuestClock,
        given: KernelHints,
        limits: Limits,
    ) -> Self {
        let hits = Arc::new(HitPath::new(guest.vcpus(), guest.hidden()));
        let control = Control::new(given, limits.memory, Arc::clone(&hits));
        let given_types = control.kernel.types.clone();
        let control = Arc::new(ControlLock::new(control));
        let store = EventStore::new(limits.events);
        let kept_kernel = ArcSwapOption::empty();
        let timed = Arc::new(TimedGuest::new(guest));
        Self {
            guest: Arc::clone(&timed) as Arc<dyn Guest>,
            timed,
            clock,
            control,
            hits,
            store,
            given_types,
            kept_kernel,
            searches: Mutex::default(),
            patrolled: Mutex::default(),
            quiet: AtomicU32::new(0),
        }
    }

    /// The hook to start the machine with.
    #[must_use]
    pub fn exit_hook(&self) -> Arc<dyn ExitHook> {
        Arc::new(Hook {
            hits: Arc::clone(&self.hits),
            control: Arc::clone(&self.control),
            guest: Arc::downgrade(&self.guest),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Control> {
        let mut control = self.control.lock();
        // Of an earlier call, which did not wait for it.
        control.optimizer.take_leaving();
        control
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Control>> {
        self.control.try_lock()
    }

    /// Registers all probes of a batch, or none, and returns them in order. A probe whose text is
    /// not there yet waits for it, and is armed as soon as it is.
    ///
    /// ```no_run
    /// use exoprobe_probes::{Engine, Kprobe, Verdict, parse_line};
    ///
    /// # fn example(engine: &Engine) -> Result<(), Box<dyn std::error::Error>> {
    /// engine.register(parse_line("r:opened do_sys_open")?)?;
    /// let mut probe = Kprobe::from(parse_line("p:getpid __x64_sys_getpid")?);
    /// probe.pre_handler = Some(Box::new(|hit| {
    ///     println!("vCPU {} at {:#x}", hit.vcpu(), hit.regs.rip);
    ///     Verdict::Continue
    /// }));
    /// let registered = engine.register(probe)?;
    /// println!("number {}", registered[0].id);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BatchError`], which names the first probe that was refused: nothing was changed.
    pub fn register(&self, batch: impl Into<Batch>) -> Result<Vec<Registration>, BatchError> {
        Ok(self.admit(batch)?.registered)
    }

    /// Unregisters probes, and returns them in order of registration. When this returns the
    /// guest's bytes are back and no hit is under way. Calls that a return probe follows return as
    /// they would without it.
    ///
    /// ```no_run
    /// use exoprobe_probes::{Engine, Selection};
    ///
    /// # fn example(engine: &Engine) -> Result<(), Box<dyn std::error::Error>> {
    /// engine.unregister(Selection::event("kprobes", "getpid"))?;
    /// let removed = engine.unregister(Selection::all())?;
    /// println!("{} probes removed", removed.len());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`UnregisterError`] with [`ProbeError::NoSuchProbe`], or with [`ProbeError::Trigger`] where
    /// histograms of other events refer to variables of these, and nothing was changed; or with
    /// [`ProbeError::Clobbered`] when the guest changed the text: all the probes are gone then, and
    /// the text is as the guest wrote it.
    pub fn unregister(
        &self,
        probes: impl Into<Selection>,
    ) -> Result<Vec<Registration>, UnregisterError> {
        let control = self.lock();
        let ids = probes.into().of(&control.registry)?;
        control.registry.check_unreferenced(&ids).map_err(ProbeError::from)?;
        self.remove_all(control, ids)
    }

    /// As [`Self::unregister`], also where histograms of other events refer to variables of these
    /// probes: they count nothing from then on.
    pub(crate) fn unregister_referenced(
        &self,
        probes: impl Into<Selection>,
    ) -> Result<Vec<Registration>, UnregisterError> {
        let control = self.lock();
        let ids = probes.into().of(&control.registry)?;
        self.remove_all(control, ids)
    }

    fn remove_all(
        &self,
        control: MutexGuard<'_, Control>,
        ids: Vec<u32>,
    ) -> Result<Vec<Registration>, UnregisterError> {
        let removed = ids.iter().map(|id| Registration::of(&control.registry.probes[id])).collect();
        match self.remove(control, ids) {
            Ok(()) => Ok(removed),
            Err(error) => Err(UnregisterError { removed, error }),
        }
    }

    fn remove<'a>(
        &'a self,
        mut control: MutexGuard<'a, Control>,
        mut ids: Vec<u32>,
    ) -> Result<(), ProbeError> {
        let guest = self.guest.as_ref();
        // Their triggers go with them.
        self.drain_triggered(&mut control, &ids);
        let switched = control.registry.switched_by(&ids);
        let switched_in_instances = control.registry.switched_in_instances_by(&ids);
        let triggers = |id: &u32| Some((*id, control.registry.probes[id].probe.triggers()?));
        let before: FxHashMap<u32, Arc<Triggers>> = ids.iter().filter_map(triggers).collect();
        let are_switched = before.values().any(|triggers| triggers.is_switched_anywhere());
        let mut disarmed = control.disarm_all(guest, &ids);
        disarmed = disarmed.and(self.arm_switched(&mut control, None, switched));
        let leaving = control.optimizer.take_leaving();
        if !leaving.is_empty() {
            drop(control);
            self.await_left(&leaving);
            control = self.lock();
            // Meanwhile they may have been removed, or enabled again.
            ids.retain(|id| control.registry.probes.contains_key(id));
            let probes = ids.iter().map(|id| &control.registry.probes[id].probe);
            if probes.into_iter().any(|probe| probe.wants_breakpoint()) {
                disarmed = disarmed.and(control.disarm_all(guest, &ids));
            }
        }
        // Their last hits become events while they are still in the books.
        control.rings.count(guest.hidden());
        self.drain_for(&mut control, &before);
        control.forget_all(guest, &ids);
        if are_switched {
            self.drop_lost_switches(&mut control);
        }
        if !before.is_empty() {
            self.drop_unread(&mut control);
        }
        for (instance, events) in switched_in_instances {
            disarmed = disarmed.and(self.arm_switched(&mut control, Some(&instance), events));
        }
        disarmed
    }

    /// Where no probe may be in the guest's kernel, and why.
    ///
    /// # Errors
    /// [`ProbeError::Attach`] while the kernel is not known.
    pub fn blacklist(&self) -> Result<Vec<BlacklistEntry>, ProbeError> {
        let (_registry, kernel) = self.look()?;
        Ok(kernel.blacklist())
    }

    /// Looks whether the text under the probes is still what it was, and places probes that wait.
    /// To be called now and then; not by handlers.
    pub fn patrol(&self) {
        let mut control = self.lock();
        control.patrol(self.guest.as_ref());
    }

    /// Group and name of every event, in no order: quicker than [`Self::list`].
    #[must_use]
    pub fn names(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let control = self.lock();
        let synthetics = control.registry.synthetics.values();
        let synthetics =
            synthetics.map(|found| (Arc::clone(&found.group), Arc::clone(&found.event)));
        control.registry.names.keys().cloned().chain(synthetics).collect()
    }

    /// Whether there is such an event, also a synthetic one, or, without an event, any of that
    /// group.
    #[must_use]
    pub fn has_event(&self, group: &str, event: Option<&str>) -> bool {
        let control = self.lock();
        match event {
            Some(event) => control.registry.has_event(group, event),
            None => {
                let synthetics = &control.registry.synthetics;
                let is_it = |registered: &Registered| *registered.probe.group == *group;
                (group == SYNTHETIC_GROUP && !synthetics.is_empty())
                    || control.registry.probes.values().any(is_it)
            }
        }
    }

    /// Every probe, in order of registration.
    #[must_use]
    pub fn list(&self) -> Vec<ProbeStatus> {
        self.list_of(Selection::all()).unwrap_or_default()
    }

    /// Some probes, in order of registration.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`], where an event was chosen that has no such probe.
    pub fn list_of(&self, probes: impl Into<Selection>) -> Result<Vec<ProbeStatus>, ProbeError> {
        let mut control = self.lock();
        let ids = probes.into().of(&control.registry)?;
        self.count_optimized(&mut control);
        let hidden = self.guest.hidden();
        let status = |id: &u32| control.status(&control.registry.probes[id], hidden);
        Ok(ids.iter().map(status).collect())
    }

    /// An event's probe, or the first of them.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub fn show(&self, group: &str, event: &str) -> Result<ProbeStatus, ProbeError> {
        let mut control = self.lock();
        control.registry.first(group, event)?;
        self.count_optimized(&mut control);
        let first = control.registry.first(group, event)?;
        Ok(control.status(first, self.guest.hidden()))
    }

    /// Hits of optimized probes are in the books once their records and counts have been looked at.
    pub(crate) fn count_optimized(&self, control: &mut Control) {
        if !control.optimizer.is_idle() {
            self.drain_locked(control);
        }
    }

    /// Registered probes, in order of registration.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`], where an event was chosen that has no such probe.
    pub fn registrations(
        &self,
        probes: impl Into<Selection>,
    ) -> Result<Vec<Registration>, ProbeError> {
        let control = self.lock();
        let ids = probes.into().of(&control.registry)?;
        Ok(ids.iter().map(|id| Registration::of(&control.registry.probes[id])).collect())
    }

    /// The events so far. Hits are in it once drained: see [`Self::drain`].
    #[must_use]
    pub fn events(&self) -> &EventStore {
        &self.store
    }

    /// Is any probe registered?
    #[must_use]
    pub fn has_probes(&self) -> bool {
        !self.lock().registry.probes.is_empty()
    }

    /// While the guest shows no trace of a probe (no breakpoint in its text, no trampoline on its
    /// stacks): keeps it so, by keeping others from registering, until what it gives is dropped.
    pub fn traceless(&self) -> Option<KeptProbes<'_>> {
        // A mark for calls that have ended since may be left.
        self.patrol();
        self.collect_detours();
        let control = self.lock();
        let traceless = control.registry.probes.is_empty()
            && !control.registry.sites.values().any(|site| site.armed)
            && self.hits.calls_followed() == 0
            // A snapshot does not have the extension of hidden memory.
            && !control.optimizer.has_code_in_more(self.guest.hidden());
        traceless.then(|| KeptProbes::new(self, control))
    }

    /// Calls that removed return probes still follow to their end.
    #[must_use]
    pub fn calls_followed(&self) -> usize {
        self.hits.calls_followed()
    }
}
