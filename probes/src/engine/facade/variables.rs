//! The variables that a new histogram refers to. Those of other events' fields are set for it.

use std::cell::RefCell;
use std::sync::Arc;

use crate::engine::control::instances::EventName;
use crate::engine::control::registry::Registry;
use crate::engine::facade::subject::Subject;
use crate::events::TraceInstance;
use crate::synthetic::SyntheticDefinition;
use crate::trigger::{
    Expression, Fields, FoundVariable, HandlerError, Live, OtherField, TriggerError, Variable,
    VariableError, VariableName, Variables,
};

/// Most triggers of an event: each looks at every hit.
pub(super) const TRIGGERS_MAX: usize = 16;

/// The variables of the histograms at the top, or in a trace instance.
pub(super) struct VariablesOf<'a> {
    registry: &'a Registry,
    /// `None` at the top.
    of: Option<&'a TraceInstance>,
    /// Histograms for variables of the new one's handlers, which are to be set with it.
    made: RefCell<Vec<Made>>,
}

/// A histogram that is made for a handler of a new one.
pub(super) struct Made {
    /// Its event.
    pub(super) event: EventName,
    pub(super) live: Live,
}

impl<'a> VariablesOf<'a> {
    pub(super) fn new(registry: &'a Registry, of: Option<&'a TraceInstance>) -> Self {
        Self { registry, of, made: RefCell::default() }
    }

    /// The histograms that are to be set with the new one.
    pub(super) fn into_made(self) -> Vec<Made> {
        self.made.into_inner()
    }
}

impl Variables for VariablesOf<'_> {
    fn find(&self, name: &VariableName) -> Result<FoundVariable, VariableError> {
        let mut found: Option<FoundVariable> = None;
        let is_of = |(group, event): &EventName| {
            let of = name.event.as_ref();
            of.is_none_or(|(of, name)| (&**of, &**name) == (&**group, &**event))
        };
        let made = self.made.borrow();
        let made = made.iter().filter(|made| is_of(&made.event)).map(|made| &made.live);
        let there: Vec<Arc<Live>> = self
            .registry
            .triggered(self.of)
            .into_iter()
            .filter(|(event, _)| is_of(event))
            .flat_map(|(_, list)| list)
            .collect();
        let tables = there.iter().map(|live| &**live).chain(made).filter_map(Live::table);
        for other in tables.filter_map(|table| table.variable(&name.name)) {
            if found.as_ref().is_some_and(|found| !found.is_of_same(&other)) {
                return Err(VariableError::Ambiguous(name.name.clone()));
            }
            found = Some(other);
        }
        found.ok_or_else(|| VariableError::Unknown(name.clone()))
    }

    fn is_event(&self, group: &str, event: &str) -> bool {
        self.registry.has_event(group, event)
    }

    fn synthetic(&self, name: &str) -> Option<Arc<SyntheticDefinition>> {
        self.registry.synthetic_named(name).map(|found| Arc::clone(&found.definition))
    }

    fn field_of_other(&self, field: &OtherField<'_>) -> Result<FoundVariable, TriggerError> {
        let (group, event) = field.event;
        let Ok(subject) = Subject::find(self.registry, group, event) else {
            let (group, event) = (group.to_owned(), event.to_owned());
            let field = field.field.to_string();
            return Err(HandlerError::NoFieldEvent { group, event, field }.into());
        };
        let event = subject.full_name();
        let there = self.registry.triggers_at(self.of, &event);
        let is_alike =
            |live: &&Arc<Live>| live.table().is_some_and(|table| table.has_keys_like(field.keys));
        let Some(alike) = there.iter().find(is_alike) else {
            return Err(HandlerError::NoKeys(field.field.to_string()).into());
        };
        let name = field.variable();
        if let Ok(found) = self.find(&name) {
            return Ok(found);
        }
        let made = self.made.borrow().iter().filter(|made| made.event == event).count();
        if there.len() + made >= TRIGGERS_MAX {
            return Err(TriggerError::TooMany(TRIGGERS_MAX));
        }
        let value = Expression::Field(field.field.clone());
        let variable = Variable { name: name.name.clone(), value };
        let (list, is_return) = (subject.list(), subject.is_return());
        let live = alike.setting(variable, &Fields { list: &list, is_return, variables: self })?;
        subject.check_stack(&live)?;
        let found = live.table().and_then(|table| table.variable(&name.name));
        self.made.borrow_mut().push(Made { event, live });
        found.ok_or_else(|| VariableError::Unknown(name).into())
    }
}
