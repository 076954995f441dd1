//! The filter of an event, of which each of its probes has a copy.

use std::sync::Arc;

use arc_swap::ArcSwapOption;

use crate::definition::{Field, Filter, RefusedFilter, WrittenFilter};
use crate::seldom::Seldom;

/// An event's filter, or the one that was refused last.
#[derive(Debug, Default)]
pub(crate) struct EventFilter {
    /// The filter as written.
    written: ArcSwapOption<WrittenFilter>,
    /// The same filter over the fetched arguments; set when these are known.
    found: Seldom<Filter<Field>>,
    /// The filter that was refused, if none was set after it.
    refused: ArcSwapOption<RefusedFilter>,
}

impl EventFilter {
    pub(crate) fn new(written: Option<WrittenFilter>) -> Self {
        Self { written: ArcSwapOption::new(written.map(Arc::new)), ..Self::default() }
    }

    /// The filter as written.
    pub(crate) fn written(&self) -> Option<Arc<WrittenFilter>> {
        self.written.load_full()
    }

    /// The filter over the fetched arguments; `None` makes all hits events.
    #[inline]
    pub(crate) fn found(&self) -> Option<Arc<Filter<Field>>> {
        self.found.load()
    }

    /// The filter that was refused, if none was set after it.
    pub(crate) fn refused(&self) -> Option<Arc<RefusedFilter>> {
        self.refused.load_full()
    }

    /// Replaces the filter; `found` is the filter over the fetched arguments, once these are known.
    pub(crate) fn set(&self, written: Option<Arc<WrittenFilter>>, found: Option<Filter<Field>>) {
        self.written.store(written);
        self.set_found(found);
        self.refused.store(None);
    }

    /// Sets the filter over the fetched arguments, which are known now.
    pub(crate) fn set_found(&self, found: Option<Filter<Field>>) {
        self.found.store(found.map(Arc::new));
    }

    /// Removes the filter, and keeps the one that was refused in its place.
    pub(crate) fn refuse(&self, refused: Arc<RefusedFilter>) {
        self.set(None, None);
        self.refused.store(Some(refused));
    }
}
