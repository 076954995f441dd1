//! The kernel of one guest, also before it runs: hints of the user, and facts once it runs.

use std::path::PathBuf;
use std::sync::Arc;

use exoprobe_guest::KernelEntry;
use exoprobe_introspect::NoModules;
use exoprobe_introspect::btf::NoTypes;
use exoprobe_introspect::modules::has_modules;
use exoprobe_introspect::{Banner, Btf, SymbolTable, VmCoreInfo};

use crate::engine::kernel::modules::Modules;
use crate::engine::kernel::running::Kernel;
use crate::engine::kernel::symbols::SymbolSource;

/// Facts about a guest's kernel that are given before it runs. All others are read from the guest's
/// memory once the kernel runs.
#[derive(Debug, Default)]
pub struct KernelHints {
    /// Its symbols as linked, without KASLR's slide.
    pub symbols: Option<SymbolTable>,
    /// Its types.
    pub types: Option<Btf>,
    /// Types that may be its own: used where the kernel has none in its memory, if its symbols do
    /// not contradict them.
    pub found_types: Option<FoundTypes>,
}

/// Types that were found near a kernel's file.
#[derive(Debug)]
pub struct FoundTypes {
    /// The types.
    pub types: Arc<Btf>,
    /// Their file, for messages.
    pub file: PathBuf,
}

/// A running kernel's description of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningKernel {
    /// Its banner.
    pub banner: Option<Banner>,
    /// Its notes for dumps; `None` of kernels that cannot be dumped.
    pub vmcoreinfo: Option<VmCoreInfo>,
}

impl RunningKernel {
    pub(crate) fn of(kernel: Option<&Kernel>) -> Self {
        let Some(kernel) = kernel else { return Self::default() };
        Self {
            banner: kernel.banner().ok().cloned(),
            vmcoreinfo: VmCoreInfo::read(&kernel.memory(), &kernel.symbols),
        }
    }
}

/// The kernel of a guest, also before it runs.
pub(crate) struct KernelState {
    /// The given symbols, as linked.
    pub(crate) symbols: Option<SymbolTable>,
    /// The given types of the kernel.
    pub(crate) types: Option<Arc<Btf>>,
    /// Types for a kernel without its own.
    found_types: Option<FoundTypes>,
    /// The running kernel, as far as it is known.
    pub(crate) running: Option<Arc<Kernel>>,
    /// The kernel's beginning, if the machine reported it.
    pub(crate) entry: Option<KernelEntry>,
    /// The kernel's own symbols, if none were given.
    own_symbols: Option<SymbolTable>,
    /// The kernel's own types, once they are needed.
    own_types: Option<Arc<Btf>>,
    /// The types found near the kernel's file are another kernel's, and this has been logged.
    found_foreign: bool,
    pub(crate) modules: Modules,
}

impl KernelState {
    pub(crate) fn new(given: KernelHints) -> Self {
        let KernelHints { symbols, types, found_types } = given;
        Self {
            symbols,
            types: types.map(Arc::new),
            found_types,
            running: None,
            entry: None,
            own_symbols: None,
            own_types: None,
            found_foreign: false,
            modules: Modules::default(),
        }
    }

    /// Drops the running kernel: the guest is booted again.
    pub(crate) fn reset(&mut self) {
        (self.running, self.entry) = (None, None);
        (self.own_symbols, self.own_types, self.found_foreign) = (None, None, false);
        self.modules = Modules::default();
    }

    pub(crate) fn symbol_source(&mut self) -> SymbolSource<'_> {
        SymbolSource { given: self.symbols.as_ref(), found: &mut self.own_symbols }
    }

    pub(crate) fn types(&mut self, kernel: &Kernel) -> Result<Arc<Btf>, NoTypes> {
        if let Some(types) = self.types.as_ref().or(self.own_types.as_ref()) {
            return Ok(Arc::clone(types));
        }
        let found = match Btf::read(&kernel.memory(), &kernel.symbols) {
            Ok(own) => {
                tracing::info!(types = own.len(), "types from the guest's memory");
                Arc::new(own)
            }
            Err(NoTypes::None) => self.own_found_types(kernel).ok_or(NoTypes::None)?,
            Err(error) => return Err(error),
        };
        Ok(Arc::clone(self.own_types.insert(found)))
    }

    /// The types found near the kernel's file, if they can be those of the running kernel.
    fn own_found_types(&mut self, kernel: &Kernel) -> Option<Arc<Btf>> {
        let found = self.found_types.as_ref().filter(|_| !self.found_foreign)?;
        let file = found.file.display();
        if let Err(reason) = found.types.check_kernel(&kernel.symbols) {
            self.found_foreign = true;
            tracing::warn!(
                "{file} is not used: {reason}; give this kernel's types with --btf FILE"
            );
            return None;
        }
        tracing::info!(types = found.types.len(), "types from {file}");
        Some(Arc::clone(&found.types))
    }

    /// Returns true if modules may come and go, as far as is known.
    pub(crate) fn may_have_modules(&self, kernel: &Kernel) -> bool {
        kernel.has_booted()
            && !matches!(self.modules, Modules::None(_))
            && has_modules(&kernel.symbols)
    }

    /// Whether a probe may wait for a module.
    ///
    /// # Errors
    /// [`NoModules`], if there will be none.
    pub(crate) fn can_wait_for_module(&self) -> Result<(), NoModules> {
        match &self.modules {
            Modules::None(why) => Err(why.clone()),
            Modules::Unknown | Modules::Known(..) => Ok(()),
        }
    }
}
