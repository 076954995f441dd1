//! The guest's kernel, as the checker of scripts asks for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use exoprobe_introspect::btf::Btf;
use exoprobe_introspect::{SymbolKind, SymbolTable};
use exoprobe_probes::Engine;
use exoprobe_script::{BtfTypes, Kernel, Parameter, Prototype, Record, RecordRef, Type};

use super::syscalls;

/// Beginnings of symbols that are no functions' own, and of copies of cold code.
const NO_FUNCTIONS: [&str; 2] = ["__pfx_", "__cfi_"];
const COLD: &str = ".cold";
/// The kernel's own functions, in the place of a module's name.
const VMLINUX: &str = "vmlinux";

/// The kernel of a guest; of one that has not begun, nothing is known.
pub(super) struct GuestKernel {
    symbols: Option<SymbolTable>,
    types: Option<Arc<Btf>>,
    cpus: u32,
}

impl GuestKernel {
    /// Asks the engine. Waits for it.
    pub(super) fn of(engine: &Engine, cpus: u32) -> Self {
        Self { symbols: engine.symbols().ok(), types: engine.types().ok(), cpus }
    }

    fn types(&self) -> Option<BtfTypes<'_>> {
        Some(BtfTypes::new(self.types.as_deref()?))
    }
}

impl Kernel for GuestKernel {
    fn functions(&self, module: Option<&str>, pattern: &str) -> Vec<Arc<str>> {
        let Some(symbols) = &self.symbols else { return Vec::new() };
        let wanted = |of: Option<&str>| match module {
            None => true,
            Some(VMLINUX) => of.is_none(),
            Some(module) => of == Some(module),
        };
        let is_function = |name: &str| {
            !NO_FUNCTIONS.iter().any(|prefix| name.starts_with(prefix)) && !name.contains(COLD)
        };
        let found = symbols.search(pattern).filter(|symbol| {
            symbol.kind == SymbolKind::Function
                && symbols.text_contains(symbol.address)
                && wanted(symbol.module)
                && is_function(symbol.name)
        });
        let names: BTreeSet<&str> = found.map(|symbol| symbol.name).collect();
        names.into_iter().map(Arc::from).collect()
    }

    fn prototype(&self, function: &str) -> Option<Prototype> {
        self.types()?.prototype(function)
    }

    fn record(&self, record: &RecordRef) -> Option<Record> {
        self.types()?.record(record)
    }

    fn named_type(&self, name: &str) -> Option<Type> {
        self.types()?.named_type(name)
    }

    fn enumerator(&self, name: &str) -> Option<i64> {
        self.types()?.enumerator(name)
    }

    fn enumerators(&self, name: &str) -> Vec<(Arc<str>, i64)> {
        self.types().map(|types| types.enumerators(name)).unwrap_or_default()
    }

    fn has_symbol(&self, symbol: &str) -> bool {
        self.symbols.as_ref().is_some_and(|symbols| symbols.address_of(symbol).is_some())
    }

    fn syscalls(&self) -> Vec<Arc<str>> {
        let Some(symbols) = &self.symbols else { return Vec::new() };
        let pattern = format!("{}*", syscalls::PREFIX);
        let names = symbols.search(&pattern);
        let names = names.filter_map(|symbol| symbol.name.strip_prefix(syscalls::PREFIX));
        let names: BTreeSet<&str> = names.filter(|name| syscalls::is_call(name)).collect();
        names.into_iter().map(Arc::from).collect()
    }

    fn syscall(&self, name: &str) -> Option<Vec<Parameter>> {
        syscalls::parameters(name)
    }

    fn cpus(&self) -> u32 {
        self.cpus
    }
}
