//! The state that registration changes, in one value, guarded by one lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use exoprobe_guest::Guest;
use exoprobe_introspect::SymbolTable;

use crate::definition::Action;
use crate::engine::control::registry::Registered;
use crate::engine::control::registry::Registry;
use crate::engine::hit::path::HitPath;
use crate::engine::hit::table::Table;
use crate::engine::kernel::state::KernelHints;
use crate::engine::kernel::state::KernelState;
use crate::engine::optimize::optimizer::Optimizer;
use crate::engine::optimize::rings::Rings;
use crate::engine::patch::shown::GuestPatches;
use crate::engine::patch::view::GuestText;
use crate::engine::probe::registered::unwatch_all;

/// All state that registration changes.
pub(crate) struct Control {
    pub(crate) registry: Registry,
    pub(crate) kernel: KernelState,
    pub(crate) optimizer: Optimizer,
    /// The memory that detours write. Its one consumer holds control's lock.
    pub(crate) rings: Rings,
    pub(crate) hits: Arc<HitPath>,
    pub(crate) guest_patches: GuestPatches,
}

impl Control {
    /// Control without probes; all probes together may take `memory` bytes.
    pub(crate) fn new(given: KernelHints, memory: usize, hits: Arc<HitPath>) -> Self {
        Self {
            registry: Registry::new(memory),
            kernel: KernelState::new(given),
            optimizer: Optimizer::new(),
            rings: Rings::default(),
            hits,
            guest_patches: GuestPatches::default(),
        }
    }

    /// The guest's text without the bytes written for probes.
    pub(crate) fn text(&self) -> GuestText<'_> {
        GuestText::new(&self.registry.sites, self.optimizer.installed())
    }

    /// The symbols of the kernel that runs.
    pub(crate) fn symbols(&self) -> Option<&SymbolTable> {
        self.kernel.running.as_ref().map(|kernel| &kernel.symbols)
    }

    /// Removes probes. Their sites are disarmed, or have other probes.
    pub(crate) fn forget(&mut self, ids: &[u32]) {
        self.optimizer.forget(ids);
        self.registry.forget(ids);
    }

    /// Loads the ORC tables if a probe records stacks. Must not be called in a hit: it may read
    /// megabytes.
    pub(crate) fn learn_orc(&self) {
        let takes = |Registered { probe, .. }: &Registered| {
            probe.actions.contains(&Action::Stack) || probe.wants_stack()
        };
        let wanted = self.registry.probes.values().any(takes);
        if let Some(kernel) = self.kernel.running.as_ref().filter(|_| wanted) {
            kernel.learn_orc();
        }
    }

    /// Locates the kernel's tasks, and publishes them and its ORC tables to the hit path where that
    /// lacks them: another reader of the kernel may have found them first.
    pub(crate) fn inform_hits(&self, guest: &dyn Guest) {
        let Some(kernel) = &self.kernel.running else { return };
        kernel.learn_tasks(guest.vcpus());
        let table = self.hits.table.load();
        if table.tasks.is_some() != kernel.tasks().is_some()
            || table.orc.is_some() != kernel.orc().is_some()
        {
            self.publish(guest);
        }
    }

    /// Drops the guest's state: its memory is void, because it is booted again. No vCPU runs in it.
    pub(crate) fn reset(&mut self) {
        self.hits.reset();
        for probe in self.registry.return_probes().filter_map(|probe| probe.returns()) {
            unwatch_all(&probe.watched);
            probe.sites.store(0, Ordering::Relaxed);
            probe.in_guest.store(None);
        }
        self.registry.reset();
        self.optimizer.reset();
        self.kernel.reset();
        self.rings.reset();
        self.guest_patches = GuestPatches::default();
        self.hits.table.store(Table::default());
    }
}
