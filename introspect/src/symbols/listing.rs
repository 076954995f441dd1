//! Symbols as `nm` lists them: an address, a type's letter, a name. `System.map` and the kernel's
//! own table are such.

use super::build::{Builder, RawSymbol, TableError, Tables};
use super::{SymbolTable, TextKind};

/// Reasons why a listing has no usable symbol table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListingError {
    /// A symbol that every x86-64 kernel has is missing: the listing was cut short or filtered.
    #[error("no symbol {name}, which bounds the kernel's text: the list is not complete")]
    NoTextBounds {
        /// The missing symbol.
        name: &'static str,
    },
    /// The bounds of the kernel's text are in the wrong order.
    #[error("{end} does not lie above {start}")]
    BadTextBounds {
        /// The symbol that should be lower.
        start: &'static str,
        /// The symbol that should be higher.
        end: &'static str,
    },
    /// The symbols do not form a table.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// Collects the symbols of a listing.
pub(crate) struct Listing {
    builder: Builder,
    bounds: Bounds,
}

/// Addresses of the symbols that bound the kernel's text.
#[derive(Default)]
struct Bounds {
    text: Option<u64>,
    stext: Option<u64>,
    etext: Option<u64>,
    sinittext: Option<u64>,
    einittext: Option<u64>,
}

impl Listing {
    /// `symbols` and `name_bytes` are guesses that save growing; they are not trusted.
    pub(crate) fn new(symbols: usize, name_bytes: usize) -> Self {
        Self { builder: Builder::new(symbols, name_bytes), bounds: Bounds::default() }
    }

    /// Adds a symbol; `kind` is its letter in `nm`'s output.
    pub(crate) fn push(&mut self, address: u64, kind: u8, name: &str) -> Result<(), ListingError> {
        self.bounds.note(address, name);
        self.builder.push(&RawSymbol {
            name,
            address,
            size: 0,
            function: matches!(kind, b't' | b'T' | b'w' | b'W'),
            global: kind.is_ascii_uppercase() || kind == b'w',
            typed: true,
        })?;
        Ok(())
    }

    /// Sorts and indexes what was collected.
    pub(crate) fn finish(self) -> Result<SymbolTable, ListingError> {
        Ok(SymbolTable::of(self.tables()?))
    }

    fn tables(mut self) -> Result<Tables, ListingError> {
        self.bounds.add_to(&mut self.builder)?;
        Ok(self.builder.finish()?)
    }
}

impl Bounds {
    fn note(&mut self, address: u64, name: &str) {
        let bound = match name {
            "_text" => &mut self.text,
            "_stext" => &mut self.stext,
            "_etext" => &mut self.etext,
            "_sinittext" => &mut self.sinittext,
            "_einittext" => &mut self.einittext,
            _ => return,
        };
        bound.get_or_insert(address);
    }

    fn add_to(&self, builder: &mut Builder) -> Result<(), ListingError> {
        // `_text` lies first where both exist: the boot code between them is text as well.
        let start = match (self.text, self.stext) {
            (Some(text), Some(stext)) => Some(text.min(stext)),
            (text, stext) => text.or(stext),
        };
        let start = start.ok_or(ListingError::NoTextBounds { name: "_stext" })?;
        let end = self.etext.ok_or(ListingError::NoTextBounds { name: "_etext" })?;
        if start >= end {
            return Err(ListingError::BadTextBounds { start: "_stext", end: "_etext" });
        }
        builder.text(start, end, TextKind::Core);
        if let (Some(start), Some(end)) = (self.sinittext, self.einittext) {
            if start > end {
                let (start, end) = ("_sinittext", "_einittext");
                return Err(ListingError::BadTextBounds { start, end });
            }
            builder.text(start, end, TextKind::Init);
        }
        Ok(())
    }
}
