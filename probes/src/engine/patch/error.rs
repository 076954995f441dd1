//! Why bytes could not be written for a probe.

use exoprobe_guest::{Gva, OutsideMemory};

use crate::insn::AssembleError;

/// Why the guest's text was not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TextError {
    /// Other bytes are there than expected.
    #[error(
        "the guest changed its text at {at}: {found:#04x} where {expected:#04x} was expected; nothing was written"
    )]
    Clobbered {
        /// Where.
        at: Gva,
        /// The byte there.
        found: u8,
        /// The byte that should be there.
        expected: u8,
    },
    /// The text is outside the guest's memory.
    #[error(transparent)]
    Memory(#[from] OutsideMemory),
}

/// Why a displaced instruction has no slot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SlotError {
    /// The window is full; it has so many bytes.
    #[error("hidden memory for displaced instructions is used up ({0} bytes)")]
    Full(u64),
    /// Its code cannot be assembled.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
}
