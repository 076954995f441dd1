//! Actions of a histogram's handlers at a hit. Each entry keeps the value of a handler's variable
//! at its last action, and the saved fields of that hit.

use std::sync::Arc;

use super::column::HistColumn;
use super::entries::{SavedValue, Tracked};
use super::error::{HandlerError, TriggerError, VariableError};
use super::expression::{Expression, VariableName};
use super::field::HistField;
use super::handler::{ActionParam, FieldOf, Handler, HandlerAction, HandlerCondition};
use super::value::{NumberKind, Occurrence, ValueColumn, ValueKind, ValueSource};
use super::variables::{OtherField, Resolver, VariableColumn};
use crate::synthetic::{SyntheticDefinition, SyntheticField, SyntheticType};

/// A handler of a histogram, resolved in the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HandlerColumn {
    pub(super) condition: HandlerCondition,
    /// An index of the histogram's variables.
    variable: Option<usize>,
    action: ActionColumn,
}

/// An action, resolved in the event.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ActionColumn {
    Save(Vec<ValueColumn>),
    Snapshot,
    Trace(Arc<SyntheticDefinition>, Vec<ValueColumn>),
}

/// A synthetic event that a handler makes.
pub(crate) struct MadeEvent {
    pub(crate) definition: Arc<SyntheticDefinition>,
    /// The values of its fields.
    pub(crate) values: Vec<SavedValue>,
}

/// Resolves handlers of a histogram with these variables and keys.
pub(super) struct HandlerResolver<'a, 'b> {
    pub(super) own: &'a [VariableColumn],
    pub(super) keys: &'a [HistColumn],
    pub(super) resolver: &'a mut Resolver<'b>,
}

impl HandlerResolver<'_, '_> {
    pub(super) fn handler(&mut self, handler: &Handler) -> Result<HandlerColumn, TriggerError> {
        let Handler { condition, action } = handler;
        if let HandlerCondition::Match { group, event } = condition
            && !self.resolver.variables.is_event(group, event)
        {
            return Err(HandlerError::NoEvent(event.clone()).into());
        }
        let variable = condition.variable().map(|name| self.compared(name)).transpose()?;
        let action = match action {
            HandlerAction::Save(params) => {
                let saved = params.iter().map(|param| self.saved(param));
                ActionColumn::Save(saved.collect::<Result<_, TriggerError>>()?)
            }
            HandlerAction::Snapshot => ActionColumn::Snapshot,
            HandlerAction::Trace { event, params, .. } => self.trace(condition, event, params)?,
        };
        Ok(HandlerColumn { condition: condition.clone(), variable, action })
    }

    fn own(&self, name: &str) -> Option<usize> {
        self.own.iter().position(|variable| variable.name == name)
    }

    /// The histogram's own variable that a handler compares.
    fn compared(&self, name: &str) -> Result<usize, VariableError> {
        let index = self.own(name).ok_or_else(|| VariableError::NotOwn(name.to_owned()))?;
        match self.own[index].value.kind {
            ValueKind::Number(_) => Ok(index),
            ValueKind::Text | ValueKind::Stack => Err(VariableError::NoNumber(name.to_owned())),
        }
    }

    /// A value to save.
    fn saved(&mut self, param: &ActionParam) -> Result<ValueColumn, TriggerError> {
        if let Expression::Field(field) = &param.value {
            self.resolver.field(field)?.check_saved()?;
        }
        let value = self.resolver.value(&param.value)?;
        match value.kind {
            ValueKind::Stack => Err(TriggerError::BadField {
                field: param.name.clone(),
                why: "a back-trace is not saved",
            }),
            ValueKind::Number(_) | ValueKind::Text => Ok(value),
        }
    }

    fn trace(
        &mut self,
        condition: &HandlerCondition,
        event: &str,
        params: &[ActionParam],
    ) -> Result<ActionColumn, TriggerError> {
        let definition = self.resolver.variables.synthetic(event);
        let definition = definition.ok_or_else(|| HandlerError::NoSynthetic(event.to_owned()))?;
        let mut columns = Vec::new();
        for (index, param) in params.iter().enumerate() {
            let (column, is_field) = self.traced(condition, param)?;
            let takes = |field: &SyntheticField| match (field.kind, column.kind) {
                (SyntheticType::Text(_), ValueKind::Text)
                | (SyntheticType::Stack(_), ValueKind::Stack) => true,
                (
                    SyntheticType::Number(of_field),
                    ValueKind::Number(NumberKind { type_name, .. }),
                ) => of_field.takes(type_name, is_field),
                _ => false,
            };
            if !definition.fields.get(index).is_some_and(takes) {
                return Err(HandlerError::OtherType(param.without_event().to_owned()).into());
            }
            columns.push(column);
        }
        match columns.len() == definition.fields.len() {
            true => Ok(ActionColumn::Trace(definition, columns)),
            false => Err(HandlerError::OtherCount(event.to_owned()).into()),
        }
    }

    /// A value for a synthetic event, and whether it is a field of the hit.
    fn traced(
        &mut self,
        condition: &HandlerCondition,
        param: &ActionParam,
    ) -> Result<(ValueColumn, bool), TriggerError> {
        let of_match = match condition {
            HandlerCondition::Match { group, event } => Some((group, event)),
            HandlerCondition::Max(_) | HandlerCondition::Change(_) => None,
        };
        let field = match &param.value {
            Expression::Variable(name) => return Ok((self.variable(name, of_match)?, false)),
            Expression::Field(field) => field,
            other => return Ok((self.resolver.value(other)?, true)),
        };
        match (&param.of, of_match) {
            (FieldOf::Event(group, event), _) => self.of_other((group, event), field),
            (FieldOf::Own, _) => Ok((self.resolver.value(&param.value)?, true)),
            (FieldOf::Any, of_match) => match (self.resolver.value(&param.value), of_match) {
                (Err(TriggerError::NoField { .. }), Some(of_match)) => {
                    self.of_other(of_match, field)
                }
                (found, _) => Ok((found?, true)),
            },
        }
    }

    /// A field of another event.
    fn of_other(
        &mut self,
        (group, event): (&String, &String),
        field: &HistField,
    ) -> Result<(ValueColumn, bool), TriggerError> {
        let field = OtherField { event: (group, event), field, keys: self.keys };
        let found = self.resolver.variables.field_of_other(&field)?;
        Ok((self.resolver.found(found, false), false))
    }

    /// A variable as a value for a synthetic event: one of the histogram's own, or of another one.
    fn variable(
        &mut self,
        name: &VariableName,
        of_match: Option<(&String, &String)>,
    ) -> Result<ValueColumn, TriggerError> {
        if let Some(own) = self.own(&name.name).filter(|_| name.event.is_none()) {
            let kind = self.own[own].value.kind;
            return Ok(ValueColumn { source: ValueSource::Own(own), kind });
        }
        let of_match = of_match.map(|(group, event)| (group.clone(), event.clone()));
        let event = name.event.clone().or(of_match);
        let found = VariableName { event, name: name.name.clone() };
        let found = self.resolver.variables.find(&found);
        let found = found.map_err(|_| HandlerError::NoParam(name.name.clone()))?;
        Ok(self.resolver.found(found, false))
    }
}

impl HandlerColumn {
    pub(super) fn takes_snapshots(&self) -> bool {
        self.action == ActionColumn::Snapshot
    }

    /// The values that its action takes of a hit.
    pub(super) fn values(&self) -> &[ValueColumn] {
        match &self.action {
            ActionColumn::Save(params) | ActionColumn::Trace(_, params) => params,
            ActionColumn::Snapshot => &[],
        }
    }

    fn saved(&self) -> &[ValueColumn] {
        match &self.action {
            ActionColumn::Save(params) => params,
            ActionColumn::Snapshot | ActionColumn::Trace(..) => &[],
        }
    }

    /// The most bytes of the values that an entry keeps for it.
    pub(super) fn most_bytes(&self) -> usize {
        let saved = self.saved().iter().map(ValueColumn::most_bytes);
        size_of::<u64>() + saved.sum::<usize>()
    }
}

impl Tracked {
    /// The values of an entry before its first hit.
    pub(super) fn of(handlers: &[HandlerColumn]) -> Self {
        let saved: Box<[SavedValue]> =
            handlers.iter().flat_map(HandlerColumn::saved).map(ValueColumn::first).collect();
        Self { values: vec![0; handlers.len()], saved: saved.into_vec() }
    }

    /// Does the actions of the handlers at a hit: adds the events that they make. Returns the value
    /// for which a snapshot is to be taken, and its condition.
    pub(super) fn update<'a>(
        &mut self,
        handlers: &'a [HandlerColumn],
        at: &Occurrence<'_>,
        made: &mut Vec<MadeEvent>,
    ) -> Option<(&'a HandlerCondition, u64)> {
        let mut snapshot = None;
        for (kept, handler) in self.values.iter_mut().zip(handlers) {
            let new = handler.variable.and_then(|index| at.own.get(index));
            let new = new.map_or(0, SavedValue::number);
            if !handler.condition.holds(*kept, new) {
                continue;
            }
            *kept = new;
            let values = |columns: &[ValueColumn]| columns.iter().map(|c| c.value(at)).collect();
            match &handler.action {
                ActionColumn::Save(columns) => self.saved = values(columns),
                ActionColumn::Snapshot => snapshot = Some((&handler.condition, new)),
                ActionColumn::Trace(definition, columns) => {
                    let (definition, values) = (Arc::clone(definition), values(columns));
                    made.push(MadeEvent { definition, values });
                }
            }
        }
        snapshot
    }
}
