//! Limits of the process (setrlimit(2)).

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};

use super::error::{JailError, step};

/// Sets the limits that are given.
///
/// # Errors
/// [`JailError::Step`].
pub(super) fn set(most_files: Option<u64>, file_size: Option<u64>) -> Result<(), JailError> {
    if let Some(most) = most_files {
        setrlimit(Resource::RLIMIT_NOFILE, most, most).map_err(step("limit open files"))?;
    }
    if let Some(bytes) = file_size {
        // A write beyond the limit is an error of that write, and does not end the service.
        // SAFETY: ignoring a signal runs no handler.
        unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.map_err(step("ignore SIGXFSZ"))?;
        setrlimit(Resource::RLIMIT_FSIZE, bytes, bytes).map_err(step("limit sizes of files"))?;
    }
    Ok(())
}
