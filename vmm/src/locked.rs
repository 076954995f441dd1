//! Guest memory that the host never writes to its swap.

use std::io;

use exoprobe_guest::addr::to_usize;
use exoprobe_guest::{GuestRam, HiddenMemory};
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

/// Why guest memory was not locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// This process may not lock so much.
    #[error(
        "--mlock: the guest needs {needed} KiB of locked memory, and this process may lock {limit} KiB \
         (RLIMIT_MEMLOCK): raise that by `ulimit -l {needed}`, or by LimitMEMLOCK= in a systemd unit"
    )]
    Limit {
        /// Memory of the guest, in KiB.
        needed: u64,
        /// The limit, in KiB.
        limit: u64,
    },
    /// The host refused.
    #[error("--mlock: cannot lock the guest's memory: {0}")]
    Host(io::Error),
}

/// Locks RAM and hidden memory: each page stays in the host's memory from its first access on
/// (mlock2(2), MLOCK_ONFAULT). RAM that is cleared has to be locked again.
///
/// # Errors
/// [`LockError`]; a part may be locked.
pub(crate) fn lock(ram: &GuestRam, hidden: &HiddenMemory) -> Result<(), LockError> {
    let regions = ram.as_vm_memory().iter().map(|region| (region.as_ptr(), region.len()));
    let all: Vec<_> = regions.chain([hidden.host_mapping()]).collect();
    let locked = all.iter().try_for_each(|(at, len)| {
        // SAFETY: to lock pages changes neither their content nor their access.
        let result =
            unsafe { libc::mlock2(at.cast_const().cast(), to_usize(*len), libc::MLOCK_ONFAULT) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    });
    locked.map_err(|error| {
        let (needed, limit) = (all.iter().map(|(_, len)| len >> 10).sum(), limit_kib());
        if limit < needed { LockError::Limit { needed, limit } } else { LockError::Host(error) }
    })
}

/// RLIMIT_MEMLOCK of this process.
fn limit_kib() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit writes the structure, which lives across the call.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    limit.rlim_cur >> 10
}
