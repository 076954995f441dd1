//! The guest kernel's symbols: names to addresses and back.
//!
//! Built once from an ELF `vmlinux` or a `System.map`, immutable from then on, and cheap to share:
//! a clone, and a table moved by [`SymbolTable::with_slide`], share one copy of the names. Modules that
//! are loaded make a second layer ([`SymbolTable::with_modules`]).

mod build;
mod elf;
mod error;
pub(crate) mod glob;
mod listing;
mod load;
mod modules;
mod near;
mod symbol;
mod system_map;
mod table;
#[cfg(test)]
mod tests;

pub use build::{MAX_NAME_BYTES, MAX_NAME_LEN, MAX_SYMBOLS, TableError};
pub use elf::ElfError;
pub(crate) use elf::check_ident;
pub use error::LookupError;
pub(crate) use listing::Listing;
pub use listing::ListingError;
pub use load::{ContentError, LoadError, MAX_FILE_BYTES};
pub use modules::{ModuleSymbol, ModuleTable};
pub use symbol::{
    FunctionBounds, KERNEL_HALF, Symbol, SymbolKind, SymbolOffset, TextKind, TextRange,
};
pub use system_map::{LineProblem, SystemMapError};
pub use table::SymbolTable;
