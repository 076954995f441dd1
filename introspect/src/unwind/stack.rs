//! What walks of stacks read.

use exoprobe_guest::Gva;

/// Most frames of a walk.
pub const FRAMES_MAX: usize = 64;

/// Kernel addresses have this bit, user addresses do not (Documentation/arch/x86/x86_64/mm.rst).
pub(super) const KERNEL_HALF: u64 = 1 << 63;

/// The memory that a walk reads, and the original addresses where probes have changed them.
pub trait Stack {
    /// The word at an address; `None` where nothing is mapped.
    fn word(&self, at: Gva) -> Option<u64>;

    /// Returns the original return address of a call that has this return address on the stack.
    fn returns_to(&self, found: Gva) -> Gva {
        found
    }

    /// The instruction of the kernel's text that runs at this address.
    fn stands_for(&self, ip: Gva) -> Gva {
        ip
    }
}
