//! Writes bytes for probes: the guest's text, slots of displaced instructions, and blocks of hidden
//! memory.
//!
//! Changes when the method of writing does. Writes what callers ask for if the expected bytes are
//! there. Knows no probe.

pub(crate) mod blocks;
pub(crate) mod error;
pub(crate) mod shown;
pub(crate) mod slots;
pub(crate) mod text;
pub(crate) mod view;
