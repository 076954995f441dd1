//! Loadable modules: which there are, where their text is, and their symbols.
//!
//! The kernel has them in a list (`modules`, kernel/module/main.c) of `struct module`, whose
//! members depend on its version and configuration: they are found by the kernel's own types (BTF).
//! All data is the guest's, and may change while it is read.

mod error;
mod layout;
#[doc(hidden)]
#[cfg(any(test, feature = "testing"))]
pub mod sample;
mod symbols;
#[cfg(test)]
mod tests;

use std::ops::Range;

use exoprobe_guest::Gva;

use crate::symbols::KERNEL_HALF;
use crate::view::GuestView;
use crate::virt::VirtualMemory;

pub use error::{MODULES_MAX, ModuleError, NoModules, SYMBOLS_MAX, TEXT_MAX};
pub use layout::{ModuleLayout, has_modules};
pub use symbols::Room;

/// A module's state (`enum module_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModuleState {
    /// Loaded.
    Live,
    /// Whole in memory; its init function has not run to its end.
    Coming,
    /// Being unloaded.
    Going,
    /// Its data is not valid yet.
    Unformed,
}

impl ModuleState {
    /// Of the number that the kernel has.
    fn of(number: u32) -> Option<Self> {
        [Self::Live, Self::Coming, Self::Going, Self::Unformed].get(number as usize).copied()
    }

    /// As /proc/modules has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Live => "Live",
            Self::Coming => "Loading",
            Self::Going => "Unloading",
            Self::Unformed => "Unformed",
        }
    }
}

/// A table of a module: where it begins, and how many entries it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModuleEntries {
    /// Address of the first.
    pub at: Gva,
    /// How many.
    pub count: u32,
}

/// A module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Address of its `struct module`.
    pub at: Gva,
    /// Its name.
    pub name: String,
    /// How far it is.
    pub state: ModuleState,
    /// Its text; empty while it is unformed.
    pub text: Range<Gva>,
    /// Text that is freed once its init function has run; empty from then on.
    pub init_text: Range<Gva>,
    /// Its exception table.
    pub extable: ModuleEntries,
    /// Its static keys' branches; none of a kernel that has no such.
    pub jump_labels: ModuleEntries,
    /// Its static calls, likewise.
    pub static_calls: ModuleEntries,
    /// It is a live patch: the kernel relocates its text when it loads the modules that it patches.
    pub live_patch: bool,
    /// Its `struct mod_kallsyms`.
    kallsyms: Gva,
}

impl Module {
    /// Its text, and that for initialization, as far as there is any.
    pub fn texts(&self) -> impl Iterator<Item = Range<Gva>> {
        [&self.text, &self.init_text].into_iter().filter(|range| !range.is_empty()).cloned()
    }

    /// Whether `other` is the same module with the same text and symbols, perhaps in another state.
    #[must_use]
    pub fn has_text_of(&self, other: &Self) -> bool {
        Self { state: other.state, ..self.clone() } == *other
    }
}

impl ModuleLayout {
    /// The modules, the last loaded first, as /proc/modules has them.
    ///
    /// # Errors
    /// [`ModuleError`].
    pub fn list<V: GuestView + ?Sized>(
        &self,
        memory: &VirtualMemory<'_, V>,
    ) -> Result<Vec<Module>, ModuleError> {
        let mut modules = Vec::new();
        let mut next = Gva(memory.read_u64(self.head)?);
        let mut bytes = vec![0; self.len];
        while next != self.head {
            if modules.len() == MODULES_MAX {
                return Err(ModuleError::Broken);
            }
            let at = next.0.checked_sub(self.list as u64).filter(|at| *at >= KERNEL_HALF.0);
            let at = Gva(at.ok_or(ModuleError::BadLink(next))?);
            memory.read(at, &mut bytes)?;
            modules.push(self.module(at, &bytes)?);
            next = Gva(word(&bytes, self.list));
        }
        self.check_text(&modules)?;
        Ok(modules)
    }

    fn module(&self, at: Gva, bytes: &[u8]) -> Result<Module, ModuleError> {
        let state = half(bytes, self.state);
        let state = ModuleState::of(state).ok_or(ModuleError::BadState { at, state })?;
        let name = self.name_in(bytes).ok_or(ModuleError::BadName(at))?;
        let range = |area: layout::Area| -> Result<Range<Gva>, ModuleError> {
            let (start, len) = (word(bytes, area.base), u64::from(half(bytes, area.size)));
            if state == ModuleState::Unformed || len == 0 {
                return Ok(Gva(0)..Gva(0));
            }
            let end = start.checked_add(len).filter(|_| start >= KERNEL_HALF.0 && len <= TEXT_MAX);
            let text = Gva(start);
            let end = end.ok_or_else(|| ModuleError::BadText { module: name.clone(), text })?;
            Ok(text..Gva(end))
        };
        let entries = |place: Option<layout::Area>| {
            let found = |area: layout::Area| ModuleEntries {
                at: Gva(word(bytes, area.base)),
                count: half(bytes, area.size),
            };
            place.map(found).unwrap_or_default()
        };
        Ok(Module {
            at,
            state,
            text: range(self.text)?,
            init_text: range(self.init_text)?,
            extable: entries(Some(self.extable)),
            jump_labels: entries(self.jump_labels),
            static_calls: entries(self.static_calls),
            live_patch: self.live_patch.is_some_and(|at| bytes.get(at).is_some_and(|b| *b != 0)),
            kallsyms: Gva(word(bytes, self.kallsyms)),
            name,
        })
    }

    fn name_in(&self, bytes: &[u8]) -> Option<String> {
        let bytes = bytes.get(self.name.clone())?;
        let name = &bytes[..bytes.iter().position(|byte| *byte == 0)?];
        let fits = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b':' | b'[' | b']');
        (!name.is_empty() && name.iter().all(fits))
            .then(|| String::from_utf8_lossy(name).into_owned())
    }

    /// Each text is one module's, and not the kernel's.
    fn check_text(&self, modules: &[Module]) -> Result<(), ModuleError> {
        let mut texts: Vec<(Range<Gva>, &str)> =
            modules.iter().flat_map(|m| m.texts().map(|text| (text, &*m.name))).collect();
        texts.sort_unstable_by_key(|(text, _)| (text.start, text.end));
        let mut previous_end = Gva(0);
        for (text, module) in texts {
            let is_kernels = text.start < self.image.end && self.image.start < text.end;
            if text.start < previous_end || is_kernels {
                let (module, text) = (module.to_owned(), text.start);
                return Err(ModuleError::BadText { module, text });
            }
            previous_end = text.end;
        }
        Ok(())
    }
}

/// The 64-bit word at `at`; 0 where there is none.
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_le_bytes(*word))
}

/// The 32-bit word at `at`; 0 where there is none.
fn half(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_le_bytes(*word))
}
