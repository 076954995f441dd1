//! The engine's own breakpoints, which report moments of the guest's kernel.

use std::collections::BTreeSet;
use std::sync::Arc;

use exoprobe_guest::Gva;

use crate::engine::control::place;
use crate::engine::control::reconcile::Wait;
use crate::engine::control::state::Control;
use crate::engine::kernel::running::Kernel;
use crate::engine::probe::site::InternalBreakpoint;
use crate::engine::probe::site::MARKS;
use crate::error::ProbeError;
use exoprobe_guest::Guest;

impl Control {
    /// Sets the marks that are needed. If the caller waits for vCPUs, also drops the others.
    /// Returns the places that changed.
    pub(crate) fn update_marks(&mut self, guest: &dyn Guest, wait: Wait) -> BTreeSet<Gva> {
        let Some(kernel) = self.kernel.running.clone() else { return BTreeSet::new() };
        let follows =
            self.registry.return_probes().next().is_some() || self.hits.calls_followed() > 0;
        let mut probes = self.registry.probes.values();
        let has_post = probes.any(|registered| registered.probe.post_handler().is_some());
        let mut changed = BTreeSet::new();
        for (mark, names) in MARKS {
            let known = |name: &&&str| kernel.symbols.address_of(name).is_some();
            let found = names.iter().find(known);
            let wanted = match mark {
                InternalBreakpoint::TextFinal => {
                    kernel.will_pass_final() && !self.registry.probes.is_empty()
                }
                InternalBreakpoint::FreeInit => {
                    kernel.has_init_text() && !self.registry.probes.is_empty()
                }
                InternalBreakpoint::TaskDead | InternalBreakpoint::StackLeft => follows,
                InternalBreakpoint::ModuleBegins
                | InternalBreakpoint::ModuleInitFreed
                | InternalBreakpoint::ModuleEnds => {
                    !self.registry.probes.is_empty()
                        && self.kernel.may_have_modules(&kernel)
                        && found.is_some()
                }
                // Only kernels with kprobes of their own have the one, and before Linux 5.0 none
                // has the other.
                InternalBreakpoint::GuestReadsText | InternalBreakpoint::GuestWritesText => {
                    !self.registry.probes.is_empty() && kernel.has_booted() && found.is_some()
                }
                InternalBreakpoint::GuestHandlesPoke | InternalBreakpoint::GuestHandlesInt3 => {
                    has_post && kernel.has_booted() && found.is_some()
                }
            };
            let there = self.registry.sites.values().find(|site| site.marks.contains(&mark));
            match (wanted, there.map(|site| site.at)) {
                (false, Some(_)) if wait == Wait::ForVcpus => {
                    changed.extend(self.registry.reached(mark))
                }
                (true, None) => {
                    match set_breakpoint(self, guest, &kernel, mark, found.unwrap_or(&names[0])) {
                        Ok(at) => _ = changed.insert(at),
                        // The next pass sets it.
                        Err(error @ ProbeError::NotFinal(_)) => {
                            tracing::debug!(%error, ?mark, "a breakpoint of the engine waits");
                        }
                        Err(error) => {
                            tracing::warn!(%error, ?mark, "cannot set a breakpoint of the engine")
                        }
                    }
                }
                _ => {}
            }
        }
        changed
    }
}

fn set_breakpoint(
    control: &mut Control,
    guest: &dyn Guest,
    kernel: &Kernel,
    mark: InternalBreakpoint,
    symbol: &str,
) -> Result<Gva, ProbeError> {
    let found = kernel.symbols.address_of(symbol);
    // A module's function of the same name does not matter. If the kernel has none, the error says
    // so.
    let entry = match found {
        Some(entry) => entry,
        None => kernel.symbols.lookup_function(symbol)?.address,
    };
    let at = place::after_rewritten(control.text(), kernel, entry);
    let mut site = {
        let Control { registry, optimizer, .. } = &mut *control;
        place::site(registry, optimizer.installed(), guest, kernel, at)?
    };
    Arc::make_mut(&mut site).marks.push(mark);
    control.registry.sites.insert(at, site);
    Ok(at)
}
