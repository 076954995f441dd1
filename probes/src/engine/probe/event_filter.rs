//! The filter of an event, of which each of its probes has a copy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;

use crate::definition::{Field, Filter, RefusedFilter, WrittenFilter};

/// An event's filter, or the one that was refused last.
#[derive(Debug, Default)]
pub(crate) struct EventFilter {
    /// The filter as written.
    written: ArcSwapOption<WrittenFilter>,
    /// The same filter over the fetched arguments; set when these are known.
    found: ArcSwapOption<Filter<Field>>,
    /// Cached from `found`, so that a hit without a filter need not load it.
    is_found: AtomicBool,
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
    pub(crate) fn found(&self) -> Option<Arc<Filter<Field>>> {
        self.found.load_full()
    }

    /// Returns true if there may be a filter over the fetched arguments.
    #[inline]
    pub(crate) fn is_found(&self) -> bool {
        self.is_found.load(Ordering::Acquire)
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
        // A hit that sees the flag sees the filter.
        let is_found = found.is_some();
        if is_found {
            self.found.store(found.map(Arc::new));
        }
        self.is_found.store(is_found, Ordering::SeqCst);
        if !is_found {
            self.found.store(None);
        }
    }

    /// Removes the filter, and keeps the one that was refused in its place.
    pub(crate) fn refuse(&self, refused: Arc<RefusedFilter>) {
        self.set(None, None);
        self.refused.store(Some(refused));
    }
}
