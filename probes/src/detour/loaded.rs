//! The words of a detour's frame that values from memory are loaded into: one for each value, and
//! for each text its address and its length.

use super::ring::{ARGS_MAX, WORD};
use super::spec::Value;

/// Number of words that values from memory are loaded into.
pub(super) fn loads(values: &[Value]) -> i32 {
    let words: usize = values.iter().map(Value::words).sum();
    i32::try_from(words).expect("some hundred")
}

/// Most bytes that each text of a record has, a multiple of a word: what the other values leave.
pub(super) fn text_bytes(values: &[Value]) -> i32 {
    let texts = values.iter().filter(|value| value.is_text()).count();
    let words = ARGS_MAX.saturating_sub(values.len()) / texts.max(1);
    i32::try_from(words * WORD).expect("a record has some hundred bytes")
}

/// Returns true if each text of a record has room for a word at least.
pub(super) fn has_text_room(values: &[Value]) -> bool {
    !values.iter().any(Value::is_text) || text_bytes(values) > 0
}

/// The texts of a record whose loaded words begin at index `first`: the index of each, and that of
/// its address. Its length is after that.
pub(super) fn texts(first: i32, values: &[Value]) -> impl Iterator<Item = (usize, i32)> {
    let all = values.iter().enumerate().filter(|(_, value)| value.is_text());
    all.map(move |(index, _)| (index, first + loads(&values[..index])))
}
