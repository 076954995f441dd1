//! Actions of a histogram's handlers at a hit. Each entry keeps the value of a handler's variable
//! at its last action, and the saved fields of that hit.

use std::sync::Arc;

use super::column::{Formula, HistColumn};
use super::entries::{HistogramKey, SavedValue, Tracked};
use super::error::{HandlerError, TriggerError, VariableError};
use super::expression::{Expression, Variable, VariableName};
use super::handler::{ActionParam, Handler, HandlerAction, HandlerCondition};
use super::variables::Resolver;
use crate::events::{FAULT, Hit};
use crate::synthetic::{SyntheticDefinition, SyntheticField, SyntheticType, TypeName};

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
    Save(Vec<ParamColumn>),
    Snapshot,
    Trace(Arc<SyntheticDefinition>, Vec<ParamColumn>),
}

/// A value to take of a hit.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ParamColumn {
    Text(HistColumn),
    Number(Formula),
    /// One of the histogram's own variables.
    Own(usize),
}

/// A synthetic event that a handler makes.
pub(crate) struct MadeEvent {
    pub(crate) definition: Arc<SyntheticDefinition>,
    /// The values of its fields.
    pub(crate) values: Vec<SavedValue>,
}

/// A hit, with the values of a histogram's variables at it.
pub(super) struct Occurrence<'a> {
    pub(super) hit: &'a Hit,
    /// Values of the references.
    pub(super) read: &'a [u64],
    /// Values of the histogram's own variables.
    pub(super) own: &'a [u64],
}

/// Resolves handlers of a histogram with these variables.
pub(super) struct HandlerResolver<'a, 'b> {
    pub(super) variables: &'a [Variable],
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
        let variable = condition.variable().map(|name| {
            let index = self.own(name);
            index.ok_or_else(|| VariableError::NotOwn(name.to_owned()))
        });
        let action = match action {
            HandlerAction::Save(params) => {
                let saved = params.iter().map(|param| Ok(self.param(param)?.0));
                ActionColumn::Save(saved.collect::<Result<_, TriggerError>>()?)
            }
            HandlerAction::Snapshot => ActionColumn::Snapshot,
            HandlerAction::Trace { event, params, .. } => self.trace(condition, event, params)?,
        };
        Ok(HandlerColumn { condition: condition.clone(), variable: variable.transpose()?, action })
    }

    fn own(&self, name: &str) -> Option<usize> {
        self.variables.iter().position(|variable| variable.name == name)
    }

    /// A value of a hit, and the type of a number.
    fn param(
        &mut self,
        param: &ActionParam,
    ) -> Result<(ParamColumn, Option<TypeName>), TriggerError> {
        if let Expression::Field(field) = &param.value {
            let column = self.resolver.field(field)?;
            column.check_saved()?;
            if !column.is_number() {
                return Ok((ParamColumn::Text(column), None));
            }
        }
        let (formula, kind) = self.resolver.formula(&param.value, false)?;
        Ok((ParamColumn::Number(formula), Some(kind.type_name)))
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
            let (column, kind) = self.traced(condition, param)?;
            let takes = |field: &SyntheticField| match (field.kind, kind) {
                (SyntheticType::Text(_), None) => true,
                (SyntheticType::Number(of_field), Some((kind, is_field))) => {
                    of_field.takes(kind, is_field)
                }
                _ => false,
            };
            if !definition.fields.get(index).is_some_and(takes) {
                return Err(HandlerError::OtherType(param.name.clone()).into());
            }
            columns.push(column);
        }
        match columns.len() == definition.fields.len() {
            true => Ok(ActionColumn::Trace(definition, columns)),
            false => Err(HandlerError::OtherCount(event.to_owned()).into()),
        }
    }

    /// A value for a synthetic event, and of a number the type and whether it is a field.
    fn traced(
        &mut self,
        condition: &HandlerCondition,
        param: &ActionParam,
    ) -> Result<(ParamColumn, Option<(TypeName, bool)>), TriggerError> {
        let Expression::Variable(name) = &param.value else {
            let (column, kind) = self.param(param)?;
            return Ok((column, kind.map(|kind| (kind, true))));
        };
        if let Some(own) = self.own(&name.name).filter(|_| name.event.is_none()) {
            let kind = self.resolver.formula(&self.variables[own].value, false)?.1.type_name;
            return Ok((ParamColumn::Own(own), Some((kind, false))));
        }
        let of_match = match condition {
            HandlerCondition::Match { group, event } => Some((group.clone(), event.clone())),
            _ => None,
        };
        let event = name.event.clone().or(of_match);
        let found = Expression::Variable(VariableName { event, name: name.name.clone() });
        let (formula, kind) = self
            .resolver
            .formula(&found, false)
            .map_err(|_| HandlerError::NoParam(name.name.clone()))?;
        Ok((ParamColumn::Number(formula), Some((kind.type_name, false))))
    }
}

impl HandlerColumn {
    pub(super) fn takes_snapshots(&self) -> bool {
        self.action == ActionColumn::Snapshot
    }

    fn saved(&self) -> &[ParamColumn] {
        match &self.action {
            ActionColumn::Save(params) => params,
            ActionColumn::Snapshot | ActionColumn::Trace(..) => &[],
        }
    }

    /// The most bytes of the values that an entry keeps for it.
    pub(super) fn most_bytes(&self) -> usize {
        let saved = self.saved().iter().map(ParamColumn::most_bytes);
        size_of::<u64>() + saved.sum::<usize>()
    }
}

impl ParamColumn {
    fn value(&self, at: &Occurrence<'_>) -> SavedValue {
        match self {
            Self::Number(formula) => SavedValue::Number(formula.number(at.hit, at.read)),
            Self::Own(index) => SavedValue::Number(at.own.get(*index).copied().unwrap_or_default()),
            Self::Text(column) => SavedValue::Text(match column.key(at.hit) {
                HistogramKey::Text(text) => text,
                _ => FAULT.to_owned(),
            }),
        }
    }

    /// The value of an entry whose handler did nothing so far.
    fn first(&self) -> SavedValue {
        match self {
            Self::Number(_) | Self::Own(_) => SavedValue::Number(0),
            Self::Text(_) => SavedValue::Text(String::new()),
        }
    }

    fn most_bytes(&self) -> usize {
        size_of::<SavedValue>()
            + match self {
                Self::Number(_) | Self::Own(_) => 0,
                Self::Text(column) => column.most_bytes(),
            }
    }
}

impl Tracked {
    /// The values of an entry before its first hit.
    pub(super) fn of(handlers: &[HandlerColumn]) -> Self {
        let saved: Box<[SavedValue]> =
            handlers.iter().flat_map(HandlerColumn::saved).map(ParamColumn::first).collect();
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
            let new = handler.variable.and_then(|index| at.own.get(index).copied());
            let new = new.unwrap_or_default();
            if !handler.condition.holds(*kept, new) {
                continue;
            }
            *kept = new;
            let values = |columns: &[ParamColumn]| columns.iter().map(|c| c.value(at)).collect();
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
