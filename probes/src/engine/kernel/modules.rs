//! The guest's modules that probes may be in, and the kernel's special text in them.

use std::collections::HashSet;
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
use crate::engine::kernel::tables::{JUMP_LABELS, RelativeTable, STATIC_CALLS};
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
}

/// Text of a module that the kernel treats specially.
#[derive(Default)]
struct Special {
    extable: ExceptionTable,
    jump_labels: HashSet<Gva>,
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
        let places = |table: &RelativeTable, entries| -> Result<HashSet<Gva>, FollowError> {
            Ok(table.read_entries(memory, entries)?.into_keys().collect())
        };
        Ok(Self {
            extable: ExceptionTable::read_range(memory, extable.at, extable.at.wrapping_add(len))?,
            jump_labels: places(&JUMP_LABELS, jump_labels)?,
            static_calls: places(&STATIC_CALLS, static_calls)?,
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

    /// The kernel's special treatment of the instruction at `at`, if it forbids a probe.
    pub(crate) fn reserved(&self, at: Gva, faults_show_original: bool) -> Option<Reserved> {
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

/// The modules that probes may be in; `None` if they are unchanged.
pub(crate) fn read_all(
    layout: &ModuleLayout,
    memory: &KernelMemory<'_>,
    known: &[Arc<Loaded>],
    told: ModuleEvent,
) -> Result<Option<Vec<Arc<Loaded>>>, FollowError> {
    let list = || -> Result<Vec<Module>, FollowError> {
        let mut modules = layout.list(memory)?;
        modules.retain(|module| told.admits(module, known));
        Ok(modules)
    };
    let mut modules = list()?;
    if modules.iter().eq(known.iter().map(|loaded| &loaded.module)) {
        return Ok(None);
    }
    for _ in 0..TRIES {
        let loaded = read_tables(layout, memory, known, modules.clone());
        // The guest runs, and may have changed its list meanwhile.
        let again = list()?;
        if again == modules {
            return loaded.map(Some);
        }
        modules = again;
    }
    Err(FollowError::Changing)
}

/// Reads the special text of these modules, unless it is known.
fn read_tables(
    layout: &ModuleLayout,
    memory: &KernelMemory<'_>,
    loaded: &[Arc<Loaded>],
    modules: Vec<Module>,
) -> Result<Vec<Arc<Loaded>>, FollowError> {
    let (mut room, mut special_room) = (Room::default(), SPECIAL_MAX);
    let mut all = Vec::with_capacity(modules.len());
    for module in modules {
        let known = loaded.iter().find(|known| known.module.has_text_of(&module));
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
        all.push(Arc::new(Loaded { module, table, special }));
    }
    Ok(all)
}
