//! Names like one that does not exist, for error messages.

use super::build::{SymbolRecord, Tables};

/// Most names suggested.
const SUGGESTIONS: usize = 3;
/// Longer names, in bytes, get no suggestions: no symbol is meant, and comparing would take long.
const MAX_QUERY: usize = 128;
/// Shortest name, in bytes, looked for as a part of others.
const MIN_PART: usize = 3;

/// Up to three names of `wanted` symbols like `name`, the likeliest first.
pub(super) fn near<'a>(
    tables: impl Iterator<Item = &'a Tables>,
    name: &str,
    wanted: impl Fn(&SymbolRecord) -> bool,
) -> Vec<String> {
    if name.is_empty() || name.len() > MAX_QUERY {
        return Vec::new();
    }
    let query = Query::new(name);
    let mut best: Vec<(usize, &str)> = Vec::with_capacity(SUGGESTIONS + 1);
    let named = |tables: &'a Tables| {
        tables.by_name_from("").filter(|entry| wanted(entry)).map(|entry| tables.name(entry))
    };
    for candidate in tables.flat_map(named) {
        // One name may stand for several symbols.
        if best.iter().any(|(_, known)| *known == candidate) {
            continue;
        }
        let Some(cost) = query.cost(candidate) else { continue };
        let place = best.partition_point(|(known, _)| *known <= cost);
        best.insert(place, (cost, candidate));
        best.truncate(SUGGESTIONS);
    }
    best.into_iter().map(|(_, candidate)| candidate.to_owned()).collect()
}

struct Query {
    /// In lower case.
    name: String,
    letters: u64,
    /// Most edits that still make a likely typing error.
    max_edits: usize,
}

impl Query {
    fn new(name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        let max_edits = (name.len() / 4).clamp(1, 3);
        Self { letters: letters(name.as_bytes()), name, max_edits }
    }

    /// How unlike `candidate` is, or `None` where it is nothing like it.
    fn cost(&self, candidate: &str) -> Option<usize> {
        let extra = candidate.len().abs_diff(self.name.len());
        let part = self.is_part_of(candidate).then_some(2 + extra / 4);
        match (self.edits(candidate, extra), part) {
            (Some(edits), Some(part)) => Some(part.min(2 * edits)),
            (edits, part) => edits.map(|edits| 2 * edits).or(part),
        }
    }

    fn is_part_of(&self, candidate: &str) -> bool {
        let (part, whole) = (self.name.as_bytes(), candidate.as_bytes());
        part.len() >= MIN_PART
            && part.len() <= whole.len()
            && whole.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part))
    }

    fn edits(&self, candidate: &str, extra: usize) -> Option<usize> {
        // One edit changes at most one letter of each set: the costly comparison is for few.
        let differing = (letters(candidate.as_bytes()) ^ self.letters).count_ones() as usize;
        if extra > self.max_edits || differing > 2 * self.max_edits {
            return None;
        }
        let edits = strsim::osa_distance(&self.name, &candidate.to_ascii_lowercase());
        (edits <= self.max_edits).then_some(edits)
    }
}

/// The set of bytes in a name, without regard to case; several bytes share a bit.
fn letters(name: &[u8]) -> u64 {
    name.iter().fold(0, |set, byte| set | 1 << (byte.to_ascii_lowercase() & 63))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_case_and_parts_cost_as_they_should() {
        let query = Query::new("vfs_raed");
        assert_eq!(query.cost("vfs_read"), Some(2));
        assert_eq!(query.cost("VFS_RAED"), Some(0));
        assert_eq!(query.cost("vfs_raed_more"), Some(3));
        assert_eq!(query.cost("schedule"), None);
        assert_eq!(Query::new("a").cost("ab"), Some(2), "one edit");
        assert_eq!(Query::new("ab").cost("xxabxx"), None, "too short to be a part");
    }
}
