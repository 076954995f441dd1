//! Offsets of members in `struct module`.

use std::ops::Range;

use exoprobe_guest::Gva;

use super::error::NoModules;
use crate::btf::{Btf, FieldError, FieldPlace, Kind, TypeId};
use crate::symbols::SymbolTable;

/// The list of all modules, a `struct list_head`.
const LIST: &str = "modules";
const MODULE: &str = "struct module";
const KALLSYMS: &str = "struct mod_kallsyms";
/// Largest `struct module` that is accepted, in bytes: four times a distribution kernel's.
const MODULE_MAX: u64 = 8 << 10;
/// Longest name of a module that is accepted, with its NUL (MODULE_NAME_LEN has 56).
const NAME_MAX: u64 = 256;
/// `enum mod_mem_type` of Linux 6.4 on: MOD_TEXT, and MOD_INIT_TEXT where the types do not have it.
const MOD_TEXT: u64 = 0;
const MOD_INIT_TEXT: u64 = 4;

/// Returns true if a kernel with these symbols has a list of modules.
#[must_use]
pub fn has_modules(symbols: &SymbolTable) -> bool {
    symbols.address_of(LIST).is_some()
}

/// Where an address is, and how much is there, 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) base: usize,
    pub(super) size: usize,
}

/// Address of the running kernel's list of modules, and offsets of their members in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleLayout {
    /// The list's own place.
    pub(super) head: Gva,
    /// The kernel itself.
    pub(super) image: Range<Gva>,
    /// Bytes of a module up to the last member that is read.
    pub(super) len: usize,
    pub(super) list: usize,
    pub(super) state: usize,
    pub(super) name: Range<usize>,
    pub(super) text: Area,
    pub(super) init_text: Area,
    pub(super) extable: Area,
    pub(super) jump_labels: Option<Area>,
    pub(super) static_calls: Option<Area>,
    /// A bool, with CONFIG_LIVEPATCH.
    pub(super) live_patch: Option<usize>,
    pub(super) kallsyms: usize,
    pub(super) table: KallsymsLayout,
}

/// Offsets of members in `struct mod_kallsyms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KallsymsLayout {
    pub(super) symtab: u64,
    pub(super) num_symtab: u64,
    pub(super) strtab: u64,
    /// Letters as in /proc/kallsyms; from Linux 5.2 on.
    pub(super) typetab: Option<u64>,
}

impl ModuleLayout {
    /// Finds the list by the kernel's symbols, and the members by its types.
    ///
    /// # Errors
    /// [`NoModules`].
    pub fn find(types: &Btf, symbols: &SymbolTable) -> Result<Self, NoModules> {
        let head = symbols.address_of(LIST).ok_or(NoModules::NoList)?;
        let module = named(types, MODULE)?;
        let mut fields = Fields { types, module, len: 0 };
        let name = fields.place("name")?;
        let name_len = types.size_of(name.id).filter(|len| (1..=NAME_MAX).contains(len));
        let name_len = name_len.ok_or(NoModules::NoStruct("its name"))?;
        let name = fields.note(name, name_len)?;
        let (text, init_text) = fields.text()?;
        let layout = Self {
            head,
            image: image(symbols),
            list: fields.offset("list", 16)?,
            state: fields.offset("state", 4)?,
            name: name..name + usize::try_from(name_len).unwrap_or_default(),
            text,
            init_text,
            extable: fields.area("extable", "num_exentries")?,
            jump_labels: fields.area("jump_entries", "num_jump_entries").ok(),
            static_calls: fields.area("static_call_sites", "num_static_call_sites").ok(),
            live_patch: fields.offset("klp", 1).ok(),
            kallsyms: fields.offset("kallsyms", 8)?,
            table: KallsymsLayout::find(types)?,
            len: 0,
        };
        Ok(Self { len: fields.len, ..layout })
    }
}

impl KallsymsLayout {
    fn find(types: &Btf) -> Result<Self, NoModules> {
        let it = named(types, KALLSYMS)?;
        let offset = |name| types.field(it, name).map(|place| place.offset());
        Ok(Self {
            symtab: offset("symtab")?,
            num_symtab: offset("num_symtab")?,
            strtab: offset("strtab")?,
            typetab: offset("typetab").ok(),
        })
    }
}

fn named(types: &Btf, name: &str) -> Result<TypeId, FieldError> {
    types.find(name).ok_or_else(|| FieldError::NoType(name.to_owned()))
}

/// From the first of its text to its end.
fn image(symbols: &SymbolTable) -> Range<Gva> {
    let texts = || symbols.text_ranges();
    let start = texts().map(|range| range.start).min().unwrap_or_default();
    let end = symbols.address_of("_end").into_iter().chain(texts().map(|range| range.end)).max();
    start..end.unwrap_or_default()
}

/// Members of `struct module`, and how far they reach.
struct Fields<'a> {
    types: &'a Btf,
    module: TypeId,
    len: usize,
}

impl Fields<'_> {
    fn place(&self, path: &str) -> Result<FieldPlace, NoModules> {
        Ok(self.types.field(self.module, path)?)
    }

    /// The place of `len` bytes.
    fn note(&mut self, place: FieldPlace, len: u64) -> Result<usize, NoModules> {
        self.note_at(place.offset(), len)
    }

    fn note_at(&mut self, offset: u64, len: u64) -> Result<usize, NoModules> {
        let end = offset.checked_add(len).filter(|end| *end <= MODULE_MAX);
        let narrow = |value: u64| usize::try_from(value).ok();
        match (narrow(offset), end.and_then(narrow)) {
            (Some(offset), Some(end)) => {
                self.len = self.len.max(end);
                Ok(offset)
            }
            _ => Err(NoModules::NoStruct("it is too large")),
        }
    }

    fn offset(&mut self, path: &str, len: u64) -> Result<usize, NoModules> {
        let place = self.place(path)?;
        self.note(place, len)
    }

    fn area(&mut self, base: &str, size: &str) -> Result<Area, NoModules> {
        Ok(Area { base: self.offset(base, 8)?, size: self.offset(size, 4)? })
    }

    /// Text, and that for initialization: an array of memories by their use (Linux 6.4 on), or two
    /// layouts.
    fn text(&mut self) -> Result<(Area, Area), NoModules> {
        let Ok(memories) = self.place("mem") else {
            let text = self.area("core_layout.base", "core_layout.text_size")?;
            return Ok((text, self.area("init_layout.base", "init_layout.text_size")?));
        };
        let Kind::Array { element, len } = self.types.kind(self.types.resolve(memories.id)) else {
            return Err(NoModules::NoStruct("its mem is no array"));
        };
        let step = self.types.size_of(element).unwrap_or_default();
        let field = |name| self.types.field(element, name).map(|place| place.offset());
        let (base, size) = (field("base")?, field("size")?);
        let init = self.init_text_number();
        if init >= u64::from(len) || step > MODULE_MAX {
            return Err(NoModules::NoStruct("its mem is too small"));
        }
        let mut area = |number: u64| -> Result<Area, NoModules> {
            let start = memories.offset().saturating_add(number.saturating_mul(step));
            let base = self.note_at(start.saturating_add(base), 8)?;
            Ok(Area { base, size: self.note_at(start.saturating_add(size), 4)? })
        };
        Ok((area(MOD_TEXT)?, area(init)?))
    }

    fn init_text_number(&self) -> u64 {
        let uses = self.types.find("enum mod_mem_type");
        let mut values = uses.into_iter().flat_map(|id| self.types.enum_values(id));
        let found = values.find(|value| value.name == "MOD_INIT_TEXT");
        found.and_then(|value| u64::try_from(value.value).ok()).unwrap_or(MOD_INIT_TEXT)
    }
}
