//! Errors of reading modules, and limits of what is read.

use exoprobe_guest::Gva;

use crate::btf::{FieldError, NoTypes};
use crate::symbols::TableError;
use crate::virt::VirtualReadError;

/// Why a kernel's modules are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoModules {
    /// There is no list of them.
    #[error(
        "the kernel has no symbol `modules`: it takes no modules (CONFIG_MODULES), or shows only its functions \
        (CONFIG_KALLSYMS_ALL; then give its vmlinux or System.map with --symbols)"
    )]
    NoList,
    /// Its types are not known.
    #[error(transparent)]
    Types(#[from] NoTypes),
    /// Its types have no such member.
    #[error(
        "the kernel's types lack a member that is needed to find its modules: {0}; give those of its own build with --btf"
    )]
    Layout(#[from] FieldError),
    /// The types are inconsistent.
    #[error(
        "the kernel's types have an inconsistent struct module ({0}): give those of its own build with --btf"
    )]
    NoStruct(&'static str),
}

/// Reasons why the modules cannot be read: the guest's memory has no well-formed list of modules,
/// or it changed meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModuleError {
    /// A module's memory is not there.
    #[error("cannot read a module: {0}")]
    Read(#[from] VirtualReadError),
    /// The list leads to an address that is not the kernel's.
    #[error("the list of modules leads to {0}, which is no kernel address")]
    BadLink(Gva),
    /// The list does not come to its end.
    #[error("the list of modules is broken: after {MODULES_MAX} it does not come to its end")]
    Broken,
    /// An unknown state.
    #[error("the module at {at} is in the unknown state {state}")]
    BadState {
        /// Its address.
        at: Gva,
        /// The state's number.
        state: u32,
    },
    /// A name that no module has.
    #[error("the module at {0} has no name")]
    BadName(Gva),
    /// Text that is too large, no kernel's, or another's as well.
    #[error("the module {module} cannot have its text at {text}")]
    BadText {
        /// Its name.
        module: String,
        /// Where it says it is.
        text: Gva,
    },
    /// More symbols than a module has, or than all of them may have together.
    #[error("the modules have too many symbols: {module} says {count}")]
    TooManySymbols {
        /// The module whose symbols were too many.
        module: String,
        /// How many it has.
        count: u32,
    },
    /// The symbols do not form a table.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// Most modules: a distribution's kernel has some two hundred loaded.
pub const MODULES_MAX: usize = 4096;

/// Most symbols of one module; the largest have some 20,000.
pub const SYMBOLS_MAX: u32 = 1 << 16;

/// Most bytes of one module's text.
pub const TEXT_MAX: u64 = 64 << 20;

/// Longest name of a symbol, in bytes (KSYM_NAME_LEN of Linux 6.1 on).
pub(super) const SYMBOL_NAME_MAX: usize = 512;
