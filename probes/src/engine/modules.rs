//! The guest's modules. What is known of them is kept current, and probes follow their text.
//!
//! | moment | told by | then |
//! |---|---|---|
//! | a module is whole, its init function has not run | a mark at `do_init_module` | what waited for it is armed |
//! | its init text is about to be freed | a mark at `do_free_init` | probes there are gone, their int3s out |
//! | all of it is about to be freed | a mark at `free_module` | likewise |
//! | anything else | whoever asks, and the patrol | the list is read again |

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use exoprobe_introspect::modules::{Room, has_modules};
use exoprobe_introspect::symbols::ModuleTable;
use exoprobe_introspect::{
    ExceptionTable, ExtableError, Module, ModuleError, ModuleLayout, ModuleState, NoModules,
};
use exoprobe_vmm::Gva;

use super::Engine;
use super::guest::Guest;
use super::hit::{HitPath, Turn};
use super::kernel::{JUMP_LABELS, Kernel, STATIC_CALLS};
use super::register::Wait;
use super::registry::Registry;
use super::tables::RelativeTable;
use crate::error::{AttachError, ProbeError, Reserved};

/// Most entries of all modules' tables of special text.
const SPECIAL_MAX: usize = 1 << 20;
/// The list may change while it is read: so often it is tried.
const TRIES: usize = 3;

/// What is known of the modules of a kernel.
#[derive(Default)]
pub(super) enum Modules {
    /// Nobody has looked yet.
    #[default]
    Unknown,
    /// They cannot be told.
    None(NoModules),
    /// Where they are, and why they could not be read the last time, if so.
    Known(Arc<ModuleLayout>, Option<String>),
}

/// Why the modules are as they were known before.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Module(#[from] ModuleError),
    #[error(transparent)]
    Extable(#[from] ExtableError),
    #[error(transparent)]
    Table(#[from] AttachError),
    #[error("the modules' tables of special text have more than {SPECIAL_MAX} entries")]
    TooMuch,
    #[error("the modules changed while they were read: try again")]
    Changing,
}

/// What a mark tells of a module: where its struct is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Nothing,
    Begins(Gva),
    Ends(Gva),
}

/// A module that probes may be in.
pub(crate) struct Loaded {
    pub(super) module: Module,
    table: Arc<ModuleTable>,
    special: Arc<Special>,
}

/// Text of a module that the kernel treats specially.
#[derive(Default)]
struct Special {
    extable: ExceptionTable,
    jump_labels: HashSet<Gva>,
    static_calls: HashSet<Gva>,
}

/// A module as users see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleStatus {
    /// Its name.
    pub name: String,
    /// How far it is.
    pub state: ModuleState,
    /// Its text, without that for initialization.
    pub text: Range<Gva>,
    /// How many symbols it has.
    pub symbols: usize,
    /// Names of the probes in it, with their groups.
    pub probes: Vec<String>,
}

impl Special {
    fn read(kernel: &Kernel, module: &Module, room: usize) -> Result<Self, FollowError> {
        let all = [module.extable, module.jump_labels, module.static_calls];
        if all.iter().map(|entries| entries.count as usize).sum::<usize>() > room {
            return Err(FollowError::TooMuch);
        }
        let memory = kernel.memory();
        let [extable, jump_labels, static_calls] = all;
        let len = u64::from(extable.count) * exoprobe_introspect::extable::ENTRY_BYTES;
        let places = |table: &RelativeTable, entries| -> Result<HashSet<Gva>, FollowError> {
            Ok(table.read_entries(&memory, entries)?.into_keys().collect())
        };
        Ok(Self {
            extable: ExceptionTable::read_range(&memory, extable.at, extable.at.wrapping_add(len))?,
            jump_labels: places(&JUMP_LABELS, jump_labels)?,
            static_calls: places(&STATIC_CALLS, static_calls)?,
        })
    }

    fn len(&self) -> usize {
        self.extable.len() + self.jump_labels.len() + self.static_calls.len()
    }
}

impl Loaded {
    fn has(&self, at: Gva) -> bool {
        self.module.texts().any(|text| text.contains(&at))
    }

    /// Is `other` the same module, perhaps without its init text by now?
    fn is_still(&self, other: &Module) -> bool {
        let Module { at, name, text, .. } = &self.module;
        (at, name, text) == (&other.at, &other.name, &other.text)
    }

    pub(super) fn table(&self) -> Arc<ModuleTable> {
        Arc::clone(&self.table)
    }

    /// How the kernel treats the instruction at `at`, if so that no probe may be there.
    pub(super) fn reserved(&self, at: Gva, faults_show_original: bool) -> Option<Reserved> {
        let Special { extable, jump_labels, static_calls } = &*self.special;
        if let Some(fixup) = extable.find(at)
            && (!faults_show_original || fixup.decodes_text())
        {
            Some(Reserved::ExceptionTable)
        } else if jump_labels.contains(&at) {
            Some(Reserved::JumpLabel)
        } else {
            static_calls.contains(&at).then_some(Reserved::StaticCall)
        }
    }
}

impl Told {
    /// Whether probes may be in a module: in one that is loaded, or about to be once it can fail no more without a
    /// mark, until its text is freed.
    fn admits(self, module: &Module, known: &[Arc<Loaded>]) -> bool {
        match (self, module.state) {
            (Self::Ends(at), _) if at == module.at => false,
            (_, ModuleState::Unformed) => false,
            (Self::Begins(at), _) if at == module.at => true,
            (_, ModuleState::Live) => true,
            (_, ModuleState::Coming | ModuleState::Going) => {
                known.iter().any(|loaded| loaded.is_still(module))
            }
        }
    }
}

impl HitPath {
    /// A mark told something of a module, on a vCPU's thread.
    pub(super) fn hear_of_module(&self, told: Told) -> Turn {
        let Some(guest) = self.guest.upgrade() else { return Turn::Now };
        let Some(mut registry) = self.try_registry() else { return Turn::Again };
        self.follow_modules(&mut registry, guest.as_ref(), told, Wait::No);
        Turn::Now
    }

    /// Looks which modules there are. Probes in those that have gone are gone, and what waited is placed.
    pub(super) fn follow_modules(
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
        let found = read_all(layout, &kernel, told);
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

/// The modules that probes may be in; `None` where they are as they were.
fn read_all(
    layout: &ModuleLayout,
    kernel: &Kernel,
    told: Told,
) -> Result<Option<Vec<Arc<Loaded>>>, FollowError> {
    let known = &kernel.modules;
    let list = || -> Result<Vec<Module>, FollowError> {
        let mut modules = layout.list(&kernel.memory())?;
        modules.retain(|module| told.admits(module, known));
        Ok(modules)
    };
    let mut modules = list()?;
    if modules.iter().eq(known.iter().map(|loaded| &loaded.module)) {
        return Ok(None);
    }
    for _ in 0..TRIES {
        let loaded = read_tables(layout, kernel, modules.clone());
        // The guest runs, and may have changed its list meanwhile.
        let again = list()?;
        if again == modules {
            return loaded.map(Some);
        }
        modules = again;
    }
    Err(FollowError::Changing)
}

/// Reads what belongs to these modules, unless it is known.
fn read_tables(
    layout: &ModuleLayout,
    kernel: &Kernel,
    modules: Vec<Module>,
) -> Result<Vec<Arc<Loaded>>, FollowError> {
    let (mut room, mut special_room) = (Room::default(), SPECIAL_MAX);
    let mut all = Vec::with_capacity(modules.len());
    for module in modules {
        let known = kernel.modules.iter().find(|known| known.module.has_text_of(&module));
        let (table, special) = match known {
            Some(known) => (Arc::clone(&known.table), Arc::clone(&known.special)),
            None => {
                let table = layout.symbols(&kernel.memory(), &module, room)?;
                let special = Special::read(kernel, &module, special_room)?;
                (Arc::new(table), Arc::new(special))
            }
        };
        room = room.without(&table).ok_or(FollowError::TooMuch)?;
        special_room = special_room.checked_sub(special.len()).ok_or(FollowError::TooMuch)?;
        all.push(Arc::new(Loaded { module, table, special }));
    }
    Ok(all)
}

impl Registry {
    /// Whether modules come and go, as far as is known.
    pub(super) fn may_have_modules(&self, kernel: &Kernel) -> bool {
        kernel.has_booted()
            && !matches!(self.modules, Modules::None(_))
            && has_modules(&kernel.symbols)
    }

    /// Whether a probe may wait for a module.
    ///
    /// # Errors
    /// [`NoModules`], if there will be none.
    pub(super) fn can_wait_for_module(&self) -> Result<(), NoModules> {
        match &self.modules {
            Modules::None(why) => Err(why.clone()),
            Modules::Unknown | Modules::Known(..) => Ok(()),
        }
    }
}

impl Engine {
    /// The guest's modules, the last loaded first.
    ///
    /// # Errors
    /// [`ProbeError::Modules`], [`ProbeError::BrokenModules`], [`ProbeError::Attach`].
    pub fn modules(&self) -> Result<Vec<ModuleStatus>, ProbeError> {
        let (registry, kernel) = self.look()?;
        match &registry.modules {
            Modules::None(why) => return Err(why.clone().into()),
            Modules::Known(_, Some(failure)) => {
                return Err(ProbeError::BrokenModules(failure.clone()));
            }
            Modules::Unknown => return Err(AttachError::Booting.into()),
            Modules::Known(_, None) => {}
        }
        let status = |loaded: &Arc<Loaded>| {
            let placed = registry
                .probes
                .values()
                .filter(|probe| probe.placed().is_some_and(|at| loaded.has(at)));
            let name = |probe: &super::registry::Registered| {
                format!("{}/{}", probe.probe.group, probe.probe.event)
            };
            ModuleStatus {
                name: loaded.module.name.clone(),
                state: loaded.module.state,
                text: loaded.module.text.clone(),
                symbols: loaded.table.len(),
                probes: placed.map(name).collect(),
            }
        };
        Ok(kernel.modules.iter().map(status).collect())
    }
}
