//! Brings probes up to the kernel's phase: places waiting probes and arms them.

use crate::engine::control::place;
use crate::engine::control::place::Place;
use crate::engine::control::reconcile::Wait;
use crate::engine::control::register::Intent;
use crate::engine::control::registry::Registered;
use crate::engine::control::registry::State;
use crate::engine::control::state::Control;
use crate::engine::kernel::running::Kernel;
use crate::engine::probe::registered::Probe;
use exoprobe_guest::Guest;
use std::collections::BTreeSet;
use std::sync::Arc;

use exoprobe_guest::Gva;
use exoprobe_introspect::symbols::TextKind;

impl Control {
    /// Brings everything up to the kernel's phase: places waiting probes, sets and drops marks,
    /// arms sites.
    pub(crate) fn advance(&mut self, guest: &dyn Guest, wait: Wait) {
        let Some(kernel) = self.kernel.running.clone() else { return };
        let mut places = self.place_waiting(guest, &kernel, wait);
        places.extend(self.update_marks(guest, wait));
        if places.is_empty() {
            return;
        }
        if let Err(unsettled) = self.reconcile(guest, &places, wait) {
            tracing::warn!(error = %unsettled.error, "arming probes that waited");
        }
    }

    /// Finds places for probes that have none. Those that still cannot have one keep the reason.
    fn place_waiting(&mut self, guest: &dyn Guest, kernel: &Kernel, wait: Wait) -> BTreeSet<Gva> {
        let is_waiting = |(id, registered): (&u32, &Registered)| {
            let probe = &registered.probe;
            // Another module may be at an address whose module has gone.
            let is_anyones = matches!(registered.state, State::Gone)
                && probe.definition.addr.is_some_and(|at| is_module_text(kernel, at));
            let waits = registered.placed().is_none() && !is_anyones;
            waits.then(|| (*id, Arc::clone(probe)))
        };
        let waiting: Vec<(u32, Arc<Probe>)> =
            self.registry.probes.iter().filter_map(is_waiting).collect();
        let mut places = BTreeSet::new();
        for (id, probe) in waiting {
            let found = place::find(&kernel.symbols, &probe.definition);
            // Taking a jmp out stops all vCPUs, and this thread may run one of them.
            if wait == Wait::No && found.as_ref().is_ok_and(|found| self.is_covered(kernel, found))
            {
                continue;
            }
            let found = found.and_then(|found| {
                probe.set_at(found.at);
                self.learn_arguments(kernel, &probe, &found)?;
                self.registry.check_fields(&probe)?;
                let site = self.place(guest, kernel, &probe, Intent::Arm)?;
                Ok((found, site))
            });
            let Some(registered) = self.registry.probes.get_mut(&id) else { continue };
            match (found, &registered.state) {
                (Ok((place, site)), _) => {
                    registered.state = State::Placed(site);
                    registered.addr = place.at.to_string().into();
                    (registered.symbol, registered.offset) = (place.symbol, place.offset);
                    // A jmp that covers it is taken out when the places are reconciled.
                    places.extend(self.optimizer.covering(site));
                    places.insert(site);
                }
                (Err(_), State::Gone) => {}
                (Err(error), _) => registered.state = State::Pending(error.to_string()),
            }
        }
        places
    }

    /// Returns true if a place is within the bytes that an optimized site's jmp covers.
    fn is_covered(&self, kernel: &Kernel, place: &Place) -> bool {
        self.optimizer.covering(place::after_rewritten(self.text(), kernel, place.at)).is_some()
    }
}

fn is_module_text(kernel: &Kernel, at: Gva) -> bool {
    kernel.symbols.text_kind(at) == Some(TextKind::Module)
}
