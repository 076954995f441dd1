//! The guest's modules. What is known of them is kept current, and probes follow their text.
//!
//! | moment | told by | then |
//! |---|---|---|
//! | a module is whole, its init function has not run | a mark at `do_init_module` | what waited for it is armed |
//! | its init text is about to be freed | a mark at `do_free_init` | probes there are gone, their int3s out |
//! | all of it is about to be freed | a mark at `free_module` | likewise |
//! | anything else | whoever asks, and the patrol | the list is read again |

use std::sync::Arc;

use exoprobe_guest::Gva;
use exoprobe_introspect::modules::has_modules;
use exoprobe_introspect::{ModuleLayout, NoModules};

use crate::engine::control::register::Wait;
use crate::engine::control::registry::Registry;
use crate::engine::hit::path::{HitPath, Turn};
use crate::engine::kernel::modules::Loaded;
use crate::engine::kernel::modules::Modules;
use crate::engine::kernel::modules::Told;
use crate::engine::kernel::modules::read_all;
use crate::engine::kernel::running::Kernel;
use exoprobe_guest::Guest;

impl HitPath {
    /// A mark told something of a module, on a vCPU's thread.
    pub(crate) fn hear_of_module(&self, told: Told) -> Turn {
        let Some(guest) = self.guest.upgrade() else { return Turn::Now };
        let Some(mut registry) = self.try_registry() else { return Turn::Again };
        self.follow_modules(&mut registry, guest.as_ref(), told, Wait::No);
        Turn::Now
    }

    /// Looks which modules there are. Probes in those that have gone are gone, and what waited is placed.
    pub(crate) fn follow_modules(
        &self,
        registry: &mut Registry,
        guest: &dyn Guest,
        told: Told,
        wait: Wait,
    ) {
        let Some(kernel) = registry.kernel.clone().filter(|kernel| kernel.has_booted()) else {
            return;
        };
        if matches!(registry.modules, Modules::Unknown) {
            registry.modules = match self.find_modules(registry, &kernel) {
                Ok(layout) => Modules::Known(Arc::new(layout), None),
                Err(error) => {
                    tracing::debug!(%error, "modules are not followed");
                    Modules::None(error)
                }
            };
        }
        let Modules::Known(layout, failure) = &mut registry.modules else { return };
        let found = read_all(layout, &kernel.memory(), &kernel.modules, told);
        *failure = found.as_ref().err().map(ToString::to_string);
        let loaded = match (found, told) {
            (Ok(found), _) => found,
            // Whatever the guest's list is like, the text is about to go.
            (Err(error), Told::Ends(at)) => {
                tracing::debug!(%error, "modules");
                Some(kernel.modules.iter().filter(|it| it.module.at != at).cloned().collect())
            }
            (Err(error), _) => return tracing::debug!(%error, "modules"),
        };
        if let Some(loaded) = loaded {
            self.replace_modules(registry, guest, &kernel, loaded, wait);
        }
    }

    fn find_modules(
        &self,
        registry: &mut Registry,
        kernel: &Kernel,
    ) -> Result<ModuleLayout, NoModules> {
        if !has_modules(&kernel.symbols) {
            return Err(NoModules::NoList);
        }
        ModuleLayout::find(&*self.types(registry, kernel)?, &kernel.symbols)
    }

    fn replace_modules(
        &self,
        registry: &mut Registry,
        guest: &dyn Guest,
        kernel: &Kernel,
        loaded: Vec<Arc<Loaded>>,
        wait: Wait,
    ) {
        if guest.stopped() {
            registry.kernel = Some(Arc::new(kernel.with_modules(loaded)));
            return;
        }
        let is_lost = |at: &Gva| {
            let mut owners = kernel.modules.iter().filter(|known| known.has(*at));
            owners.any(|known| !loaded.iter().any(|it| known.is_still(&it.module) && it.has(*at)))
        };
        let lost: Vec<Gva> = registry.sites.keys().copied().filter(is_lost).collect();
        registry.unwatchable.retain(|at| !is_lost(at));
        self.lose_text(registry, guest, &lost, wait);
        registry.kernel = Some(Arc::new(kernel.with_modules(loaded)));
        registry.optimizer.note_change();
        self.publish(registry, guest);
        self.advance(registry, guest, wait);
    }
}

impl Registry {
    /// Whether modules come and go, as far as is known.
    pub(crate) fn may_have_modules(&self, kernel: &Kernel) -> bool {
        kernel.has_booted()
            && !matches!(self.modules, Modules::None(_))
            && has_modules(&kernel.symbols)
    }

    /// Whether a probe may wait for a module.
    ///
    /// # Errors
    /// [`NoModules`], if there will be none.
    pub(crate) fn can_wait_for_module(&self) -> Result<(), NoModules> {
        match &self.modules {
            Modules::None(why) => Err(why.clone()),
            Modules::Unknown | Modules::Known(..) => Ok(()),
        }
    }
}
