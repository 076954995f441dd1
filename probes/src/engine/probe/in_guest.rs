//! A return probe whose calls are followed in the guest. It has a pool of instances in hidden
//! memory, and code that its calls return to. From then on both the detour and the VMM take
//! instances from this pool, so that `maxactive` limits both together.

use exoprobe_guest::Gva;

use crate::detour::PoolMemory;
use crate::engine::probe::code::Code;

/// A return probe's pool and code within the guest.
pub(crate) struct InGuestReturns {
    pub(crate) pool: PoolMemory,
    /// The code that its calls return to. It rings the doorbell for calls that are not its pool's,
    /// and if the VMM must read a value.
    pub(crate) code: Code,
    /// The first stub: the part of `code` before it runs at returns.
    pub(crate) stubs: Gva,
    /// Offset that is added to the guest's time-stamp counter to get guest time.
    pub(crate) clock: u64,
}

impl InGuestReturns {
    /// Returns true if the address is in its code, stubs included.
    pub(crate) fn covers(&self, at: Gva) -> bool {
        (self.code.start..self.code.end).contains(&at)
    }
}
