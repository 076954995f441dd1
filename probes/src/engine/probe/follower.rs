//! A return probe whose calls are followed within the guest: it has a pool of instances in hidden
//! memory, and code that its calls return to. Once it has, both the detour and the VMM take
//! instances from there, so that `maxactive` holds for both together.

use exoprobe_guest::Gva;

use crate::detour::PoolMemory;
use crate::engine::probe::code::Code;

/// A return probe's pool and code within the guest.
pub(crate) struct Follower {
    pub(crate) pool: PoolMemory,
    /// What its calls return to. The doorbell is rung by those that are not its pool's, and where
    /// the VMM must read a value.
    pub(crate) code: Code,
    /// The first stub: what comes before it in `code` is run by returns.
    pub(crate) stubs: Gva,
    /// What is added to the guest's time-stamp counter to have its time.
    pub(crate) clock: u64,
}

impl Follower {
    /// Whether an address is in its code, or of it.
    pub(crate) fn covers(&self, at: Gva) -> bool {
        (self.code.start..self.code.end).contains(&at)
    }
}
