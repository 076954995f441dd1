//! Bytes that are written for probes: the guest's text, slots of displaced instructions, and blocks
//! of hidden memory.
//!
//! Changes when the way of writing does. Writes what callers ask for, where the expected bytes are
//! there; knows no probe.

pub(crate) mod blocks;
pub(crate) mod error;
pub(crate) mod slots;
pub(crate) mod text;
pub(crate) mod view;
