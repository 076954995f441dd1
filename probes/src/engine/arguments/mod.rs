//! Arguments of a probe: finds, by the kernel's symbols and types, where each value of a hit is.
//!
//! Changes when the language of fetch arguments does. Touches nothing but a definition: no guest,
//! no probe.

pub(crate) mod error;
pub(crate) mod filter;
pub(crate) mod finder;
pub(crate) mod legacy;
pub(crate) mod list;
pub(crate) mod rewrite;
#[cfg(test)]
mod tests;
