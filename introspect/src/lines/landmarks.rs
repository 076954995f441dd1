//! Functions that identify a file as the running kernel's.

use exoprobe_guest::Gva;

use crate::symbols::{SymbolKind, SymbolTable, TextKind};

/// How many are looked for.
const COUNT: usize = 256;
/// One in so many of them has to be among the kernel's symbols: it may have left some out.
const LEAST: usize = 4;

/// Some of a file's functions, spread over its names, each at one address.
#[derive(Debug, Default)]
pub(super) struct Landmarks(Vec<(String, Gva)>);

impl Landmarks {
    /// Of symbols as they were linked.
    pub(super) fn of(linked: &SymbolTable) -> Self {
        let is_landmark = |symbol: &crate::Symbol<'_>| {
            symbol.kind == SymbolKind::Function
                && linked.text_kind(symbol.address) == Some(TextKind::Core)
                && linked.address_of(symbol.name).is_some()
        };
        let each = linked.len().div_ceil(COUNT).max(1);
        let mut found = Vec::new();
        let mut next = 0;
        for (at, symbol) in linked.iter().enumerate() {
            if at >= next && is_landmark(&symbol) {
                found.push((symbol.name.to_owned(), symbol.address));
                next = at + each;
            }
        }
        Self(found)
    }

    /// The one distance of all of them that the kernel has; else the first that has another, or is
    /// missing.
    pub(super) fn slide(&self, running: &SymbolTable) -> Result<i64, &str> {
        let mut slide = None;
        let (mut found, mut missing) = (0, None);
        for (name, linked) in &self.0 {
            let Some(address) = running.address_of(name) else {
                missing = missing.or(Some(name));
                continue;
            };
            found += 1;
            let distance = address.0.wrapping_sub(linked.0).cast_signed();
            if *slide.get_or_insert(distance) != distance {
                return Err(name);
            }
        }
        let enough = found * LEAST >= self.0.len();
        slide.filter(|_| enough).ok_or(missing.map_or("every function", String::as_str))
    }
}
