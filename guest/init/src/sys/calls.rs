//! System calls that are made to be seen.

use super::{MAP_PRIVATE, Path, Result, address, map_with, nr, syscall};

/// Asks for the status of a file, and drops it.
pub(crate) fn stat(path: Path<'_>) -> Result<()> {
    // The kernel's `struct stat`.
    let mut status = [0_u64; 18];
    let pointer = status.as_mut_ptr().expose_provenance();
    // SAFETY: a `Path` holds a NUL; the kernel writes 144 bytes to `status`.
    unsafe { syscall(nr::STAT, [address(path.0.as_ptr()), pointer, 0, 0, 0, 0]) }.map(drop)
}

pub(crate) fn mkdir(path: Path<'_>) -> Result<()> {
    const MODE: usize = 0o755;
    // SAFETY: a `Path` holds a NUL, so the kernel reads only inside it.
    unsafe { syscall(nr::MKDIR, [address(path.0.as_ptr()), MODE, 0, 0, 0, 0]) }.map(drop)
}

/// Becomes a program, with its path as its only argument.
pub(crate) fn exec(path: Path<'_>) -> Result<()> {
    let arguments = [address(path.0.as_ptr()), 0];
    let environment = [0_usize];
    let (arguments, environment) = (address(arguments.as_ptr()), address(environment.as_ptr()));
    let path = address(path.0.as_ptr());
    // SAFETY: a `Path` holds a NUL; both lists end in a null pointer.
    unsafe { syscall(nr::EXECVE, [path, arguments, environment, 0, 0, 0]) }.map(drop)
}

/// Becomes user 0, that init is.
pub(crate) fn become_root() -> Result<()> {
    // SAFETY: no memory is involved.
    unsafe { syscall(nr::SETUID, [0; 6]) }.map(drop)
}

/// Asks whether a process is there.
pub(crate) fn kill_without_signal(pid: usize) -> Result<()> {
    // SAFETY: no memory is involved.
    unsafe { syscall(nr::KILL, [pid, 0, 0, 0, 0, 0]) }.map(drop)
}

/// Takes a MiB of memory for as long as this process lives.
pub(crate) fn take_memory() -> Result<()> {
    const MIB: usize = 1 << 20;
    const MAP_POPULATE: usize = 0x8000;
    map_with(MIB, MAP_PRIVATE | MAP_POPULATE).map(drop)
}
