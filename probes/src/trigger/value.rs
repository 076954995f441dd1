//! Values that are kept of hits: those of variables, of saved fields and of synthetic events.

use super::column::{Formula, HistColumn, TEXT_MAX};
use super::entries::{HistogramKey, SavedValue};
use crate::events::{FAULT, Hit, STACK_DEPTH};
use crate::synthetic::TypeName;

/// Unit and type of an expression's number, and its value if it is constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NumberKind {
    /// It is in microseconds.
    pub(super) is_usecs: bool,
    /// Its value, if it is always the same.
    pub(super) constant: Option<u64>,
    /// Its type, for fields of synthetic events: that of the first operand.
    pub(super) type_name: TypeName,
}

/// Kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    Number(NumberKind),
    Text,
    Stack,
}

/// A value of hits, resolved in the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ValueColumn {
    pub(super) source: ValueSource,
    pub(super) kind: ValueKind,
}

/// Source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ValueSource {
    Number(Formula),
    /// A field that is a text or a back-trace, or a task's name.
    Field(HistColumn),
    /// A text or a back-trace: an index of the references.
    Reference(usize),
    /// An index of the histogram's own variables.
    Own(usize),
}

/// A hit, with the values of a histogram's variables at it.
pub(super) struct Occurrence<'a> {
    pub(super) hit: &'a Hit,
    /// Values of the references.
    pub(super) read: &'a [SavedValue],
    /// Values of the histogram's own variables.
    pub(super) own: &'a [SavedValue],
}

impl ValueKind {
    /// The value where there is none.
    fn empty(self) -> SavedValue {
        match self {
            Self::Number(_) => SavedValue::Number(0),
            Self::Text => SavedValue::Text(String::new()),
            Self::Stack => SavedValue::Stack(Vec::new()),
        }
    }

    /// The most bytes of a value, beside itself.
    fn most_bytes(self) -> usize {
        match self {
            Self::Number(_) => 0,
            Self::Text => TEXT_MAX,
            Self::Stack => STACK_DEPTH * size_of::<u64>(),
        }
    }
}

impl ValueColumn {
    pub(super) fn value(&self, at: &Occurrence<'_>) -> SavedValue {
        let kept = |all: &[SavedValue], index: usize| {
            all.get(index).cloned().unwrap_or_else(|| self.kind.empty())
        };
        match &self.source {
            ValueSource::Number(formula) => SavedValue::Number(formula.number(at.hit, at.read)),
            ValueSource::Field(column) => match column.key(at.hit) {
                HistogramKey::Text(text) | HistogramKey::Task(text, _) => SavedValue::Text(text),
                HistogramKey::Stack(stack) => SavedValue::Stack(stack),
                _ => SavedValue::Text(FAULT.to_owned()),
            },
            ValueSource::Reference(index) => kept(at.read, *index),
            ValueSource::Own(index) => kept(at.own, *index),
        }
    }

    /// The value of an entry that has none yet.
    pub(super) fn first(&self) -> SavedValue {
        self.kind.empty()
    }

    /// Returns true if it is the back-trace of the hit.
    pub(super) fn takes_stack(&self) -> bool {
        matches!(&self.source, ValueSource::Field(column) if column.takes_stack())
    }

    /// The most bytes of a value.
    pub(super) fn most_bytes(&self) -> usize {
        size_of::<Option<SavedValue>>() + self.kind.most_bytes()
    }
}

impl SavedValue {
    /// Its number; 0 of another value.
    pub(super) fn number(&self) -> u64 {
        match self {
            Self::Number(number) => *number,
            Self::Text(_) | Self::Stack(_) => 0,
        }
    }
}
