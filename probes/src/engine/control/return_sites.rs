//! Return addresses of calls that return probes in the mode `site` follow.

use crate::engine::control::place;
use crate::engine::control::reconcile::Wait;
use crate::engine::control::state::Control;
use crate::engine::probe::registered::Probe;
use crate::error::ProbeError;
use exoprobe_guest::Guest;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use exoprobe_guest::Gva;

/// Maximum number of remembered return addresses that cannot be watched.
const UNWATCHABLE_MAX: usize = 1 << 16;

/// Maximum number of return addresses of one probe: limits a guest that makes up return addresses.
const RETURN_SITES_MAX: u32 = 4096;

impl Control {
    /// Sets a breakpoint at `at`, a return address of calls of `probe`. Returns true if it is in
    /// place now. Runs on a vCPU's thread.
    pub(crate) fn watch_site(&mut self, guest: &dyn Guest, at: Gva, probe: &Arc<Probe>) -> bool {
        let Some(kernel) = self.kernel.running.clone() else { return false };
        let sites = probe.returns().map(|returns| &returns.sites);
        let full = sites.is_none_or(|sites| sites.load(Ordering::Relaxed) >= RETURN_SITES_MAX);
        if full || self.registry.unwatchable.contains(&at) {
            return false;
        }
        let placed =
            place::site(&mut self.registry, self.optimizer.installed(), guest, &kernel, at);
        let settled = placed.and_then(|mut site| {
            // Another vCPU may have done all this since the hit loaded the table.
            let is_new = site.returning.iter().all(|other| other.id != probe.id);
            if is_new {
                Arc::make_mut(&mut site).returning.push(Arc::clone(probe));
            }
            self.registry.sites.insert(at, site);
            let settled = self.reconcile(guest, &BTreeSet::from([at]), Wait::No);
            settled.map_err(|unsettled| unsettled.error)?;
            sites.filter(|_| is_new).map(|sites| sites.fetch_add(1, Ordering::Relaxed));
            Ok(())
        });
        match settled {
            Ok(()) => self.catch_returns(guest, at),
            Err(error) => {
                tracing::debug!(%error, %at, "calls that return here are missed");
                self.registry
                    .change(at, |site| site.returning.retain(|other| other.id != probe.id));
                let for_good =
                    !matches!(error, ProbeError::NotFinal(_) | ProbeError::Clobbered { .. });
                if for_good && self.registry.unwatchable.len() < UNWATCHABLE_MAX {
                    self.registry.unwatchable.insert(at);
                }
                false
            }
        }
    }

    /// Lets vCPUs follow calls to `at` if the int3 is in the text now. Returns whether it is.
    fn catch_returns(&mut self, guest: &dyn Guest, at: Gva) -> bool {
        let Some(site) = self.registry.sites.get(&at).filter(|site| site.armed) else {
            return false;
        };
        if !site.catches_returns {
            self.registry.change(at, |site| site.catches_returns = true);
            self.publish(guest);
        }
        true
    }
}
