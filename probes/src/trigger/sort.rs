//! The order of a histogram's entries.

use std::cmp::Ordering;
use std::sync::Arc;

use super::column::HistColumn;
use super::command::SortKey;
use super::entries::{HistogramKey, KeySums};
use super::field::HITCOUNT_FIELD;
use super::hist::HistTable;

/// An entry: its keys, and its hits.
pub(super) type Entry = (Arc<[HistogramKey]>, KeySums);

impl HistTable {
    /// Puts entries into the order that the command requests.
    pub(super) fn sort(&self, entries: &mut [Entry]) {
        entries.sort_by(|a, b| self.order(a, b));
    }

    fn order(&self, a: &Entry, b: &Entry) -> Ordering {
        let by = |key: &SortKey| {
            let order = self.compare(&key.field, a, b);
            if key.descending { order.reverse() } else { order }
        };
        let chosen = self.hist.sort.iter().map(by).fold(Ordering::Equal, Ordering::then);
        // Makes the text the same each time.
        chosen.then_with(|| a.0.cmp(&b.0))
    }

    fn compare(&self, field: &str, a: &Entry, b: &Entry) -> Ordering {
        let is_it = |found: &HistColumn| found.field.name == field && field != HITCOUNT_FIELD;
        if let Some(value) = self.values.iter().position(is_it) {
            let sum = |entry: &KeySums| entry.sums.get(value).copied().unwrap_or_default();
            return match self.values[value].is_signed {
                true => sum(&a.1).cast_signed().cmp(&sum(&b.1).cast_signed()),
                false => sum(&a.1).cmp(&sum(&b.1)),
            };
        }
        match self.keys.iter().position(is_it) {
            Some(key) => a.0.get(key).cmp(&b.0.get(key)),
            None => a.1.hits.cmp(&b.1.hits),
        }
    }
}
