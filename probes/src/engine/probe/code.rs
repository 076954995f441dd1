//! A piece of code in hidden memory that a probe owns.

use exoprobe_guest::Gva;

use crate::engine::patch::blocks::Allocation;

/// A piece of code with its resources.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    /// Its first address, and the address after its last byte.
    pub(crate) start: Gva,
    pub(crate) end: Gva,
    /// Address of its entry.
    pub(crate) entry: Gva,
    /// Addresses of its doorbell and of the displaced instructions.
    pub(crate) bell: Option<Gva>,
    pub(crate) displaced: Gva,
    pub(crate) piece: Allocation,
    /// Numbers of its blocks.
    pub(crate) blocks: Vec<u16>,
    /// The pool of instances for its calls.
    pub(crate) pool: Option<Allocation>,
}
