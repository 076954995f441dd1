//! Values that the handlers of a histogram keep: in each entry the last value of each handler's
//! variable at which its action was done, and the saved fields of that hit.

use super::column::{Formula, HistColumn};
use super::entries::{HistogramKey, SavedValue, Tracked};
use super::error::{TriggerError, VariableError};
use super::expression::{Expression, Variable};
use super::handler::{Handler, HandlerAction, HandlerCondition, SavedField};
use super::variables::Resolver;
use crate::events::{FAULT, Hit};

/// A handler of a histogram, resolved in the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HandlerColumn {
    pub(super) condition: HandlerCondition,
    /// An index of the histogram's variables.
    variable: usize,
    /// The values to save; `None` if the action is a snapshot.
    saved: Option<Vec<SavedColumn>>,
}

/// A value to save.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SavedColumn {
    Text(HistColumn),
    Number(Formula),
}

/// A hit with what it makes of a histogram's variables.
pub(super) struct Occurrence<'a> {
    pub(super) hit: &'a Hit,
    /// Values of the references.
    pub(super) read: &'a [u64],
    /// Values of the histogram's own variables.
    pub(super) own: &'a [u64],
}

impl HandlerColumn {
    /// Resolves a handler of a histogram with these variables.
    pub(super) fn of(
        handler: &Handler,
        variables: &[Variable],
        resolver: &mut Resolver<'_>,
    ) -> Result<Self, TriggerError> {
        let variable = variables.iter().position(|variable| variable.name == handler.variable);
        let variable = variable.ok_or_else(|| VariableError::NotOwn(handler.variable.clone()))?;
        let saved = match &handler.action {
            HandlerAction::Save(saved) => {
                let saved = saved.iter().map(|field| SavedColumn::of(field, resolver));
                Some(saved.collect::<Result<_, _>>()?)
            }
            HandlerAction::Snapshot => None,
        };
        Ok(Self { condition: handler.condition, variable, saved })
    }

    pub(super) fn takes_snapshots(&self) -> bool {
        self.saved.is_none()
    }

    /// The most bytes of the values that an entry keeps for it.
    pub(super) fn most_bytes(&self) -> usize {
        let saved = self.saved.iter().flatten().map(SavedColumn::most_bytes);
        size_of::<u64>() + saved.sum::<usize>()
    }
}

impl SavedColumn {
    fn of(field: &SavedField, resolver: &mut Resolver<'_>) -> Result<Self, TriggerError> {
        if let Expression::Field(field) = &field.value {
            let column = resolver.field(field)?;
            column.check_saved()?;
            if !column.is_number() {
                return Ok(Self::Text(column));
            }
        }
        Ok(Self::Number(resolver.formula(&field.value, false)?.0))
    }

    fn value(&self, at: &Occurrence<'_>) -> SavedValue {
        match self {
            Self::Number(formula) => SavedValue::Number(formula.number(at.hit, at.read)),
            Self::Text(column) => SavedValue::Text(match column.key(at.hit) {
                HistogramKey::Text(text) => text,
                _ => FAULT.to_owned(),
            }),
        }
    }

    /// The value of an entry whose handler did nothing so far.
    fn first(&self) -> SavedValue {
        match self {
            Self::Number(_) => SavedValue::Number(0),
            Self::Text(_) => SavedValue::Text(String::new()),
        }
    }

    fn most_bytes(&self) -> usize {
        size_of::<SavedValue>()
            + match self {
                Self::Number(_) => 0,
                Self::Text(column) => column.most_bytes(),
            }
    }
}

impl Tracked {
    /// The values of an entry before its first hit.
    pub(super) fn of(handlers: &[HandlerColumn]) -> Self {
        let saved = handlers.iter().filter_map(|handler| handler.saved.as_ref()).flatten();
        let saved: Box<[SavedValue]> = saved.map(SavedColumn::first).collect();
        Self { values: vec![0; handlers.len()], saved: saved.into_vec() }
    }

    /// Does the actions of the handlers at a hit. Returns the value for which a snapshot is to be
    /// taken, and its condition.
    pub(super) fn update(
        &mut self,
        handlers: &[HandlerColumn],
        at: &Occurrence<'_>,
    ) -> Option<(HandlerCondition, u64)> {
        let mut snapshot = None;
        for (kept, handler) in self.values.iter_mut().zip(handlers) {
            let new = at.own.get(handler.variable).copied().unwrap_or_default();
            if !handler.condition.holds(*kept, new) {
                continue;
            }
            *kept = new;
            match &handler.saved {
                Some(columns) => self.saved = columns.iter().map(|c| c.value(at)).collect(),
                None => snapshot = Some((handler.condition, new)),
            }
        }
        snapshot
    }
}
