//! Variables of histograms, and the expressions that refer to them.
//!
//! A hit sets all variables of its entry. A histogram that refers to a variable counts a hit if the
//! other histogram has an entry of equal keys in which the variable is set. An operation reads a
//! variable once: it is unset then.

use std::sync::Arc;

use super::column::{Formula, HistColumn};
use super::entries::{Entries, HistogramKey, SavedValue, lock};
use super::error::{TriggerError, VariableError};
use super::expression::{Expression, Operator, Variable, VariableName};
use super::field::{HistField, Modifier};
use super::value::{NumberKind, ValueColumn, ValueKind, ValueSource};
use crate::definition::{Argument, ValueType, Width};
use crate::synthetic::{SyntheticDefinition, TypeName};

/// The begin of the names of variables that are set for parameters, as in the kernel.
const FIELD_PREFIX: &str = "synthetic_";

/// The variables of all histograms, and the events that handlers refer to.
pub(crate) trait Variables {
    /// Finds a variable.
    ///
    /// # Errors
    /// [`VariableError::Unknown`], [`VariableError::Ambiguous`].
    fn find(&self, name: &VariableName) -> Result<FoundVariable, VariableError>;

    /// Returns true if there is such an event.
    fn is_event(&self, group: &str, event: &str) -> bool;

    /// The synthetic event of a name.
    fn synthetic(&self, name: &str) -> Option<Arc<SyntheticDefinition>>;

    /// Finds a variable that is a field of another event, or sets it.
    ///
    /// # Errors
    /// [`HandlerError::NoFieldEvent`](super::HandlerError::NoFieldEvent),
    /// [`HandlerError::NoKeys`](super::HandlerError::NoKeys), [`TriggerError::TooMany`]; those of
    /// the histogram that sets it.
    fn field_of_other(&self, field: &OtherField<'_>) -> Result<FoundVariable, TriggerError>;
}

/// A field of another event than the histogram's, as a parameter of a handler's action.
pub(crate) struct OtherField<'a> {
    /// Group and name of the event.
    pub(crate) event: (&'a str, &'a str),
    pub(crate) field: &'a HistField,
    /// The keys of the handler's histogram.
    pub(crate) keys: &'a [HistColumn],
}

impl OtherField<'_> {
    /// The variable that is this field, in a histogram of the event.
    pub(crate) fn variable(&self) -> VariableName {
        let (group, event) = self.event;
        let event = Some((group.to_owned(), event.to_owned()));
        VariableName { event, name: format!("{FIELD_PREFIX}{}", self.field) }
    }
}

/// A variable of an existing histogram.
pub(crate) struct FoundVariable {
    entries: Entries,
    /// Number of the histogram's keys.
    keys: usize,
    index: usize,
    kind: ValueKind,
}

impl FoundVariable {
    pub(super) fn new(entries: &Entries, keys: usize, index: usize, kind: ValueKind) -> Self {
        Self { entries: Arc::clone(entries), keys, index, kind }
    }

    /// Returns true if both are of one histogram, or of histograms of one name.
    pub(crate) fn is_of_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.entries, &other.entries)
    }
}

/// A variable of a histogram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VariableColumn {
    pub(super) name: String,
    pub(super) value: ValueColumn,
}

/// A variable that a histogram refers to.
#[derive(Clone, Debug)]
pub(super) struct Reference {
    entries: Entries,
    keys: usize,
    index: usize,
    /// It is unset once it is read.
    read_once: bool,
}

impl PartialEq for Reference {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.entries, &other.entries)
            && (self.index, self.read_once) == (other.index, other.read_once)
    }
}

impl Reference {
    /// Reads the variable in the entry of these keys, if there is one in which it is set. As in the
    /// kernel, keys beyond those of that histogram do not count.
    pub(super) fn read(&self, keys: &[HistogramKey]) -> Option<SavedValue> {
        let keys = keys.get(..self.keys)?;
        let mut counted = lock(&self.entries);
        let value = counted.variables.get_mut(keys)?.get_mut(self.index)?;
        if self.read_once { value.take() } else { value.clone() }
    }

    pub(super) fn is_of(&self, entries: &Entries) -> bool {
        Arc::ptr_eq(&self.entries, entries)
    }
}

/// Resolves the expressions of a histogram.
pub(super) struct Resolver<'a> {
    pub(super) list: &'a [Argument],
    pub(super) is_return: bool,
    pub(super) variables: &'a dyn Variables,
    /// The variables that they refer to, each once.
    pub(super) references: Vec<Reference>,
}

impl Resolver<'_> {
    /// A key.
    pub(super) fn key(&mut self, key: &Expression) -> Result<HistColumn, TriggerError> {
        if key.has_variable() {
            return Err(VariableError::InKey(key.to_string()).into());
        }
        self.column(key)
    }

    /// A key or a value.
    pub(super) fn column(&mut self, expression: &Expression) -> Result<HistColumn, TriggerError> {
        match expression {
            Expression::Field(field) => self.field(field),
            _ => Ok(HistColumn::computed(expression.shown(), self.formula(expression, false)?.0)),
        }
    }

    /// A variable.
    pub(super) fn variable(&mut self, variable: &Variable) -> Result<VariableColumn, TriggerError> {
        let value = match &variable.value {
            // As in the kernel, it is the task's name.
            Expression::Field(field) if field.modifier == Modifier::Execname => {
                let source = ValueSource::Field(self.field(field)?);
                ValueColumn { source, kind: ValueKind::Text }
            }
            other => self.value(other)?,
        };
        if let ValueSource::Number(Formula::Field(column)) = &value.source {
            column.check_variable()?;
        }
        Ok(VariableColumn { name: variable.name.clone(), value })
    }

    /// A value, which may be a text or a back-trace.
    pub(super) fn value(&mut self, expression: &Expression) -> Result<ValueColumn, TriggerError> {
        match expression {
            Expression::Field(field) => {
                let column = self.field(field)?;
                if !column.is_number() {
                    let is_stack = column.is_stack();
                    let kind = if is_stack { ValueKind::Stack } else { ValueKind::Text };
                    return Ok(ValueColumn { source: ValueSource::Field(column), kind });
                }
            }
            Expression::Variable(name) => {
                let found = self.variables.find(name)?;
                return Ok(self.found(found, false));
            }
            _ => {}
        }
        let (formula, kind) = self.formula(expression, false)?;
        Ok(ValueColumn { source: ValueSource::Number(formula), kind: ValueKind::Number(kind) })
    }

    /// A field.
    pub(super) fn field(&self, field: &HistField) -> Result<HistColumn, TriggerError> {
        HistColumn::of(field, self.list, self.is_return)
    }

    /// An expression; `read_once` unsets variables that it reads.
    pub(super) fn formula(
        &mut self,
        expression: &Expression,
        read_once: bool,
    ) -> Result<(Formula, NumberKind), TriggerError> {
        Ok(match expression {
            Expression::Field(field) => {
                let column = self.field(field)?;
                if !column.is_number() {
                    return Err(VariableError::NoNumber(field.name.clone()).into());
                }
                let is_usecs = field.modifier == Modifier::Usecs;
                let kind = NumberKind { is_usecs, constant: None, type_name: column.type_name() };
                (Formula::Field(column), kind)
            }
            Expression::Constant(number) => {
                let constant = Some(*number);
                let type_name = TypeName::of(ValueType::Unsigned(Width::Quad));
                (Formula::Constant(*number), NumberKind { is_usecs: false, constant, type_name })
            }
            Expression::Variable(name) => {
                let found = self.variables.find(name)?;
                let ValueColumn { source, kind } = self.found(found, read_once);
                match (source, kind) {
                    (ValueSource::Number(formula), ValueKind::Number(kind)) => (formula, kind),
                    _ => return Err(VariableError::NoNumber(name.name.clone()).into()),
                }
            }
            Expression::Negated(operand) => {
                let (formula, kind) = self.formula(operand, false)?;
                let kind = NumberKind { constant: None, ..kind };
                (Formula::Negated(Box::new(formula)), kind)
            }
            Expression::Operation(one, operator, other) => {
                let (first, kind) = self.formula(one, true)?;
                let (second, other_kind) = self.formula(other, true)?;
                if kind.is_usecs != other_kind.is_usecs {
                    return Err(VariableError::Units(expression.to_string()).into());
                }
                if *operator == Operator::Divide && other_kind.constant == Some(0) {
                    return Err(VariableError::DivisionByZero(other.to_string()).into());
                }
                let formula = Formula::Operation(Box::new(first), *operator, Box::new(second));
                (formula, NumberKind { constant: None, ..kind })
            }
        })
    }

    /// A reference to a variable; `read_once` unsets it when it is read.
    pub(super) fn found(&mut self, found: FoundVariable, read_once: bool) -> ValueColumn {
        let FoundVariable { entries, keys, index, kind } = found;
        let new = Reference { entries, keys, index, read_once };
        let is_it = |known: &Reference| known.is_of(&new.entries) && known.index == index;
        let at = match self.references.iter().position(is_it) {
            Some(at) => {
                // Unset on reading if any use is an operand.
                self.references[at].read_once |= read_once;
                at
            }
            None => {
                self.references.push(new);
                self.references.len() - 1
            }
        };
        let source = match kind {
            ValueKind::Number(_) => ValueSource::Number(Formula::Reference(at)),
            ValueKind::Text | ValueKind::Stack => ValueSource::Reference(at),
        };
        ValueColumn { source, kind }
    }
}

/// The keys of an entry as the kernel compares them with those of other histograms: by their bytes.
/// Of several keys, a number has the bytes of its type alone.
pub(super) fn comparable_keys(keys: &[HistogramKey], columns: &[HistColumn]) -> Vec<HistogramKey> {
    let bytes = |(key, column): (&HistogramKey, &HistColumn)| {
        let number = match key {
            HistogramKey::Number(number) => *number,
            HistogramKey::Signed(number) => number.cast_unsigned(),
            HistogramKey::Task(_, pid) => (*pid).into(),
            HistogramKey::Text(_) | HistogramKey::Stack(_) | HistogramKey::Fault => {
                return key.clone();
            }
        };
        HistogramKey::Number(if keys.len() > 1 { number & column.mask() } else { number })
    };
    keys.iter().zip(columns).map(bytes).collect()
}
