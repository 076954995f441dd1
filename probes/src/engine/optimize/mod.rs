//! Jump optimization: which sites may have a jmp, their detours, and the rings that detours write.
//!
//! Changes when detours can do more. Writes jmps while all vCPUs stand still. Knows no registry and
//! publishes no table: control does that between its steps.

pub(crate) mod candidate;
pub(crate) mod filter;
pub(crate) mod known_texts;
pub(crate) mod liveness;
pub(crate) mod making;
pub(crate) mod optimizer;
pub(crate) mod pass;
pub(crate) mod rings;
pub(crate) mod search;
pub(crate) mod space;
pub(crate) mod text_arrays;
pub(crate) mod text_info;
pub(crate) mod wanted;
