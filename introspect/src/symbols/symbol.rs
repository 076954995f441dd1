//! Symbols, and ranges of text.

use std::fmt;

use exoprobe_guest::Gva;

/// Where the upper half of the address space begins with four-level paging, the lower end of
/// the kernel's addresses. Symbols below are no addresses: per-CPU offsets, constants.
pub const KERNEL_HALF: Gva = Gva(0xffff_8000_0000_0000);

/// The kind of a symbol.
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
    /// Bytes: up to the next symbol, as the kernel has it, with the padding before that; of data
    /// those of the ELF file where one is given. 0 where neither is known.
    pub size: u64,
    /// Code or data.
    pub kind: SymbolKind,
    /// Visible outside its source file.
    pub global: bool,
    /// The module that has it; `None` of the kernel's own.
    pub module: Option<&'a str>,
}

/// An address as a symbol and an offset into it; displayed as `name+0x10`, or `name+0x10 [module]`.
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
    /// The module that has it; `None` of the kernel's own.
    pub module: Option<&'a str>,
}

impl SymbolOffset<'_> {
    /// The name that only this function has, as a probe takes it: `MODULE:NAME` of a module's.
    #[must_use]
    pub fn qualified_name(&self) -> String {
        self.module.map_or_else(|| self.name.to_owned(), |module| format!("{module}:{}", self.name))
    }
}

impl fmt::Display for SymbolOffset<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.name, self.offset)?;
        self.module.map_or(Ok(()), |module| write!(f, " [{module}]"))
    }
}

/// The extent of the function at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionBounds<'a> {
    /// First address.
    pub start: Gva,
    /// First address after the range.
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
    /// A module's text, which is there while the module is loaded.
    Module,
}

/// A range of executable addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextRange {
    /// First address.
    pub start: Gva,
    /// First address after the range.
    pub end: Gva,
    /// Which part of the kernel it is.
    pub kind: TextKind,
}
