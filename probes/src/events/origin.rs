//! Data that all events of one probe share.

use std::sync::Arc;

use exoprobe_guest::{GuestClock, Gva};
use exoprobe_introspect::SymbolTable;

use crate::definition::Argument;

/// Data that all events of one probe share.
pub(crate) struct Origin {
    pub(crate) group: Arc<str>,
    pub(crate) event: Arc<str>,
    /// The event's number: that of its first probe.
    pub(crate) event_id: u32,
    /// It is a synthetic event: it has no place.
    pub(crate) is_synthetic: bool,
    pub(crate) symbol_name: Option<Arc<str>>,
    pub(crate) offset: u64,
    pub(crate) at: Gva,
    /// The same as text.
    pub(crate) addr: Arc<str>,
    pub(crate) fields: Arc<[Argument]>,
    /// The kernel's symbols.
    pub(crate) symbols: Option<SymbolTable>,
    pub(crate) clock: GuestClock,
}
