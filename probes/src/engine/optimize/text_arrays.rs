//! Arrays of texts in the records of detours, which know single texts alone.
//!
//! The first text of each has the argument's place. The others come after all other values, in the
//! order of the arguments.

use std::ops::Range;

use crate::definition::Argument;
use crate::detour::{GuestRecord, InBytes};
use crate::events::{TextList, TextPlace};

/// The values of a record that are one array of texts.
#[derive(Debug, PartialEq, Eq)]
struct TextArray {
    first: usize,
    others: Range<usize>,
}

impl TextArray {
    fn has(&self, value: usize) -> bool {
        value == self.first || self.others.contains(&value)
    }
}

/// The texts and arrays among the values of a record.
pub(crate) struct RecordBytes {
    pub(crate) places: Vec<InBytes>,
    text_arrays: Vec<TextArray>,
}

impl RecordBytes {
    /// Those of a record with so many values, of which those of the arguments come after `before`
    /// others.
    pub(crate) fn new(
        places: Vec<InBytes>,
        values: usize,
        (arguments, before): (&[Argument], usize),
    ) -> Self {
        let arrays = arguments.iter().enumerate().filter(|(_, arg)| arg.is_text_array());
        let others = |arg: &Argument| usize::from(arg.count.unwrap_or_default()).saturating_sub(1);
        let all: usize = arrays.clone().map(|(_, arg)| others(arg)).sum();
        let mut next = values.saturating_sub(all);
        let array = |(index, arg): (usize, &Argument)| {
            let start = next;
            next += others(arg);
            TextArray { first: before + index, others: start..next }
        };
        let text_arrays = arrays.map(array).collect();
        Self { places, text_arrays }
    }

    /// The values of a record, one for each argument, and its bytes: the value of a text or an
    /// array is its place among these, or none if it could not be read.
    pub(crate) fn values_of(&self, record: GuestRecord) -> (Vec<Option<u64>>, Vec<u8>) {
        let mut values: Vec<Option<u64>> = record.args.into_iter().map(Some).collect();
        let mut bytes = Vec::new();
        let mut put = |index: usize, found: Option<Vec<u8>>| {
            let place = found.and_then(|found| TextPlace::append(&mut bytes, &found));
            if let Some(value) = values.get_mut(index) {
                *value = place.map(TextPlace::word);
            }
        };
        let mut lists: Vec<TextList> =
            self.text_arrays.iter().map(|_| TextList::default()).collect();
        for (InBytes { index, .. }, found) in self.places.iter().zip(record.in_bytes) {
            match self.text_arrays.iter().position(|array| array.has(*index)) {
                Some(array) => lists[array].push(found.as_deref()),
                None => put(*index, found),
            }
        }
        for (array, list) in self.text_arrays.iter().zip(lists) {
            put(array.first, Some(list.into_bytes()));
        }
        if let Some(first) = self.text_arrays.first() {
            values.truncate(first.others.start);
        }
        (values, bytes)
    }
}

#[cfg(test)]
mod tests {
    use exoprobe_introspect::TaskId;

    use super::*;
    use crate::definition::{Fetch, ValueType};

    fn arg(kind: ValueType, count: Option<u8>) -> Argument {
        Argument { name: "a".to_owned(), fetch: Fetch::Stack(0), kind, count }
    }

    fn record(args: usize, in_bytes: &[Option<&str>]) -> GuestRecord {
        let bytes = |text: &Option<&str>| text.map(|text| text.as_bytes().to_vec());
        let (task, args) = (TaskId::default(), (0..args as u64).collect());
        GuestRecord {
            number: 0,
            time: 0,
            task,
            args,
            in_bytes: in_bytes.iter().map(bytes).collect(),
        }
    }

    /// The bytes of a value that is a text or an array.
    fn bytes(word: Option<u64>, all: &[u8]) -> Option<&[u8]> {
        TextPlace::of(word?, all)
    }

    #[test]
    fn texts_that_come_last_are_put_together_with_the_first_of_their_array() {
        let texts = |count| arg(ValueType::Text, Some(count));
        let number = || arg(ValueType::default(), None);
        // Two values before those of the arguments, and a text of a filter's after them.
        let list =
            [number(), texts(3), arg(ValueType::UserText, None), texts(1), texts(2), number()];
        let places = [3, 4, 5, 6, 8, 9, 10, 11].map(InBytes::text).to_vec();
        let shape = RecordBytes::new(places, 12, (&list, 2));
        let found = [Some("a0"), Some("user"), None, Some("c0"), Some("filter's"), Some(""), None];
        let (values, all) = shape.values_of(record(12, &[&found[..], &[Some("c1")]].concat()));
        assert_eq!(values.len(), 9);
        assert_eq!([values[0], values[1], values[2], values[7]], [0, 1, 2, 7].map(Some));
        assert_eq!(bytes(values[4], &all), Some(&b"user"[..]));
        assert_eq!(bytes(values[8], &all), Some(&b"filter's"[..]));
        for (value, texts) in [
            (3, vec![Some("a0"), Some(""), None]),
            (5, vec![None]),
            (6, vec![Some("c0"), Some("c1")]),
        ] {
            let mut list = TextList::default();
            texts.iter().for_each(|text| list.push(text.map(str::as_bytes)));
            assert_eq!(bytes(values[value], &all), Some(&list.into_bytes()[..]), "{value}");
        }
    }

    #[test]
    fn without_arrays_of_texts_each_value_is_one() {
        let list = [arg(ValueType::Text, None), arg(ValueType::default(), Some(4))];
        let places = vec![InBytes::text(0), InBytes { index: 1, array: Some(4) }];
        let shape = RecordBytes::new(places, 3, (&list, 0));
        let (values, all) = shape.values_of(record(3, &[None, Some("1234")]));
        assert_eq!((values[0], bytes(values[1], &all)), (None, Some(&b"1234"[..])));
        assert_eq!(values[2..], [Some(2)]);
    }
}
