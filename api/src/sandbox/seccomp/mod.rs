//! Filters of system calls (seccomp(2)), one for each kind of thread. A call that a filter does not
//! allow ends the process with a message and status [`STATUS`].
//!
//! `policy` is data: the calls that each kind may make, and why. The rest is mechanism: `program`
//! compiles and installs filters, `trap` is the end. A thread inherits the filters of the one that
//! starts it, so the service's main thread installs its own before it starts others.

mod call;
mod kind;
mod kvm;
mod names;
mod policy;
mod program;
#[cfg(test)]
mod tests;
mod trap;

use std::io;
use std::sync::Arc;

use exoprobe_vmm::ThreadHook;
use libc::c_int;
use seccompiler::BackendError;

pub use kind::Kind;
use program::Program;
pub use trap::STATUS;

use crate::log::say;

/// Why there are no filters.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// The host's kernel has none.
    #[error(
        "this host's kernel cannot filter system calls (CONFIG_SECCOMP_FILTER): {0}; --no-seccomp runs without filters"
    )]
    Unsupported(io::Error),
    /// The handler of SIGSYS.
    #[error("cannot handle SIGSYS: {0}")]
    Handler(io::Error),
    /// A table of ours is wrong.
    #[error("cannot compile a filter of system calls: {0}")]
    Program(#[from] BackendError),
    /// The kernel refused.
    #[error("cannot give up privileges: {0}")]
    Privileges(io::Error),
}

/// Filters for the threads of this process, or none.
#[derive(Clone, Debug)]
pub struct Seccomp(Option<Arc<[(Kind, Program)]>>);

impl Seccomp {
    /// Threads go without filters.
    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    /// Compiles the filters of all kinds, and makes a forbidden call end the process with a
    /// message. No thread has a filter yet. The process must not fork after this.
    ///
    /// # Errors
    /// [`SeccompError`].
    pub fn prepare() -> Result<Self, SeccompError> {
        check_support().map_err(SeccompError::Unsupported)?;
        trap::install_handler().map_err(SeccompError::Handler)?;
        let program = |kind| Ok::<_, BackendError>((kind, Program::of(kind)?));
        let programs = Kind::all().into_iter().map(program).collect::<Result<_, _>>()?;
        Ok(Self(Some(programs)))
    }

    /// Installs the filters of a kind for this thread and those that it starts. Ends the process
    /// with a message where the kernel refuses: no thread goes on without its filters.
    pub fn enter(&self, kind: Kind) {
        let Some(programs) = &self.0 else { return };
        let found = programs.iter().find(|(other, _)| *other == kind);
        let (_, program) = found.expect("each kind has a program");
        trap::set_kind(kind);
        if let Err(error) = program.install() {
            say!("error: cannot filter the system calls of the thread {}: {error}", kind.name());
            std::process::exit(1);
        }
    }

    /// Returns false if threads go without.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// [`Self::enter`] for the threads of machines; `None` without filters.
    #[must_use]
    pub fn thread_hook(&self) -> Option<ThreadHook> {
        self.0.as_ref()?;
        let seccomp = self.clone();
        Some(Arc::new(move |kind| seccomp.enter(Kind::Machine(kind))))
    }
}

/// Forbids this thread, and those that it starts, to gain privileges by a program that they execute
/// (prctl(2), PR_SET_NO_NEW_PRIVS).
///
/// # Errors
/// [`SeccompError::Privileges`].
pub fn forbid_new_privileges() -> Result<(), SeccompError> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(SeccompError::Privileges)
}

/// Closes the memory of this process to other processes of its user, and leaves it out of core
/// dumps (prctl(2), PR_SET_DUMPABLE). Its files in `/proc` are root's then.
///
/// # Errors
/// [`SeccompError::Privileges`].
pub fn forbid_dumps() -> Result<(), SeccompError> {
    prctl(libc::PR_SET_DUMPABLE, 0).map_err(SeccompError::Privileges)
}

fn prctl(option: c_int, value: libc::c_ulong) -> io::Result<()> {
    let zero: libc::c_ulong = 0;
    // SAFETY: these options take numbers, and no memory.
    let result = unsafe { libc::prctl(option, value, zero, zero, zero) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether the kernel can send a signal in place of a call (seccomp(2), SECCOMP_GET_ACTION_AVAIL).
fn check_support() -> io::Result<()> {
    let action: u32 = libc::SECCOMP_RET_TRAP;
    let operation = libc::SECCOMP_GET_ACTION_AVAIL;
    // SAFETY: the call reads one `u32`, which lives across it.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, operation, 0, &raw const action) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
