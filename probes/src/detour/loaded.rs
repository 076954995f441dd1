//! The words of a detour's frame that values from memory are loaded into: one for each value; for
//! each array its address, and for each text its address and its length.

use super::ring::{ARGS_MAX, WORD};
use super::spec::Value;

/// Number of words that values from memory are loaded into.
pub(super) fn loads(values: &[Value]) -> i32 {
    let words: usize = values.iter().map(Value::words).sum();
    i32::try_from(words).expect("some hundred")
}

/// Bytes of a record's arrays, each in whole words.
pub(super) fn array_bytes(values: &[Value]) -> i32 {
    i32::try_from(array_words(values) * WORD).expect("a record has some hundred bytes")
}

fn array_words(values: &[Value]) -> usize {
    let bytes = values.iter().filter_map(Value::array);
    bytes.map(|bytes| usize::from(bytes).div_ceil(WORD)).sum()
}

fn count_of_texts(values: &[Value]) -> usize {
    values.iter().filter(|value| value.is_text()).count()
}

/// Most bytes that each text of a record has, a multiple of a word: what the other values leave.
pub(super) fn text_bytes(values: &[Value]) -> i32 {
    let others = values.len() + array_words(values);
    let words = ARGS_MAX.saturating_sub(others) / count_of_texts(values).max(1);
    i32::try_from(words * WORD).expect("a record has some hundred bytes")
}

/// Returns true if a record has room for its values, for its arrays, and for a word at least of
/// each of its texts.
pub(super) fn has_room(values: &[Value]) -> bool {
    values.len() + array_words(values) + count_of_texts(values) <= ARGS_MAX
}

/// The values of a record that are in bytes: the index of each, and that of the word with its
/// address among the loaded ones, which begin at `first`. The length of a text is in the next word.
pub(super) fn in_bytes(first: i32, values: &[Value]) -> impl Iterator<Item = (usize, i32)> {
    let all = values.iter().enumerate().filter(|(_, value)| value.is_in_bytes());
    all.map(move |(index, _)| (index, first + loads(&values[..index])))
}
