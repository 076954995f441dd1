//! A second layer of symbols: those of the modules that are loaded, each module's in a table of its
//! own, so that one that stays is not indexed again when another comes or goes.

use std::ops::Range;
use std::sync::Arc;

use exoprobe_guest::Gva;

use super::build::{Builder, RawSymbol, SymbolRecord, TableError, Tables};
use super::symbol::{Symbol, SymbolKind, TextKind};

/// A symbol as a module has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleSymbol<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where it is.
    pub address: Gva,
    /// Bytes; 0 where that is not known.
    pub size: u64,
    /// Code or data. Code outside of the module's text is data here.
    pub kind: SymbolKind,
    /// Seen outside its source file.
    pub global: bool,
}

/// Symbols and text of one module.
#[derive(Debug)]
pub struct ModuleTable {
    name: Box<str>,
    pub(super) tables: Tables,
}

impl ModuleTable {
    /// Indexes a module's symbols; `text` is where its code is.
    ///
    /// # Errors
    /// [`TableError`] where there are too many.
    pub fn new<'a>(
        name: &str,
        text: &[Range<Gva>],
        symbols: impl IntoIterator<Item = ModuleSymbol<'a>>,
    ) -> Result<Self, TableError> {
        let mut builder = Builder::new(0, 0);
        for range in text {
            builder.text(range.start.0, range.end.0, TextKind::Module);
        }
        for ModuleSymbol { name, address, size, kind, global } in symbols {
            let within = text.iter().find(|range| range.contains(&address));
            // No function extends beyond its module's text.
            let size = within.map_or(size, |range| size.min(range.end.0 - address.0));
            let function = kind == SymbolKind::Function && within.is_some();
            let address = address.0;
            builder.push(&RawSymbol { name, address, size, function, global, typed: true })?;
        }
        Ok(Self { name: name.into(), tables: builder.index() })
    }

    /// The module's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of its symbols.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tables.entries.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tables.entries.is_empty()
    }

    /// Bytes of all its symbols' names.
    #[must_use]
    pub fn name_bytes(&self) -> usize {
        self.tables.name_bytes()
    }

    pub(super) fn symbol(&self, entry: &SymbolRecord) -> Symbol<'_> {
        Symbol {
            name: self.tables.name(entry),
            address: Gva(entry.address),
            size: entry.size,
            kind: entry.kind(),
            global: entry.is_global(),
            module: Some(&self.name),
        }
    }
}

/// All modules that are loaded.
#[derive(Clone, Default)]
pub(super) struct Layer {
    modules: Arc<[Arc<ModuleTable>]>,
    /// Start and end of each range of text, and its module's index; ascending.
    text: Arc<[(u64, u64, usize)]>,
}

impl Layer {
    /// Whether this is a clone of `other`.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.modules, &other.modules)
    }

    pub(super) fn new(modules: Vec<Arc<ModuleTable>>) -> Self {
        let ranges = |(index, module): (usize, &Arc<ModuleTable>)| {
            let text = module.tables.text.iter();
            text.map(|range| (range.start.0, range.end.0, index)).collect::<Vec<_>>()
        };
        let mut text: Vec<(u64, u64, usize)> =
            modules.iter().enumerate().flat_map(ranges).collect();
        text.sort_unstable();
        Self { modules: modules.into(), text: text.into() }
    }

    /// In the order in which they were given.
    pub(super) fn iter(&self) -> impl Iterator<Item = &ModuleTable> {
        self.modules.iter().map(|module| &**module)
    }

    /// Returns all, or, where a name is given, the one of this name.
    pub(super) fn named<'a, 'n>(
        &'a self,
        name: Option<&'n str>,
    ) -> impl Iterator<Item = &'a ModuleTable> + use<'a, 'n> {
        self.iter().filter(move |module| name.is_none_or(|name| module.name() == name))
    }

    /// The module that has `address` in its text.
    pub(super) fn at(&self, address: u64) -> Option<&ModuleTable> {
        let count = self.text.partition_point(|(start, ..)| *start <= address);
        let (_, end, index) = self.text[..count].last()?;
        (address < *end).then(|| &*self.modules[*index])
    }
}
