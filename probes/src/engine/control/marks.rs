//! The engine's own breakpoints, by which the guest's kernel tells of its moments.

use std::collections::BTreeSet;
use std::sync::Arc;

use exoprobe_guest::Gva;

use crate::engine::control::place;
use crate::engine::control::register::Wait;
use crate::engine::control::registry::Registry;
use crate::engine::hit::path::HitPath;
use crate::engine::kernel::running::Kernel;
use crate::engine::probe::site::MARKS;
use crate::engine::probe::site::Mark;
use crate::error::ProbeError;
use exoprobe_guest::Guest;

impl HitPath {
    /// Sets the marks that are needed and, where vCPUs are waited for, drops the others; gives the places
    /// that changed.
    pub(crate) fn want_marks(
        &self,
        registry: &mut Registry,
        guest: &dyn Guest,
        wait: Wait,
    ) -> BTreeSet<Gva> {
        let Some(kernel) = registry.kernel.clone() else { return BTreeSet::new() };
        let follows = registry.return_probes().next().is_some() || self.calls_followed(guest) > 0;
        let mut changed = BTreeSet::new();
        for (mark, symbol) in MARKS {
            let wanted = match mark {
                Mark::TextFinal => kernel.will_tell_final() && !registry.probes.is_empty(),
                Mark::FreeInit => kernel.has_init_text() && !registry.probes.is_empty(),
                Mark::TaskDead | Mark::StackLeft => follows,
                Mark::ModuleBegins | Mark::ModuleInitFreed | Mark::ModuleEnds => {
                    !registry.probes.is_empty()
                        && registry.may_have_modules(&kernel)
                        && kernel.symbols.address_of(symbol).is_some()
                }
            };
            let there = registry.sites.values().find(|site| site.marks.contains(&mark));
            match (wanted, there.map(|site| site.at)) {
                (false, Some(_)) if wait == Wait::ForVcpus => {
                    changed.extend(registry.reached(mark))
                }
                (true, None) => match set_mark(registry, guest, &kernel, mark, symbol) {
                    Ok(at) => _ = changed.insert(at),
                    // The next pass sets it.
                    Err(error @ ProbeError::NotFinal(_)) => {
                        tracing::debug!(%error, ?mark, "a mark waits");
                    }
                    Err(error) => tracing::warn!(%error, ?mark, "a mark cannot be set"),
                },
                _ => {}
            }
        }
        changed
    }
}

fn set_mark(
    registry: &mut Registry,
    guest: &dyn Guest,
    kernel: &Kernel,
    mark: Mark,
    symbol: &str,
) -> Result<Gva, ProbeError> {
    let found = kernel.symbols.address_of(symbol);
    // What modules call theirs does not matter; where there is none, the error says so.
    let entry = match found {
        Some(entry) => entry,
        None => kernel.symbols.lookup_function(symbol)?.address,
    };
    let at = place::behind_ftrace(registry, kernel, entry);
    let mut site = place::site(registry, guest, kernel, at)?;
    Arc::make_mut(&mut site).marks.push(mark);
    registry.sites.insert(at, site);
    Ok(at)
}

impl Registry {
    /// A mark is needed no more; gives where it was.
    pub(crate) fn reached(&mut self, mark: Mark) -> Option<Gva> {
        let site = self.sites.values_mut().find(|site| site.marks.contains(&mark))?;
        Arc::make_mut(site).marks.retain(|other| *other != mark);
        Some(site.at)
    }
}
