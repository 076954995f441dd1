//! Open files that the process was started with.

use std::io;

use super::error::{JailError, step};

/// The first descriptor that is not standard input, output or error.
const FIRST: libc::c_uint = 3;

/// Closes all files that the program which started this one has left open in it.
///
/// # Errors
/// [`JailError`]: there is another thread, or the host refused.
pub(super) fn close_all() -> Result<(), JailError> {
    let threads = std::fs::read_dir("/proc/self/task").map_err(step("count threads"))?.count();
    if threads != 1 {
        return Err(JailError::Threads(threads));
    }
    // SAFETY: the program has opened no file so far that it still has: what it has read before
    // the jail is closed, and no other thread opens one. So nothing of it owns what is closed.
    match unsafe { libc::close_range(FIRST, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _ => Err(step("close inherited files")(io::Error::last_os_error())),
    }
}
