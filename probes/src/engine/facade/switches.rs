//! What switches probes on and off: their own state, the global switch, and jump optimization's.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use crate::engine::control::reconcile::ArmError;
use exoprobe_guest::Gva;

use crate::engine::control::reconcile::Wait;
use crate::engine::control::state::Control;
use crate::engine::facade::batch::Selection;
use crate::engine::facade::engine::Engine;
use crate::error::ProbeError;

impl Engine {
    /// Enables probes, or disables them and keeps them: all or none of an event's. No hit is
    /// counted after this returned for a disabled probe, also of a call that is under way.
    ///
    /// ```no_run
    /// use exoprobe_probes::{Engine, Selection};
    ///
    /// # fn example(engine: &Engine) -> Result<(), Box<dyn std::error::Error>> {
    /// engine.set_enabled(Selection::event("kprobes", "getpid"), false)?;
    /// engine.set_enabled(Selection::event("kprobes", "getpid"), true)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`]; [`ProbeError::Clobbered`], after all that can be done is.
    pub fn set_enabled(
        &self,
        probes: impl Into<Selection>,
        enabled: bool,
    ) -> Result<(), ProbeError> {
        let mut control = self.lock();
        let ids = probes.into().of(&control.registry)?;
        let set = self.set_all_enabled(&mut control, &ids, enabled);
        self.release(control, !enabled);
        set
    }

    /// Unlocks control, and may wait for tasks in detours whose jmps were taken out since it was
    /// locked.
    fn release(&self, mut control: MutexGuard<'_, Control>, waits: bool) {
        let leaving = control.optimizer.take_leaving();
        drop(control);
        if waits && !leaving.is_empty() {
            self.await_left(&leaving);
        }
    }

    fn set_all_enabled(
        &self,
        control: &mut Control,
        ids: &[u32],
        enabled: bool,
    ) -> Result<(), ProbeError> {
        self.drain_triggered(control, ids);
        let guest = self.guest.as_ref();
        let is_new = |id: &&u32| {
            let probe = control.registry.probes.get(id).map(|registered| &registered.probe);
            probe.is_some_and(|probe| probe.enabled.swap(enabled, Ordering::SeqCst) != enabled)
        };
        let ids: Vec<u32> = ids.iter().filter(is_new).copied().collect();
        if ids.is_empty() {
            return Ok(());
        }
        let places = control.registry.places_of(&ids);
        let settled = control.reconcile(guest, &places, Wait::ForVcpus);
        let Err(ArmError { at, error }) = settled else { return Ok(()) };
        if enabled {
            let unarmed = control.registry.unarmed(&places);
            for id in ids.iter().filter(|id| at.is_none() || unarmed.contains(id)) {
                control.registry.probes[id].probe.enabled.store(false, Ordering::SeqCst);
            }
            // What could be armed of them is not to stay so.
            let _ = control.reconcile(guest, &places, Wait::ForVcpus);
        }
        Err(error)
    }

    /// The global switch (kprobes/enabled): off disarms every probe, on arms those that are
    /// enabled. The probes' own state stays as it is.
    ///
    /// # Errors
    /// The first of [`ProbeError::Clobbered`], after all is done.
    pub fn switch(&self, on: bool) -> Result<(), ProbeError> {
        let mut control = self.lock();
        control.registry.switched_on = on;
        let places = control.registry.sites.keys().copied().collect();
        let settled = control.reconcile(self.guest.as_ref(), &places, Wait::ForVcpus);
        self.release(control, !on);
        settled.map_err(|unsettled| unsettled.error)
    }

    /// Is the global switch on?
    #[must_use]
    pub fn is_switched_on(&self) -> bool {
        self.lock().registry.switched_on
    }

    /// The switch of jump optimization (debug.kprobes-optimization): off takes all jmps out, on has
    /// [`Self::optimize`] put them in again.
    pub fn allow_optimization(&self, on: bool) {
        let mut control = self.lock();
        control.optimizer.allowed = on;
        control.optimizer.note_change();
        if !on {
            let places: Vec<Gva> = control.registry.sites.keys().copied().collect();
            control.unoptimize(self.guest.as_ref(), places.iter());
        }
    }

    /// May probes be optimized?
    #[must_use]
    pub fn is_optimization_allowed(&self) -> bool {
        self.lock().optimizer.allowed
    }
}
