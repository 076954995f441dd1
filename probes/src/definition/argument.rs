//! Arguments as they are fetched.

use super::fetch::Fetch;
use super::value::ValueType;

/// One value of a hit, or several in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Argument {
    /// Name of its field.
    pub(crate) name: String,
    /// Where it comes from: nothing that has to be looked up in the kernel's symbols or types, any more.
    pub(crate) fetch: Fetch,
    /// What it is, or each of its elements.
    pub(crate) kind: ValueType,
    /// Of an array: how many elements.
    pub(crate) count: Option<u8>,
}

impl Argument {
    /// Its value is in a record's bytes: a text, or an array.
    pub(crate) fn is_in_bytes(&self) -> bool {
        !self.fetch.is_known_text() && (self.kind.is_text() || self.count.is_some())
    }

    /// Bytes that it has in a record of the tracer's.
    pub(crate) fn record_bytes(&self) -> usize {
        self.kind.record_bytes() * self.count.map_or(1, usize::from)
    }

    /// Numbers can be compared with it.
    pub(crate) fn is_number(&self) -> bool {
        self.count.is_none() && !self.kind.shows_text()
    }
}
