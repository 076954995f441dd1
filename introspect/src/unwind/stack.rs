//! What walks of stacks read.

use exoprobe_guest::Gva;

/// Most frames of a walk.
pub const FRAMES_MAX: usize = 64;

/// Kernel addresses have this bit, user addresses do not (Documentation/arch/x86/x86_64/mm.rst).
pub(super) const KERNEL_HALF: u64 = 1 << 63;

/// What a walk reads, and what it is told of addresses that probes have changed.
pub trait Stack {
    /// The word at an address; `None` where nothing is mapped.
    fn word(&self, at: Gva) -> Option<u64>;

    /// Where a call really returns to that has this return address.
    fn returns_to(&self, found: Gva) -> Gva {
        found
    }

    /// The instruction of the kernel's text that runs at this address.
    fn stands_for(&self, ip: Gva) -> Gva {
        ip
    }
}
