//! The guest's modules that probes may be in, and the kernel's special text in them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use exoprobe_guest::Gva;
use exoprobe_introspect::modules::Room;
use exoprobe_introspect::symbols::ModuleTable;
use exoprobe_introspect::{
    ExceptionTable, ExtableError, Module, ModuleError, ModuleLayout, ModuleState, NoModules,
    VirtualMemory,
};

use crate::engine::kernel::error::AttachError;
use crate::engine::kernel::reserved::Reserved;
use crate::engine::kernel::tables::{JUMP_LABELS, STATIC_CALLS};
use crate::engine::kernel::view::KernelView;

/// Memory as the kernel sees it.
type KernelMemory<'a> = VirtualMemory<'a, KernelView>;

/// Most entries of all modules' tables of special text.
const SPECIAL_MAX: usize = 1 << 20;

/// Maximum number of attempts: the list may change while it is read.
const TRIES: usize = 3;

/// Knowledge of a kernel's modules.
#[derive(Default)]
pub(crate) enum Modules {
    /// Not read yet.
    #[default]
    Unknown,
    /// The kernel's modules cannot be located.
    None(NoModules),
    /// Their location, and the error of the last read, if any.
    Known(Arc<ModuleLayout>, Option<String>),
}

/// The reason why the list of modules could not be updated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FollowError {
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

/// The event of a module that a mark reports, with the address of its struct.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModuleEvent {
    Other,
    Coming(Gva),
    Going(Gva),
}

/// A module that probes may be in.
pub(crate) struct Loaded {
    pub(crate) module: Module,
    pub(crate) table: Arc<ModuleTable>,
    special: Arc<Special>,
    /// Its tables were read while the engine had its breakpoint at the end of modules: since then
    /// no other module came to its place.
    pub(crate) is_watched: bool,
}

/// Text of a module that the kernel treats specially.
#[derive(Default)]
struct Special {
    extable: ExceptionTable,
    /// The target of each, when it is a jmp.
    jump_labels: HashMap<Gva, Gva>,
    static_calls: HashSet<Gva>,
}

impl Special {
    fn read(memory: &KernelMemory<'_>, module: &Module, room: usize) -> Result<Self, FollowError> {
        let all = [module.extable, module.jump_labels, module.static_calls];
        if all.iter().map(|entries| entries.count as usize).sum::<usize>() > room {
            return Err(FollowError::TooMuch);
        }
        let [extable, jump_labels, static_calls] = all;
        let len = u64::from(extable.count) * exoprobe_introspect::extable::ENTRY_BYTES;
        Ok(Self {
            extable: ExceptionTable::read_range(memory, extable.at, extable.at.wrapping_add(len))?,
            jump_labels: JUMP_LABELS.read_entries(memory, jump_labels)?,
            static_calls: STATIC_CALLS.read_entries(memory, static_calls)?.into_keys().collect(),
        })
    }

    fn len(&self) -> usize {
        self.extable.len() + self.jump_labels.len() + self.static_calls.len()
    }
}

impl Loaded {
    pub(crate) fn has(&self, at: Gva) -> bool {
        self.module.texts().any(|text| text.contains(&at))
    }

    /// Returns true if `other` is the same module, perhaps without its init text by now.
    pub(crate) fn is_still(&self, other: &Module) -> bool {
        let Module { at, name, text, .. } = &self.module;
        (at, name, text) == (&other.at, &other.name, &other.text)
    }

    pub(crate) fn table(&self) -> Arc<ModuleTable> {
        Arc::clone(&self.table)
    }

    /// The same module while the engine has no breakpoint at the end of modules.
    pub(crate) fn unwatched(&self) -> Self {
        let Self { module, table, special, .. } = self;
        let (module, table, special) = (module.clone(), Arc::clone(table), Arc::clone(special));
        Self { module, table, special, is_watched: false }
    }

    /// Returns true if `other` has the same text and tables, read at the same time.
    pub(crate) fn is_as_read(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.special, &other.special) && Arc::ptr_eq(&self.table, &other.table)
    }

    /// Returns true if the exception table lists the instruction at `at`.
    pub(crate) fn may_fault(&self, at: Gva) -> bool {
        self.special.extable.find(at).is_some()
    }

    /// Returns true if the kernel rewrites the instruction at `at` while it runs.
    pub(crate) fn is_rewritten(&self, at: Gva) -> bool {
        let Special { jump_labels, static_calls, .. } = &*self.special;
        jump_labels.contains_key(&at) || static_calls.contains(&at)
    }

    /// Targets of jumps according to its tables: static keys' branches and fix-ups.
    pub(crate) fn jump_targets(&self) -> impl Iterator<Item = Gva> {
        let Special { extable, jump_labels, .. } = &*self.special;
        jump_labels.values().copied().chain(extable.fixups().map(|entry| entry.fixup))
    }

    /// The kernel's special treatment of the instruction at `at`, if it forbids a probe.
    pub(crate) fn reserved(&self, at: Gva, faults_show_original: bool) -> Option<Reserved> {
        let Special { extable, jump_labels, static_calls } = &*self.special;
        if let Some(fixup) = extable.find(at)
            && (!faults_show_original || fixup.decodes_text())
        {
            Some(Reserved::ExceptionTable)
        } else if jump_labels.contains_key(&at) {
            Some(Reserved::JumpLabel)
        } else {
            static_calls.contains(&at).then_some(Reserved::StaticCall)
        }
    }
}

impl ModuleEvent {
    /// Returns true if probes may be in a module: it is loaded, or can only fail to load by way of
    /// a mark, and its text is not freed yet.
    fn admits(self, module: &Module, known: &[Arc<Loaded>]) -> bool {
        match (self, module.state) {
            (Self::Going(at), _) if at == module.at => false,
            (_, ModuleState::Unformed) => false,
            (Self::Coming(at), _) if at == module.at => true,
            (_, ModuleState::Live) => true,
            (_, ModuleState::Coming | ModuleState::Going) => {
                known.iter().any(|loaded| loaded.is_still(module))
            }
        }
    }
}

/// The modules that probes may be in; `None` if they are unchanged. `is_watched` is true while the
/// engine has its breakpoint at the end of modules.
pub(crate) fn read_all(
    layout: &ModuleLayout,
    memory: &KernelMemory<'_>,
    known: &[Arc<Loaded>],
    told: ModuleEvent,
    is_watched: bool,
) -> Result<Option<Vec<Arc<Loaded>>>, FollowError> {
    let list = || -> Result<Vec<Module>, FollowError> {
        let mut modules = layout.list(memory)?;
        modules.retain(|module| told.admits(module, known));
        Ok(modules)
    };
    let mut modules = list()?;
    let is_known = known.iter().all(|loaded| loaded.is_watched == is_watched);
    if is_known && modules.iter().eq(known.iter().map(|loaded| &loaded.module)) {
        return Ok(None);
    }
    for _ in 0..TRIES {
        let loaded = read_tables(layout, memory, known, modules.clone(), is_watched);
        // The guest runs, and may have changed its list meanwhile.
        let again = list()?;
        if again == modules {
            return loaded.map(Some);
        }
        modules = again;
    }
    Err(FollowError::Changing)
}

/// Reads the symbols and the special text of these modules, unless they are known.
fn read_tables(
    layout: &ModuleLayout,
    memory: &KernelMemory<'_>,
    loaded: &[Arc<Loaded>],
    modules: Vec<Module>,
    is_watched: bool,
) -> Result<Vec<Arc<Loaded>>, FollowError> {
    let (mut room, mut special_room) = (Room::default(), SPECIAL_MAX);
    let mut all = Vec::with_capacity(modules.len());
    for module in modules {
        // One that is read unwatched may be another by the time that it is watched.
        let holds = |known: &&Arc<Loaded>| known.is_watched || !is_watched;
        let mut known = loaded.iter().filter(holds);
        let known = known.find(|known| known.module.has_text_of(&module));
        let (table, special) = match known {
            Some(known) => (Arc::clone(&known.table), Arc::clone(&known.special)),
            None => {
                let table = layout.symbols(memory, &module, room)?;
                let special = Special::read(memory, &module, special_room)?;
                (Arc::new(table), Arc::new(special))
            }
        };
        room = room.without(&table).ok_or(FollowError::TooMuch)?;
        special_room = special_room.checked_sub(special.len()).ok_or(FollowError::TooMuch)?;
        all.push(Arc::new(Loaded { module, table, special, is_watched }));
    }
    Ok(all)
}
