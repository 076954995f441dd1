//! Data that all events of one probe share.

use std::sync::Arc;

use exoprobe_guest::{GuestClock, Gva};
use exoprobe_introspect::SymbolTable;

use crate::definition::Argument;
use crate::synthetic::SyntheticDefinition;

/// Data that all events of one probe share.
pub(crate) struct Origin {
    pub(crate) group: Arc<str>,
    pub(crate) event: Arc<str>,
    /// The event's number: that of its first probe.
    pub(crate) event_id: u32,
    /// The definition of a synthetic event, which has no place; `None` of all others.
    pub(crate) synthetic: Option<Arc<SyntheticDefinition>>,
    pub(crate) symbol_name: Option<Arc<str>>,
    pub(crate) offset: u64,
    pub(crate) at: Gva,
    /// The same as text.
    pub(crate) addr: Arc<str>,
    pub(crate) fields: Arc<[Argument]>,
    /// The arguments whose users' texts records may have after all values, for filters.
    pub(crate) user_texts: Arc<Vec<usize>>,
    /// The kernel's symbols.
    pub(crate) symbols: Option<SymbolTable>,
    pub(crate) clock: GuestClock,
}

impl Origin {
    /// Returns true if its symbols are these.
    pub(crate) fn has_symbols(&self, symbols: Option<&SymbolTable>) -> bool {
        match (&self.symbols, symbols) {
            (Some(had), Some(now)) => had.is_same(now),
            (had, now) => had.is_none() && now.is_none(),
        }
    }

    /// That of an event which is made, not fetched at a place.
    pub(crate) fn of_no_place(
        (group, event, event_id): (Arc<str>, Arc<str>, u32),
        fields: Arc<[Argument]>,
        clock: GuestClock,
    ) -> Self {
        Self {
            group,
            event,
            event_id,
            synthetic: None,
            symbol_name: None,
            offset: 0,
            at: Gva(0),
            addr: Gva(0).to_string().into(),
            fields,
            user_texts: Arc::default(),
            symbols: None,
            clock,
        }
    }
}
