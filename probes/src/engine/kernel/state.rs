//! What is known of a guest's kernel before it runs, and from when it does.

use std::path::PathBuf;
use std::sync::Arc;

use exoprobe_introspect::{Banner, Btf, SymbolTable, VmCoreInfo};

use crate::engine::kernel::running::Kernel;

/// What is known of a guest's kernel before it runs. What is not given is read from the guest's memory, as soon as the
/// kernel runs.
#[derive(Debug, Default)]
pub struct Given {
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

/// What a running kernel says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningKernel {
    /// Its banner.
    pub banner: Option<Banner>,
    /// What it notes down for dumps; `None` of kernels that cannot be dumped.
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
