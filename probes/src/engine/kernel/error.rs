//! Why the guest's kernel cannot be probed.

use exoprobe_guest::VcpuError;
use exoprobe_guest::hidden::HiddenError;
use exoprobe_guest::paging::PagingError;
use exoprobe_introspect::{ExtableError, KallsymsError};

/// Why the guest's kernel cannot be probed at the moment.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The kernel has not set up its system calls and patched its text yet.
    #[error(
        "the guest's kernel is still booting (its text is not final yet): try again in a moment"
    )]
    Booting,
    /// The guest has stopped.
    #[error(
        "the guest has stopped: its memory and registers can be read, and `exoprobe vm reboot` boots it again"
    )]
    Stopped,
    /// The guest stopped before its kernel ran at its own addresses, so nothing can be read.
    #[error(
        "the guest stopped before its kernel had begun: `exoprobe vm console` shows its last messages"
    )]
    NeverBegan,
    /// The symbols are another kernel's.
    #[error(
        "the symbols are not of the kernel that runs: {0}; give the vmlinux or System.map of its own build"
    )]
    WrongSymbols(String),
    /// There are no symbols: none were given, and the kernel does not have its own.
    #[error(
        "the kernel does not show its symbols: {0}; start with --symbols VMLINUX or System.map"
    )]
    NoSymbols(#[from] KallsymsError),
    /// Hidden memory cannot be mapped.
    #[error(transparent)]
    Hidden(#[from] HiddenError),
    /// A vCPU did not answer.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// The guest's page tables do not map the kernel.
    #[error(transparent)]
    Paging(#[from] PagingError),
    /// Tables of the kernel that list special text could not be read.
    #[error("cannot read the kernel's table {table}: {reason}")]
    KernelTable {
        /// The table.
        table: &'static str,
        /// The reason.
        reason: String,
    },
    /// Its exception table could not be read.
    #[error(transparent)]
    Extable(#[from] ExtableError),
}
