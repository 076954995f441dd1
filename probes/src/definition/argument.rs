//! Arguments with resolved places.

use super::fetch::Fetch;
use super::value::ValueType;

/// One value of a hit, or several in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Argument {
    /// Name of its field.
    pub(crate) name: String,
    /// Its source, without names that depend on the kernel's symbols or types.
    pub(crate) fetch: Fetch,
    /// Its type, or that of each element.
    pub(crate) kind: ValueType,
    /// For an array: number of elements.
    pub(crate) count: Option<u8>,
}

/// Most places of a back-trace that is a field.
const FRAMES_MAX: u8 = 32;

impl Argument {
    /// A back-trace as a field of synthetic events, whose records are made.
    pub(crate) fn of_stack(name: &str) -> Self {
        let (kind, count) = (ValueType::Symbol, Some(FRAMES_MAX));
        Self { name: name.to_owned(), fetch: Fetch::Constant(0), kind, count }
    }

    /// Returns true if it is a back-trace: no array is a constant.
    pub(crate) fn is_stack(&self) -> bool {
        self.count.is_some() && matches!(self.fetch, Fetch::Constant(_))
    }

    /// Returns true if its value is in a record's bytes: a text, or an array.
    pub(crate) fn is_in_bytes(&self) -> bool {
        !self.fetch.is_known_text() && (self.kind.is_text() || self.count.is_some())
    }

    /// Returns true if it is an array of texts: in memory are their addresses.
    pub(crate) fn is_text_array(&self) -> bool {
        self.is_in_bytes() && self.count.is_some() && self.kind.is_text()
    }

    /// Its size in a record of the tracer, in bytes.
    pub(crate) fn record_bytes(&self) -> usize {
        self.kind.record_bytes() * self.count.map_or(1, usize::from)
    }

    /// Returns true if it can be compared with numbers.
    pub(crate) fn is_number(&self) -> bool {
        self.count.is_none() && !self.kind.shows_text()
    }
}
