//! Arguments of a probe: finds the place of each value of a hit, by the kernel's symbols and types.
//!
//! Changes when the language of fetch arguments does. Touches only a definition: no guest, no
//! probe.

pub(crate) mod error;
pub(crate) mod filter;
pub(crate) mod finder;
pub(crate) mod legacy;
pub(crate) mod list;
pub(crate) mod rewrite;
#[cfg(test)]
mod tests;
