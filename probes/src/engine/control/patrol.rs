//! Looks now and then whether the text under the probes is what it was.

use crate::engine::control::boot::Purpose;
use crate::engine::control::reconcile::Wait;
use crate::engine::control::state::Control;
use crate::engine::kernel::running::Kernel;
use crate::engine::optimize::optimizer::Optimized;
use crate::engine::patch::text;
use crate::engine::probe::site::Site;
use exoprobe_guest::Guest;
use std::collections::BTreeSet;

use exoprobe_guest::Gva;

impl Control {
    /// Looks whether the text under the probes is still what it was, whether what waits can be
    /// placed, and whether marks are needed still. To be called now and then, not from a vCPU's
    /// thread.
    pub(crate) fn patrol(&mut self, guest: &dyn Guest) {
        if (self.registry.probes.is_empty() && self.registry.sites.is_empty()) || guest.stopped() {
            return;
        }
        if self.registry.probes.is_empty() {
            return self.advance(guest, Wait::ForVcpus);
        }
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
                    Optimized::AsWanted => {}
                    Optimized::Overwritten => changes.rewritten.push(site.at),
                    Optimized::RestChanged => changes.rest.push(site.at),
                }
                continue;
            }
            match look_at(guest, &kernel, site) {
                Look::Gone => changes.lost.push(site.at),
                Look::Rewritten if site.armed => changes.rewritten.push(site.at),
                Look::RestChanged => changes.rest.push(site.at),
                Look::Original => _ = changes.restored.insert(site.at),
                Look::Rewritten | Look::AsWanted => {}
            }
        }
        if changes != Changes::default() {
            self.accept(guest, changes);
        }
        self.advance(guest, Wait::ForVcpus);
    }

    /// Lets go of sites whose text changed, and takes back those that are as they were, also where
    /// the guest itself has put the instruction over the breakpoint.
    fn accept(&mut self, guest: &dyn Guest, changes: Changes) {
        let Changes { lost, rewritten, rest, restored } = changes;
        // The detour has the instruction as it was.
        self.unoptimize(guest, rest.iter());
        // A vCPU that took one of these breakpoints before they went finds them in the table.
        if let Err(error) = guest.sync_vcpus() {
            return tracing::debug!(%error, "patrol");
        }
        for at in rewritten {
            self.registry.change(at, |site| (site.armed, site.clobbered) = (false, true));
            let site = self.registry.sites.get(&at).cloned();
            self.optimizer.lose(at, site);
        }
        // The int3 is the engine's still, and somebody must answer it.
        for at in rest {
            self.registry.change(at, |site| site.clobbered = true);
        }
        for at in &restored {
            let here = &self.registry.sites[at];
            let armed =
                text::holds(guest.ram(), here.gpa, here.insn.original()) == text::Holds::Int3;
            self.registry.change(*at, |site| (site.armed, site.clobbered) = (armed, false));
        }
        self.text_gone(guest, &lost, Wait::ForVcpus);
        if let Err(unsettled) = self.reconcile(guest, &restored, Wait::No) {
            tracing::debug!(error = %unsettled.error, "patrol");
        }
    }
}

/// Sites whose text is not as the engine left it.
#[derive(Default, PartialEq, Eq)]
struct Changes {
    lost: Vec<Gva>,
    rewritten: Vec<Gva>,
    rest: Vec<Gva>,
    restored: BTreeSet<Gva>,
}

/// What the text under a site is like.
#[derive(PartialEq, Eq)]
enum Look {
    /// As the engine left it.
    AsWanted,
    /// The instruction as it was, without an int3 that should be there; or with it, again.
    Original,
    /// The engine's int3 is there, and what follows it has changed.
    RestChanged,
    /// Something else.
    Rewritten,
    /// Not mapped there any more, or not as code.
    Gone,
}

fn look_at(guest: &dyn Guest, kernel: &Kernel, site: &Site) -> Look {
    match kernel.memory().translate(site.at) {
        Ok(found) if found.gpa == site.gpa && found.executable => {}
        _ => return Look::Gone,
    }
    match (site.armed, text::holds(guest.ram(), site.gpa, site.insn.original())) {
        (true, text::Holds::Int3) if site.clobbered => Look::Original,
        (true, text::Holds::Int3) => Look::AsWanted,
        (false, text::Holds::Original) if !site.clobbered => Look::AsWanted,
        (_, text::Holds::Original) => Look::Original,
        (true, text::Holds::RestChanged) if site.clobbered => Look::AsWanted,
        (true, text::Holds::RestChanged) => Look::RestChanged,
        _ => Look::Rewritten,
    }
}
