//! The parts of a filter: one that code in the guest evaluates, and one over what it has recorded.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::definition::{Field, FieldValue, Filter, ValueType};
use crate::events::{Hit, field_value};

/// A filter in two parts. A hit is wanted if both accept it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SplitFilter {
    /// Evaluated in the guest, before room for a record is reserved.
    pub(crate) in_guest: Option<Filter<Field>>,
    /// Evaluated when the record is read: over texts, the task's name, the event's number,
    /// and bit-fields.
    pub(crate) later: Option<Filter<Field>>,
    /// Arguments that are addresses of users' texts which `later` compares: the record has these
    /// after its other values.
    pub(crate) user_texts: Vec<usize>,
}

/// The part of a filter that a record is still to pass.
pub(crate) struct LaterFilter {
    pub(crate) filter: Arc<Filter<Field>>,
    /// Users' texts at arguments; `None` for one that could not be read.
    pub(crate) user_texts: Vec<(usize, Option<Vec<u8>>)>,
}

impl LaterFilter {
    /// Returns true if it accepts the hit.
    pub(crate) fn accepts(&self, hit: &Hit) -> bool {
        let user_text = |index| {
            let (_, text) = self.user_texts.iter().find(|(of, _)| *of == index)?;
            text.clone().map(FieldValue::Text)
        };
        self.filter.holds(&mut |field| match field {
            Field::UserText { index } => user_text(index),
            other => field_value(other, hit),
        })
    }
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
        let user_texts = user_texts(filter);
        Self { in_guest: joined(in_guest), later: joined(later), user_texts }
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

/// The arguments that are addresses of users' texts which a filter compares, in order.
fn user_texts(filter: &Filter<Field>) -> Vec<usize> {
    let found = RefCell::new(BTreeSet::new());
    let _ = filter.asks_for(&|field| {
        if let Field::UserText { index } = field {
            found.borrow_mut().insert(index);
        }
        false
    });
    found.into_inner().into_iter().collect()
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
        let none = SplitFilter::default;
        let kind = ValueType::Unsigned(Width::Quad);
        let (one, other) = (number(0, kind), number(1, kind));
        let comm = text(Field::Comm);
        let in_guest =
            |filter: &Filter<Field>| SplitFilter { in_guest: Some(filter.clone()), ..none() };
        let later = |filter: &Filter<Field>| SplitFilter { later: Some(filter.clone()), ..none() };
        assert_eq!(SplitFilter::of(None), none());
        assert_eq!(split(&one), in_guest(&one));
        assert_eq!(split(&comm), later(&comm));
        let both = Filter::All(vec![one.clone(), other.clone()]);
        assert_eq!(split(&both), in_guest(&both));
        let mixed = Filter::All(vec![one.clone(), comm.clone(), other]);
        let expected = SplitFilter { in_guest: Some(both), later: Some(comm.clone()), ..none() };
        assert_eq!(split(&mixed), expected);
        let either = Filter::Any(vec![one.clone(), text(Field::Text { index: 1 })]);
        assert_eq!(split(&either), later(&either));
        let inverse = Filter::Not(Box::new(Filter::All(vec![one.clone(), comm])));
        assert_eq!(split(&inverse), later(&inverse));
        let user_text = |index| text(Field::UserText { index });
        let users = Filter::Any(vec![user_text(5), user_text(2), user_text(5)]);
        let expected = SplitFilter {
            in_guest: Some(one.clone()),
            later: Some(users.clone()),
            user_texts: vec![2, 5],
        };
        assert_eq!(split(&Filter::All(vec![one, users])), expected);
    }
}
