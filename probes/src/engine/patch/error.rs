//! Errors of writing bytes for probes.

use exoprobe_guest::{Gva, OutsideMemory};

use crate::insn::AssembleError;

/// The reason why the guest's text was not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TextError {
    /// The text has other bytes than expected.
    #[error(
        "the guest changed its text at {at}: {found:#04x} where {expected:#04x} was expected; nothing was written"
    )]
    Clobbered {
        /// The address.
        at: Gva,
        /// The byte found.
        found: u8,
        /// The byte expected.
        expected: u8,
    },
    /// The text is outside the guest's memory.
    #[error(transparent)]
    Memory(#[from] OutsideMemory),
}

/// The reason why a displaced instruction has no slot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SlotError {
    /// The window is full; with its size in bytes.
    #[error("hidden memory for displaced instructions is used up ({0} bytes)")]
    Full(u64),
    /// Its code cannot be assembled.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
}
