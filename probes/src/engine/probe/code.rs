//! Code in hidden memory that a probe has.

use exoprobe_guest::Gva;

use crate::engine::patch::blocks::Allocation;

/// A piece of code, and what it alone has.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    /// Its first address, and the first behind.
    pub(crate) start: Gva,
    pub(crate) end: Gva,
    /// Where it is entered.
    pub(crate) entry: Gva,
    /// Where its doorbell is, and the displaced instructions.
    pub(crate) bell: Option<Gva>,
    pub(crate) displaced: Gva,
    pub(crate) piece: Allocation,
    /// Numbers of its blocks.
    pub(crate) blocks: Vec<u16>,
    /// The instances that its calls have.
    pub(crate) pool: Option<Allocation>,
}
