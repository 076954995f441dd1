//! What switches probes on and off: their own state, the global switch, and jump optimization's.

use std::sync::atomic::Ordering;

use crate::engine::control::reconcile::ArmError;
use exoprobe_guest::Gva;

use crate::definition::ProbeKind;
use crate::engine::control::reconcile::Wait;
use crate::engine::control::state::Control;
use crate::engine::facade::engine::Engine;
use crate::error::ProbeError;

impl Engine {
    /// Arms a disabled kprobe again, or all that its event has: all or none.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`], [`ProbeError::Clobbered`].
    pub fn enable_kprobe(&self, group: &str, event: &str) -> Result<(), ProbeError> {
        self.set_enabled(group, event, Some(ProbeKind::Kprobe), true)
    }

    /// Disarms a kprobe and keeps it: no hit is counted after this returns.
    ///
    /// # Errors
    /// As [`Self::enable_kprobe`].
    pub fn disable_kprobe(&self, group: &str, event: &str) -> Result<(), ProbeError> {
        self.set_enabled(group, event, Some(ProbeKind::Kprobe), false)
    }

    /// As [`Self::enable_kprobe`], a return probe.
    ///
    /// # Errors
    /// As [`Self::enable_kprobe`].
    pub fn enable_kretprobe(&self, group: &str, event: &str) -> Result<(), ProbeError> {
        self.set_enabled(group, event, Some(ProbeKind::Kretprobe), true)
    }

    /// As [`Self::disable_kprobe`], a return probe: calls that are under way are not counted
    /// either.
    ///
    /// # Errors
    /// As [`Self::enable_kprobe`].
    pub fn disable_kretprobe(&self, group: &str, event: &str) -> Result<(), ProbeError> {
        self.set_enabled(group, event, Some(ProbeKind::Kretprobe), false)
    }

    /// Enables or disables a probe of either kind.
    ///
    /// # Errors
    /// As [`Self::enable_kprobe`].
    pub fn enable_probe(&self, group: &str, event: &str, on: bool) -> Result<(), ProbeError> {
        self.set_enabled(group, event, None, on)
    }

    fn set_enabled(
        &self,
        group: &str,
        event: &str,
        kind: Option<ProbeKind>,
        enabled: bool,
    ) -> Result<(), ProbeError> {
        let mut control = self.lock();
        let ids = control.registry.ids_of(group, event, kind)?;
        self.set_all_enabled(&mut control, &ids, enabled)
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

    /// Enables or disables several probes of either kind, by their numbers, at once: vCPUs are
    /// waited for once. Those that are none are passed over.
    ///
    /// # Errors
    /// The first of [`ProbeError::Clobbered`], after all that can be done is.
    pub fn enable_probes(&self, ids: &[u32], on: bool) -> Result<(), ProbeError> {
        self.set_all_enabled(&mut self.lock(), ids, on)
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
