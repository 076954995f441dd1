//! The guest's modules: keeps the list current, and moves probes with the modules' text.
//!
//! | moment | reported by | then |
//! |---|---|---|
//! | its init function is about to run | a breakpoint at `do_init_module` | its probes are armed |
//! | its init text is about to be freed | likewise at `do_free_init` | probes there are gone |
//! | all of it is about to be freed | likewise at `free_module` | likewise |
//! | anything else | questions of users, and the patrol | the list is read again |
//!
//! Where jmps are in text that is about to go, the vCPU waits at the breakpoint until they are
//! taken out.

use std::sync::Arc;

use exoprobe_guest::Gva;
use exoprobe_introspect::modules::has_modules;
use exoprobe_introspect::{ModuleLayout, NoModules};

use crate::engine::control::guest_patches::Ready;
use crate::engine::control::reconcile::Wait;
use crate::engine::control::state::Control;
use exoprobe_guest::Guest;

use crate::engine::kernel::modules::Loaded;
use crate::engine::kernel::modules::ModuleEvent;
use crate::engine::kernel::modules::Modules;
use crate::engine::kernel::modules::read_all;
use crate::engine::kernel::running::Kernel;
use crate::engine::probe::site::InternalBreakpoint;

impl Control {
    /// Reads the list of modules. Marks probes in unloaded modules as gone, and places waiting
    /// probes. Returns [`Ready::Later`] if jmps are in the way on a vCPU's thread, which cannot
    /// take them out.
    pub(crate) fn follow_modules(
        &mut self,
        guest: &dyn Guest,
        event: ModuleEvent,
        wait: Wait,
    ) -> Ready {
        let Some(kernel) = self.kernel.running.clone().filter(|kernel| kernel.has_booted()) else {
            return Ready::Now;
        };
        if matches!(self.kernel.modules, Modules::Unknown) {
            self.kernel.modules = match self.find_modules(&kernel) {
                Ok(layout) => Modules::Known(Arc::new(layout), None),
                Err(error) => {
                    tracing::debug!(%error, "cannot follow modules");
                    Modules::None(error)
                }
            };
        }
        let is_watched = self.registry.has_armed(InternalBreakpoint::ModuleEnds);
        let Modules::Known(layout, failure) = &mut self.kernel.modules else { return Ready::Now };
        let found = read_all(layout, &kernel.memory(), &kernel.modules, event, is_watched);
        *failure = found.as_ref().err().map(ToString::to_string);
        let loaded = match (found, event) {
            (Ok(found), _) => found,
            // The text is about to go, whatever the state of the guest's list.
            (Err(error), ModuleEvent::Going(at)) => {
                tracing::debug!(%error, "modules");
                Some(kernel.modules.iter().filter(|it| it.module.at != at).cloned().collect())
            }
            (Err(error), _) => {
                tracing::debug!(%error, "modules");
                // They may be others by the time that the breakpoint at their end is there again.
                let unwatched = kernel.modules.iter().map(|it| Arc::new(it.unwatched())).collect();
                let are_watched = kernel.modules.iter().any(|it| it.is_watched);
                (!is_watched && are_watched).then_some(unwatched)
            }
        };
        loaded.map_or(Ready::Now, |loaded| self.replace_modules(guest, &kernel, loaded, wait))
    }

    fn find_modules(&mut self, kernel: &Kernel) -> Result<ModuleLayout, NoModules> {
        if !has_modules(&kernel.symbols) {
            return Err(NoModules::NoList);
        }
        ModuleLayout::find(&*self.kernel.types(kernel)?, &kernel.symbols)
    }

    fn replace_modules(
        &mut self,
        guest: &dyn Guest,
        kernel: &Kernel,
        loaded: Vec<Arc<Loaded>>,
        wait: Wait,
    ) -> Ready {
        if guest.stopped() {
            self.kernel.running = Some(Arc::new(kernel.with_modules(loaded)));
            return Ready::Now;
        }
        let is_lost = |at: &Gva| {
            let mut owners = kernel.modules.iter().filter(|known| known.has(*at));
            owners.any(|known| !loaded.iter().any(|it| known.is_still(&it.module) && it.has(*at)))
        };
        let lost: Vec<Gva> = self.registry.sites.keys().copied().filter(is_lost).collect();
        let jmps = lost.iter().filter(|at| self.optimizer.is_installed(**at));
        let in_the_way: Vec<Gva> = jmps.copied().collect();
        if wait == Wait::No && !in_the_way.is_empty() {
            self.guest_patches.in_the_way.extend(in_the_way);
            return Ready::Later;
        }
        self.registry.unwatchable.retain(|at| !is_lost(at));
        self.text_gone(guest, &lost, wait);
        let now = Arc::new(kernel.with_modules(loaded));
        self.kernel.running = Some(Arc::clone(&now));
        self.optimizer.note_modules(&now);
        let jmps = self.jmps_to_judge_again(kernel, &now);
        match wait {
            Wait::ForVcpus => self.unoptimize(guest, jmps.iter()),
            Wait::No => self.guest_patches.in_the_way.extend(jmps),
        }
        self.publish(guest);
        self.advance(guest, wait);
        Ready::Now
    }

    /// The jmps in modules that were read anew, or whose end would not be known in time any more.
    fn jmps_to_judge_again(&self, before: &Kernel, now: &Kernel) -> Vec<Gva> {
        let was_read = |loaded: &Loaded| before.modules.iter().any(|it| it.is_as_read(loaded));
        let modules = now.modules.iter().filter(|it| !it.is_watched || !was_read(it));
        let texts = modules.map(|loaded| loaded.module.text.clone());
        texts.flat_map(|text| self.optimizer.overlapping(text.start, text.end)).collect()
    }
}
