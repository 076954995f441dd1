//! What switches probes on and off: their own state, the global switch, and jump optimization's.

use std::sync::atomic::Ordering;

use exoprobe_vmm::Gva;

use super::Engine;
use super::register::Wait;
use crate::definition::ProbeKind;
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

    /// As [`Self::disable_kprobe`], a return probe: calls that are under way are not counted either.
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
        let mut registry = self.lock();
        let mut changed = registry.ids_of(group, event, kind)?;
        let switch = |id: &u32, on| registry.probes[id].probe.enabled.swap(on, Ordering::SeqCst);
        changed.retain(|id| switch(id, enabled) != enabled);
        if changed.is_empty() {
            return Ok(());
        }
        let places = registry.places_of(&changed);
        let settled = self.path.settle(&mut registry, self.guest.as_ref(), &places, Wait::ForVcpus);
        if enabled && settled.is_err() {
            // What could be armed is not to stay so.
            for id in &changed {
                registry.probes[id].probe.enabled.store(false, Ordering::SeqCst);
            }
            let guest = self.guest.as_ref();
            let _ = self.path.settle(&mut registry, guest, &places, Wait::ForVcpus);
        }
        settled.map_err(|unsettled| unsettled.error)
    }

    /// The global switch (kprobes/enabled): off disarms every probe, on arms those that are enabled.
    /// The probes' own state stays as it is.
    ///
    /// # Errors
    /// The first of [`ProbeError::Clobbered`], after all is done.
    pub fn switch(&self, on: bool) -> Result<(), ProbeError> {
        let mut registry = self.lock();
        registry.switched_on = on;
        let places = registry.sites.keys().copied().collect();
        let settled = self.path.settle(&mut registry, self.guest.as_ref(), &places, Wait::ForVcpus);
        settled.map_err(|unsettled| unsettled.error)
    }

    /// Is the global switch on?
    #[must_use]
    pub fn is_switched_on(&self) -> bool {
        self.lock().switched_on
    }

    /// The switch of jump optimization (debug.kprobes-optimization): off takes all jmps out, on has
    /// [`Self::optimize`] put them in again.
    pub fn allow_optimization(&self, on: bool) {
        let mut registry = self.lock();
        registry.optimizer.allowed = on;
        registry.optimizer.changed = true;
        if !on {
            let places: Vec<Gva> = registry.sites.keys().copied().collect();
            self.path.unoptimize(&mut registry, self.guest.as_ref(), places.iter());
        }
    }

    /// May probes be optimized?
    #[must_use]
    pub fn is_optimization_allowed(&self) -> bool {
        self.lock().optimizer.allowed
    }
}
