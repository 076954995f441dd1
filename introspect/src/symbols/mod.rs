//! The guest kernel's symbols: names to addresses and back.
//!
//! Built once from an ELF `vmlinux` or a `System.map`, immutable from then on, and cheap to share:
//! a clone, and a table moved by [`SymbolTable::with_slide`], share one copy of the names.

mod build;
mod elf;
pub(crate) mod glob;
mod listing;
mod load;
mod near;
mod system_map;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use exoprobe_vmm::Gva;

pub use build::{MAX_NAME_BYTES, MAX_NAME_LEN, MAX_SYMBOLS, TableError};
pub use elf::ElfError;
pub(crate) use elf::check_ident;
pub(crate) use listing::Listing;
pub use listing::ListingError;
pub use load::{ContentError, LoadError, MAX_FILE_BYTES};
pub use system_map::{LineProblem, SystemMapError};

use build::{Entry, Tables};

/// Where the upper half of the address space begins with four-level paging, the lower end of
/// everything that is the kernel's. Symbols below are no addresses: per-CPU offsets, constants.
pub const KERNEL_HALF: Gva = Gva(0xffff_8000_0000_0000);

/// What a symbol names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SymbolKind {
    /// Code: may be executed at its address.
    Function,
    /// Anything else: variables, tables, markers, per-CPU offsets, absolute values.
    Data,
}

/// One symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where it lies, with the table's slide applied; for a per-CPU or absolute symbol (below
    /// [`KERNEL_HALF`]) its plain value.
    pub address: Gva,
    /// Bytes, from the ELF file or else up to the next symbol (an upper bound, then); 0 where
    /// neither is known.
    pub size: u64,
    /// Code or data.
    pub kind: SymbolKind,
    /// Visible outside its source file.
    pub global: bool,
}

/// An address as a symbol and an offset into it; displayed as `name+0x10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolOffset<'a> {
    /// The function's name.
    pub name: &'a str,
    /// Bytes from the function's start.
    pub offset: u64,
    /// Size of the function in bytes.
    pub size: u64,
    /// The function's first address.
    pub start: Gva,
}

impl fmt::Display for SymbolOffset<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.name, self.offset)
    }
}

/// The extent of the function at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionBounds<'a> {
    /// First address.
    pub start: Gva,
    /// First address behind.
    pub end: Gva,
    /// The function's name.
    pub name: &'a str,
}

/// Which part of the kernel a text range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TextKind {
    /// The resident text (`.text`; `_text` or `_stext` to `_etext`).
    Core,
    /// Initialization code (`.init.text`; `_sinittext` to `_einittext`), freed when the kernel
    /// has booted: its addresses may hold anything afterwards.
    Init,
    /// Other executable sections (`.exit.text`, `.altinstr_replacement`, ...), freed as well.
    Other,
}

/// A range of executable addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextRange {
    /// First address.
    pub start: Gva,
    /// First address behind.
    pub end: Gva,
    /// Which part of the kernel it is.
    pub kind: TextKind,
}

/// Why a name stands for no one symbol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// No symbol has this name.
    #[error("no symbol named {name:?}{}", suggest(near))]
    Unknown {
        /// The name asked for.
        name: String,
        /// Up to three names like it, the likeliest first.
        near: Vec<String>,
    },
    /// Several symbols at different addresses have this name; an address must be given instead.
    #[error("{} symbols are named {name:?}, the first at {}", addresses.len(), first(addresses))]
    Ambiguous {
        /// The name asked for.
        name: String,
        /// Where they lie, ascending.
        addresses: Vec<Gva>,
    },
}

fn suggest(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", near.join(", ")) }
}

fn first(addresses: &[Gva]) -> Gva {
    addresses.first().copied().unwrap_or_default()
}

/// All symbols of one kernel, indexed by name and by address.
#[derive(Clone)]
pub struct SymbolTable {
    tables: Arc<Tables>,
    slide: i64,
}

impl fmt::Debug for SymbolTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SymbolTable")
            .field("len", &self.len())
            .field("slide", &format_args!("{:#x}", self.slide))
            .finish_non_exhaustive()
    }
}

impl SymbolTable {
    /// The same symbols moved by `slide` bytes from where they were linked, as KASLR does. It
    /// replaces a former slide. Per-CPU and absolute symbols do not move. Nothing is copied.
    #[must_use]
    pub fn with_slide(&self, slide: i64) -> Self {
        Self { tables: Arc::clone(&self.tables), slide }
    }

    /// Bytes between link-time and present addresses.
    #[must_use]
    pub fn slide(&self) -> i64 {
        self.slide
    }

    /// Number of symbols, functions and data.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tables.entries.len()
    }

    /// Whether there is no symbol; never so for a table that was built without error.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tables.entries.is_empty()
    }

    /// The symbol of this exact name, function or data.
    ///
    /// # Errors
    /// [`LookupError::Unknown`] with near matches; [`LookupError::Ambiguous`] where the name has
    /// more than one address.
    pub fn lookup(&self, name: &str) -> Result<Symbol<'_>, LookupError> {
        self.lookup_where(name, |_| true)
    }

    /// The function of this exact name; data of the same name does not make it ambiguous.
    ///
    /// # Errors
    /// As [`Self::lookup`], among functions only.
    pub fn lookup_function(&self, name: &str) -> Result<Symbol<'_>, LookupError> {
        self.lookup_where(name, Entry::is_function)
    }

    /// Where the symbol of this exact name is, of one that need not be there: quicker than a
    /// [`Self::lookup`] that fails. `None` also where the name has several addresses.
    #[must_use]
    pub fn address_of(&self, name: &str) -> Option<Gva> {
        let mut same = self.tables.named(name).map(|entry| entry.address);
        let first = same.next()?;
        same.all(|address| address == first).then(|| self.slid(first))
    }

    fn lookup_where(
        &self,
        name: &str,
        wanted: impl Fn(&Entry) -> bool,
    ) -> Result<Symbol<'_>, LookupError> {
        let same: Vec<&Entry> = self.tables.named(name).filter(|entry| wanted(entry)).collect();
        let Some(best) = same.iter().max_by_key(|entry| (entry.is_function(), entry.size)) else {
            let near = near::near(&self.tables, name, wanted);
            return Err(LookupError::Unknown { name: name.to_owned(), near });
        };
        if same.iter().all(|entry| entry.address == best.address) {
            return Ok(self.symbol(best));
        }
        let mut addresses: Vec<Gva> = same.iter().map(|entry| self.slid(entry.address)).collect();
        addresses.sort_unstable();
        addresses.dedup();
        Err(LookupError::Ambiguous { name: name.to_owned(), addresses })
    }

    /// The function whose bytes include `gva`, as a name and an offset; `None` outside all
    /// functions. Where several cover it, the one that starts nearest counts. Of those that start at
    /// the same address it is a real name before a padding symbol (`__pfx_`) or a linker's marker
    /// (`_stext`), then a global before a local, then the shortest, then the alphabetically first.
    #[must_use]
    pub fn resolve(&self, gva: Gva) -> Option<SymbolOffset<'_>> {
        let entry = self.covering(gva)?;
        let start = self.slid(entry.address);
        Some(SymbolOffset {
            name: self.tables.name(entry),
            offset: gva.0.wrapping_sub(start.0),
            size: entry.size,
            start,
        })
    }

    /// The extent of the function [`Self::resolve`] finds at `gva`. A label inside a hand-written
    /// assembly function begins a function of its own here.
    #[must_use]
    pub fn function_at(&self, gva: Gva) -> Option<FunctionBounds<'_>> {
        let entry = self.covering(gva)?;
        let start = self.slid(entry.address);
        Some(FunctionBounds {
            start,
            end: start.wrapping_add(entry.size),
            name: self.tables.name(entry),
        })
    }

    fn covering(&self, gva: Gva) -> Option<&Entry> {
        self.tables.covering(self.unslid(gva))
    }

    /// Whether `gva` lies in executable kernel text, of any kind.
    #[must_use]
    pub fn text_contains(&self, gva: Gva) -> bool {
        self.tables.text_at(self.unslid(gva)).is_some()
    }

    /// Which part of the kernel's text `gva` lies in; `None` outside of text.
    #[must_use]
    pub fn text_kind(&self, gva: Gva) -> Option<TextKind> {
        self.tables.text_at(self.unslid(gva)).map(|range| range.kind)
    }

    /// The executable ranges, ascending.
    pub fn text_ranges(&self) -> impl ExactSizeIterator<Item = TextRange> {
        self.tables.text.iter().map(|range| TextRange {
            start: self.slid(range.start.0),
            end: self.slid(range.end.0),
            kind: range.kind,
        })
    }

    /// All symbols, ascending by address and then by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Symbol<'_>> {
        self.tables.entries.iter().map(|entry| self.symbol(entry))
    }

    /// The symbols whose whole name matches `pattern`, in order of their names: `*` stands for any
    /// run of characters, `?` for any one. A literal beginning makes it fast.
    pub fn search<'a>(&'a self, pattern: &'a str) -> impl Iterator<Item = Symbol<'a>> {
        let prefix = &pattern[..pattern.find(['*', '?']).unwrap_or(pattern.len())];
        self.tables
            .by_name_from(prefix)
            .take_while(move |entry| self.tables.name(entry).starts_with(prefix))
            .filter(move |entry| {
                glob::matches(pattern.as_bytes(), self.tables.name(entry).as_bytes())
            })
            .map(|entry| self.symbol(entry))
    }

    fn symbol(&self, entry: &Entry) -> Symbol<'_> {
        Symbol {
            name: self.tables.name(entry),
            address: self.slid(entry.address),
            size: entry.size,
            kind: if entry.is_function() { SymbolKind::Function } else { SymbolKind::Data },
            global: entry.is_global(),
        }
    }

    fn slid(&self, address: u64) -> Gva {
        let moves = address >= KERNEL_HALF.0;
        Gva(if moves { address.wrapping_add_signed(self.slide) } else { address })
    }

    fn unslid(&self, gva: Gva) -> u64 {
        gva.0.wrapping_sub_signed(self.slide)
    }
}
