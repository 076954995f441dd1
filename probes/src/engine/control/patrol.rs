//! Checks periodically that the text of the probes is unchanged.

use crate::engine::control::boot::Purpose;
use crate::engine::control::reconcile::Wait;
use crate::engine::control::registry::Registry;
use crate::engine::control::state::Control;
use crate::engine::kernel::running::Kernel;
use crate::engine::optimize::optimizer::Optimized;
use crate::engine::patch::text;
use crate::engine::probe::site::Site;
use exoprobe_guest::Guest;
use std::collections::BTreeSet;

use exoprobe_guest::Gva;
use exoprobe_introspect::symbols::TextKind;

impl Control {
    /// Checks whether the text of the probes is unchanged, whether waiting probes can be placed,
    /// and whether marks are still needed. Must be called periodically, and not on a vCPU's thread.
    pub(crate) fn patrol(&mut self, guest: &dyn Guest) {
        let Registry { probes, sites, samplers, .. } = &self.registry;
        if (probes.is_empty() && sites.is_empty() && samplers.is_empty()) || guest.stopped() {
            return;
        }
        if probes.is_empty()
            && !samplers.is_empty()
            && let Err(error) = self.attach(guest, Purpose::Question)
        {
            tracing::debug!(%error, "patrol");
        }
        if self.registry.probes.is_empty() {
            return self.advance(guest, Wait::ForVcpus);
        }
        // Also where the kernel cannot be read any more: a vCPU waits.
        self.make_way(guest);
        match self.attach(guest, Purpose::Probes) {
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(error) => return tracing::debug!(%error, "patrol"),
        }
        let Some(kernel) = self.kernel.running.clone() else { return };
        let mut changes = Changes::default();
        for site in self.registry.sites.values() {
            if let Some(optimized) = self.optimizer.text_of(guest, site.at) {
                match optimized {
                    _ if has_moved(&kernel, site) => changes.lost.push(site.at),
                    Optimized::AsWanted => {}
                    Optimized::Overwritten => changes.rewritten.push(site.at),
                    Optimized::RestChanged => changes.rest.push(site.at),
                }
                continue;
            }
            match text_state(guest, &kernel, site) {
                TextState::Gone => changes.lost.push(site.at),
                TextState::Rewritten if site.armed => changes.rewritten.push(site.at),
                TextState::RestChanged => changes.rest.push(site.at),
                TextState::Original => _ = changes.restored.insert(site.at),
                TextState::Rewritten | TextState::AsWanted => {}
            }
        }
        if changes != Changes::default() {
            self.accept(guest, changes);
        }
        self.advance(guest, Wait::ForVcpus);
    }

    /// Drops sites whose text changed, and arms again those whose text is restored, also if the
    /// guest itself has written the instruction over the breakpoint.
    fn accept(&mut self, guest: &dyn Guest, changes: Changes) {
        let Changes { lost, rewritten, rest, restored } = changes;
        // The detour contains the old instruction.
        self.unoptimize(guest, rest.iter());
        // A vCPU that took one of these breakpoints before they went still finds them in the table.
        if let Err(error) = guest.sync_vcpus() {
            return tracing::debug!(%error, "patrol");
        }
        for at in rewritten {
            self.registry.change(at, |site| (site.armed, site.clobbered) = (false, true));
            let site = self.registry.sites.get(&at).cloned();
            self.optimizer.lose(at, site);
        }
        // The int3 is still the engine's, so a site must answer it.
        for at in rest {
            self.registry.change(at, |site| site.clobbered = true);
        }
        for at in &restored {
            let here = &self.registry.sites[at];
            let armed =
                text::holds(guest.ram(), here.gpa, here.insn.original()) == text::Holds::Int3;
            self.registry.change(*at, |site| {
                // The guest's own int3 has gone, if it had one.
                site.guest_int3 &= armed;
                (site.armed, site.clobbered) = (armed, false);
            });
        }
        self.text_gone(guest, &lost, Wait::ForVcpus);
        if let Err(unsettled) = self.reconcile(guest, &restored, Wait::No) {
            tracing::debug!(error = %unsettled.error, "patrol");
        }
    }
}

/// Sites whose text differs from what the engine wrote.
#[derive(Default, PartialEq, Eq)]
struct Changes {
    lost: Vec<Gva>,
    rewritten: Vec<Gva>,
    rest: Vec<Gva>,
    restored: BTreeSet<Gva>,
}

/// The state of the text of a site.
#[derive(PartialEq, Eq)]
enum TextState {
    /// As the engine left it.
    AsWanted,
    /// The original instruction, where an int3 is expected; or the text of a clobbered site is
    /// restored.
    Original,
    /// The engine's int3 is there, and the bytes after it have changed.
    RestChanged,
    /// Other bytes.
    Rewritten,
    /// No longer mapped there, or not executable.
    Gone,
}

/// Returns true for a place in a module that is no longer mapped to where it was. The kernel's own
/// text stays.
fn has_moved(kernel: &Kernel, site: &Site) -> bool {
    kernel.symbols.text_kind(site.at) == Some(TextKind::Module)
        && !kernel.memory().translate(site.at).is_ok_and(|found| found.gpa == site.gpa)
}

fn text_state(guest: &dyn Guest, kernel: &Kernel, site: &Site) -> TextState {
    match kernel.memory().translate(site.at) {
        Ok(found) if found.gpa == site.gpa && found.executable => {}
        _ => return TextState::Gone,
    }
    match (site.armed, text::holds(guest.ram(), site.gpa, site.insn.original())) {
        (true, text::Holds::Int3) if site.clobbered => TextState::Original,
        (true, text::Holds::Int3) => TextState::AsWanted,
        (false, text::Holds::Original) if !site.clobbered => TextState::AsWanted,
        (_, text::Holds::Original) => TextState::Original,
        (true, text::Holds::RestChanged) if site.clobbered => TextState::AsWanted,
        (true, text::Holds::RestChanged) => TextState::RestChanged,
        _ => TextState::Rewritten,
    }
}
