//! The parts of a filter: one that code in the guest evaluates, and one over what it has recorded.

use crate::definition::{Field, Filter, ValueType};

/// A filter in two parts. A hit is wanted if both accept it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SplitFilter {
    /// Evaluated in the guest, before room for a record is reserved.
    pub(crate) in_guest: Option<Filter<Field>>,
    /// Evaluated when the record is read: over texts, the task's name, the event's number,
    /// and bit-fields.
    pub(crate) later: Option<Filter<Field>>,
}

impl SplitFilter {
    /// Splits a filter, at its outermost `&&` alone.
    pub(crate) fn of(filter: Option<&Filter<Field>>) -> Self {
        let Some(filter) = filter else { return Self::default() };
        let all = match filter {
            Filter::All(all) => all.as_slice(),
            one => std::slice::from_ref(one),
        };
        let (later, in_guest) = all.iter().cloned().partition(needs_record);
        Self { in_guest: joined(in_guest), later: joined(later) }
    }
}

/// Returns true if the record is needed to evaluate it.
fn needs_record(filter: &Filter<Field>) -> bool {
    filter.asks_for(&|field| {
        let is_bits = matches!(field, Field::Arg { kind: ValueType::Bits(_), .. });
        is_bits
            || matches!(
                field,
                Field::Text { .. } | Field::UserText { .. } | Field::Comm | Field::Event
            )
    })
}

fn joined(mut all: Vec<Filter<Field>>) -> Option<Filter<Field>> {
    match all.len() {
        0 | 1 => all.pop(),
        _ => Some(Filter::All(all)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::{Comparison, TextTest, Width};

    fn number(index: usize, kind: ValueType) -> Filter<Field> {
        let (comparison, operand) = (Comparison::Equal, 7);
        Filter::Test { field: Field::Arg { index, kind }, comparison, operand }
    }

    fn text(field: Field) -> Filter<Field> {
        Filter::Match { field, test: TextTest { glob: false, not: false, text: "x".to_owned() } }
    }

    #[test]
    fn what_needs_the_record_is_evaluated_later() {
        let split = |filter: &Filter<Field>| SplitFilter::of(Some(filter));
        let kind = ValueType::Unsigned(Width::Quad);
        let (one, other) = (number(0, kind), number(1, kind));
        let comm = text(Field::Comm);
        let in_guest =
            |filter: &Filter<Field>| SplitFilter { in_guest: Some(filter.clone()), later: None };
        let later =
            |filter: &Filter<Field>| SplitFilter { in_guest: None, later: Some(filter.clone()) };
        assert_eq!(SplitFilter::of(None), SplitFilter::default());
        assert_eq!(split(&one), in_guest(&one));
        assert_eq!(split(&comm), later(&comm));
        let both = Filter::All(vec![one.clone(), other.clone()]);
        assert_eq!(split(&both), in_guest(&both));
        let mixed = Filter::All(vec![one.clone(), comm.clone(), other]);
        let expected = SplitFilter { in_guest: Some(both), later: Some(comm.clone()) };
        assert_eq!(split(&mixed), expected);
        let either = Filter::Any(vec![one.clone(), text(Field::Text { index: 1 })]);
        assert_eq!(split(&either), later(&either));
        let inverse = Filter::Not(Box::new(Filter::All(vec![one.clone(), comm])));
        assert_eq!(split(&inverse), later(&inverse));
        let user_text = text(Field::UserText { index: 5 });
        let expected = SplitFilter { in_guest: Some(one.clone()), later: Some(user_text.clone()) };
        assert_eq!(split(&Filter::All(vec![one, user_text])), expected);
    }
}
