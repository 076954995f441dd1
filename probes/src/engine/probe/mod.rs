//! A probe and its place: the types that the hit path, the optimizer and control share.
//!
//! Changes when a probe has something new. Only atomics change counters, instances and settings: a
//! hit may read them at any time. Sites are immutable; control replaces them.

pub(crate) mod check;
pub(crate) mod code;
pub(crate) mod event_filter;
pub(crate) mod fetch;
pub(crate) mod handlers;
pub(crate) mod in_guest;
#[cfg(test)]
pub(crate) mod model;
pub(crate) mod registered;
pub(crate) mod site;
pub(crate) mod user_texts;
