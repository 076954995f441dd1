//! The table of a kernel's symbols, and look-ups in it.

use std::fmt;
use std::sync::Arc;

use exoprobe_guest::Gva;

use super::build::{SymbolRecord, Tables};
use super::error::LookupError;
use super::modules::{Layer, ModuleTable};
use super::symbol::{
    FunctionBounds, KERNEL_HALF, Symbol, SymbolKind, SymbolOffset, TextKind, TextRange,
};
use super::{glob, near};

/// All symbols of one kernel, indexed by name and by address.
#[derive(Clone)]
pub struct SymbolTable {
    tables: Arc<Tables>,
    slide: i64,
    modules: Layer,
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
    /// Whether this is a clone of `other`.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.tables, &other.tables)
            && self.slide == other.slide
            && self.modules.is_same(&other.modules)
    }

    pub(super) fn of(tables: Tables) -> Self {
        Self { tables: Arc::new(tables), slide: 0, modules: Layer::default() }
    }

    /// The same symbols moved by `slide` bytes from where they were linked, as KASLR does. It
    /// replaces a former slide. Per-CPU and absolute symbols do not move, nor do modules'. Nothing
    /// is copied.
    #[must_use]
    pub fn with_slide(&self, slide: i64) -> Self {
        Self { slide, ..self.clone() }
    }

    /// Bytes between link-time and present addresses.
    #[must_use]
    pub fn slide(&self) -> i64 {
        self.slide
    }

    /// Number of symbols, functions and data, also of modules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tables.entries.len() + self.modules.iter().map(ModuleTable::len).sum::<usize>()
    }

    /// Whether there is no symbol; never so for a table that was built without error.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tables.entries.is_empty()
    }

    /// The symbol of this exact name, function or data, of the kernel or of a module;
    /// `MODULE:SYMBOL` is that module's.
    ///
    /// # Errors
    /// [`LookupError::Unknown`] with near matches; [`LookupError::Ambiguous`] where the name has
    /// more than one address; [`LookupError::NoModule`].
    pub fn lookup(&self, name: &str) -> Result<Symbol<'_>, LookupError> {
        self.lookup_where(name, |_| true)
    }

    /// The function of this exact name; data of the same name does not make it ambiguous.
    ///
    /// # Errors
    /// As [`Self::lookup`], among functions only.
    pub fn lookup_function(&self, name: &str) -> Result<Symbol<'_>, LookupError> {
        self.lookup_where(name, SymbolRecord::is_function)
    }

    /// Returns the address of the kernel's own symbol of this exact name, if there is one: quicker
    /// than a [`Self::lookup`] that fails. `None` also where the name has several addresses.
    /// Modules' symbols are ignored.
    #[must_use]
    pub fn address_of(&self, name: &str) -> Option<Gva> {
        let mut same = self.tables.named(name).map(|entry| entry.address);
        let first = same.next()?;
        same.all(|address| address == first).then(|| self.slid(first))
    }

    fn lookup_where(
        &self,
        name: &str,
        wanted: impl Fn(&SymbolRecord) -> bool,
    ) -> Result<Symbol<'_>, LookupError> {
        let (module, plain) = self.split(name);
        if let Some(module) = module
            && self.modules.named(Some(module)).next().is_none()
        {
            return Err(LookupError::NoModule { module: module.to_owned() });
        }
        let own = module.is_none().then(|| self.tables.named(plain)).into_iter().flatten();
        let own = own.filter(|entry| wanted(entry)).map(|entry| self.symbol(entry));
        let others = self.modules.named(module).flat_map(|module| {
            let same = module.tables.named(plain).filter(|entry| wanted(entry));
            same.map(|entry| module.symbol(entry)).collect::<Vec<_>>()
        });
        let same: Vec<Symbol<'_>> = own.chain(others).collect();
        let Some(best) = same.iter().max_by_key(|it| (it.kind == SymbolKind::Function, it.size))
        else {
            let near = self.near(module, plain, wanted);
            return Err(LookupError::Unknown { name: name.to_owned(), near });
        };
        if same.iter().all(|symbol| symbol.address == best.address) {
            return Ok(*best);
        }
        let mut addresses: Vec<Gva> = same.iter().map(|symbol| symbol.address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        Err(LookupError::Ambiguous { name: name.to_owned(), addresses })
    }

    /// Names like one that is not there, in one module or everywhere.
    fn near(
        &self,
        module: Option<&str>,
        name: &str,
        wanted: impl Fn(&SymbolRecord) -> bool,
    ) -> Vec<String> {
        let own = module.is_none().then_some(&*self.tables);
        let others = self.modules.named(module).map(|module| &module.tables);
        let near = near::near(own.into_iter().chain(others), name, wanted);
        let qualify = |name: String| match module {
            Some(module) => format!("{module}:{name}"),
            None => name,
        };
        near.into_iter().map(qualify).collect()
    }

    /// The function whose bytes include `gva`, as a name and an offset; `None` outside all
    /// functions. Where several cover it, the one that starts nearest counts. Of those that start
    /// at the same address it is a real name before a padding symbol (`__pfx_`) or a linker's
    /// marker (`_stext`), then a global before a local, then the shortest, then the alphabetically
    /// first.
    #[must_use]
    pub fn resolve(&self, gva: Gva) -> Option<SymbolOffset<'_>> {
        let Symbol { name, address: start, size, module, .. } = self.covering(gva)?;
        Some(SymbolOffset { name, offset: gva.0.wrapping_sub(start.0), size, start, module })
    }

    /// The extent of the function [`Self::resolve`] finds at `gva`. A label inside a hand-written
    /// assembly function begins a function of its own here.
    #[must_use]
    pub fn function_at(&self, gva: Gva) -> Option<FunctionBounds<'_>> {
        let Symbol { name, address: start, size, .. } = self.covering(gva)?;
        Some(FunctionBounds { start, end: start.wrapping_add(size), name })
    }

    fn covering(&self, gva: Gva) -> Option<Symbol<'_>> {
        if let Some(entry) = self.tables.covering(self.unslid(gva)) {
            return Some(self.symbol(entry));
        }
        let module = self.modules.at(gva.0)?;
        Some(module.symbol(module.tables.covering(gva.0)?))
    }

    /// Whether `gva` lies in executable kernel text, of any kind.
    #[must_use]
    pub fn text_contains(&self, gva: Gva) -> bool {
        self.text_kind(gva).is_some()
    }

    /// Which part of the kernel's text `gva` lies in; `None` outside of text.
    #[must_use]
    pub fn text_kind(&self, gva: Gva) -> Option<TextKind> {
        let own = self.tables.text_at(self.unslid(gva)).map(|range| range.kind);
        own.or_else(|| self.modules.at(gva.0).map(|_| TextKind::Module))
    }

    /// The executable ranges: the kernel's own, ascending, and then each module's.
    pub fn text_ranges(&self) -> impl Iterator<Item = TextRange> {
        let own = self.tables.text.iter().map(|range| TextRange {
            start: self.slid(range.start.0),
            end: self.slid(range.end.0),
            kind: range.kind,
        });
        own.chain(self.modules.iter().flat_map(|module| module.tables.text.iter().copied()))
    }

    /// All symbols: the kernel's own, ascending by address and then by name, and then each
    /// module's.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'_>> {
        let own = self.tables.entries.iter().map(|entry| self.symbol(entry));
        let others = self
            .modules
            .iter()
            .flat_map(|module| module.tables.entries.iter().map(move |entry| module.symbol(entry)));
        own.chain(others)
    }

    /// The symbols whose whole name matches `pattern`, in order of their names, those of modules
    /// after the kernel's: `*` stands for any run of characters, `?` for any one. A literal
    /// beginning makes it fast. `MODULE:PATTERN` looks in that module only.
    pub fn search<'a>(&'a self, pattern: &'a str) -> impl Iterator<Item = Symbol<'a>> {
        let (module, pattern) = self.split(pattern);
        let own = module.is_none().then(|| matching(&self.tables, pattern)).into_iter().flatten();
        let others = self.modules.named(module).flat_map(move |module| {
            matching(&module.tables, pattern).map(move |entry| module.symbol(entry))
        });
        own.map(|entry| self.symbol(entry)).chain(others)
    }

    fn symbol(&self, entry: &SymbolRecord) -> Symbol<'_> {
        Symbol {
            name: self.tables.name(entry),
            address: self.slid(entry.address),
            size: entry.size,
            kind: entry.kind(),
            global: entry.is_global(),
            module: None,
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

fn matching<'a>(tables: &'a Tables, pattern: &'a str) -> impl Iterator<Item = &'a SymbolRecord> {
    let prefix = &pattern[..pattern.find(['*', '?']).unwrap_or(pattern.len())];
    let entries = tables.by_name_from(prefix);
    let entries = entries.take_while(move |entry| tables.name(entry).starts_with(prefix));
    entries.filter(move |entry| glob::matches(pattern.as_bytes(), tables.name(entry).as_bytes()))
}

impl SymbolTable {
    /// The same symbols of the kernel, with those of these modules instead of others.
    #[must_use]
    pub fn with_modules(&self, modules: Vec<Arc<ModuleTable>>) -> Self {
        Self { modules: Layer::new(modules), ..self.clone() }
    }

    /// The modules whose symbols are there too.
    pub fn modules(&self) -> impl Iterator<Item = &ModuleTable> {
        self.modules.iter()
    }

    /// `MODULE:SYMBOL`, as kprobe_events has it, or a symbol of any.
    fn split<'n>(&self, name: &'n str) -> (Option<&'n str>, &'n str) {
        match name.split_once(':') {
            // Kernel symbols have no such names, but a file may.
            Some((module, symbol)) if self.tables.named(name).next().is_none() => {
                (Some(module), symbol)
            }
            _ => (None, name),
        }
    }
}
