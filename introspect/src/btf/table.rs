//! The parsed types.

use super::id::TypeId;
use super::names::TypeNames;

/// Longest chain of types that refer to one another: those of kernels have some ten.
pub(super) const DEPTH_MAX: usize = 64;

/// All types of a kernel, by number and by name.
#[derive(Debug)]
pub struct Btf {
    /// The types, as BTF has them.
    pub(super) words: Vec<u32>,
    /// By number less one: where each begins in `words`.
    pub(super) starts: Vec<u32>,
    pub(super) strings: String,
    pub(super) names: TypeNames,
}

impl Btf {
    /// The text at an offset that was checked, up to its end.
    pub(super) fn string(&self, at: u32) -> &str {
        let rest = self.strings.get(at as usize..).unwrap_or_default();
        let len = memchr::memchr(0, rest.as_bytes()).unwrap_or(rest.len());
        rest.get(..len).unwrap_or_default()
    }

    pub(super) fn words_of(&self, id: TypeId) -> Option<&[u32]> {
        let index = (id.0 as usize).checked_sub(1)?;
        let start = *self.starts.get(index)? as usize;
        let end = self.starts.get(index + 1).map_or(self.words.len(), |end| *end as usize);
        self.words.get(start..end)
    }

    /// A type's own name; empty where it has none.
    #[must_use]
    pub fn name(&self, id: TypeId) -> &str {
        self.words_of(id).and_then(|words| words.first()).map_or("", |at| self.string(*at))
    }
}
