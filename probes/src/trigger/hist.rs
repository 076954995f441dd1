//! Histograms: hits counted by the values of their fields.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};

use super::column::{HistColumn, is_stack_field, listed_name};
use super::command::{Hist, HistChange, TriggerKind};
use super::entries::{
    Counted, Entries, HistogramKey, SavedValue, SnapshotTaken, Tracked, VariablesByKeys, lock,
};
use super::error::TriggerError;
use super::expression::{Expression, Variable, VariableName};
use super::field::Modifier;
use super::handler::{ActionParam, FieldOf, HandlerCondition};
use super::tracked::{HandlerColumn, HandlerResolver, MadeEvent};
use super::value::{Occurrence, ValueColumn};
use super::variables::{
    FoundVariable, Reference, Resolver, VariableColumn, Variables, comparable_keys,
};
use crate::budget::Share;
use crate::definition::Argument;
use crate::events::Hit;

/// Bytes of an entry beside its keys and sums: its place in a table that is half full at worst, and
/// the allocator's part of three blocks.
const ENTRY: usize = 192;
/// Bytes of what an entry keeps for handlers, beside the values: with the allocator's part of three
/// blocks.
const TRACKED: usize = 112;

/// A histogram of an event.
#[derive(Debug)]
pub(crate) struct HistTable {
    pub(crate) hist: Hist,
    pub(crate) keys: Vec<HistColumn>,
    pub(crate) values: Vec<HistColumn>,
    variables: Vec<VariableColumn>,
    /// The variables of other histograms that it refers to.
    references: Vec<Reference>,
    pub(super) handlers: Vec<HandlerColumn>,
    pub(crate) paused: AtomicBool,
    /// Those of one name have it together.
    counted: Entries,
}

impl TriggerKind {
    /// The same one with the names of fields by which triggers of the event are listed.
    pub(crate) fn with_listed_names(self, list: &[Argument]) -> Self {
        match self {
            Self::Hist(hist) => Self::Hist(hist.with_listed_names(list)),
            _ => self,
        }
    }

    /// The same one as a trigger of this event: its own variables that are fields, written with the
    /// event's name, stand for the fields.
    pub(crate) fn of_event(self, group: &str, event: &str) -> Self {
        match self {
            Self::Hist(hist) => Self::Hist(hist.of_event(group, event)),
            _ => self,
        }
    }
}

impl Hist {
    fn with_listed_names(mut self, list: &[Argument]) -> Self {
        let listed = |operand: &mut Expression| {
            if let Expression::Field(field) = operand {
                field.name = listed_name(&field.name, list).to_owned();
                // As in the kernel, only keys are listed with it.
                if field.modifier == Modifier::Stacktrace {
                    field.modifier = Modifier::None;
                }
            }
        };
        let params = self.handlers.iter_mut().flat_map(|handler| handler.action.params_mut());
        let of_hit = params.filter(|param| !matches!(param.of, FieldOf::Event(..)));
        of_hit.for_each(|param| listed(&mut param.value));
        let mut hist = self.with_operands(&listed);
        for key in &mut hist.keys {
            if let Expression::Field(field) = key
                && is_stack_field(&field.name, list)
            {
                field.modifier = Modifier::Stacktrace;
            }
        }
        hist
    }

    fn of_event(mut self, group: &str, event: &str) -> Self {
        let own = self.variables.clone();
        let field = |name: &VariableName| {
            let (of, event_of) = name.event.as_ref()?;
            let is_it = |variable: &&Variable| variable.name == name.name;
            let found = own.iter().find(is_it).filter(|_| of == group && event_of == event)?;
            matches!(found.value, Expression::Field(_)).then(|| found.value.clone())
        };
        let is_own = |of: &str, event_of: &str| of == group && event_of == event;
        let own_too = |param: &mut ActionParam| match (&param.of, &mut param.value) {
            (FieldOf::Event(group, event), _) if is_own(group, event) => param.of = FieldOf::Own,
            (_, Expression::Variable(VariableName { event: of, name })) => {
                let is_there = own.iter().any(|variable| variable.name == *name);
                if of.as_ref().is_some_and(|(group, event)| is_there && is_own(group, event)) {
                    *of = None;
                }
            }
            _ => {}
        };
        let making = self.handlers.iter_mut().filter(|handler| handler.action.makes().is_some());
        making.flat_map(|handler| handler.action.params_mut()).for_each(own_too);
        let as_field = |operand: &mut Expression| {
            let Expression::Variable(name) = &*operand else { return };
            if let Some(field) = field(name) {
                *operand = field;
            }
        };
        let saving = self.handlers.iter_mut().filter(|handler| handler.action.makes().is_none());
        let saved = saving.flat_map(|handler| handler.action.params_mut());
        saved.for_each(|param| as_field(&mut param.value));
        self.with_operands(&as_field)
    }

    /// The same one with other operands of keys, values and variables; its sort keys follow.
    fn with_operands(mut self, change: &impl Fn(&mut Expression)) -> Self {
        let all = |hist: &Self| [&hist.values[..], &hist.keys].concat();
        let before = all(&self);
        let variables = self.variables.iter_mut().map(|variable| &mut variable.value);
        let changed = self.keys.iter_mut().chain(&mut self.values).chain(variables);
        changed.for_each(|expression| expression.change_operands(change));
        let after = all(&self);
        for key in &mut self.sort {
            let at = before.iter().position(|expression| expression.is_sorted_as(&key.field));
            if let Some(at) = at {
                key.field = after[at].name();
            }
        }
        self
    }
}

impl HistTable {
    /// An empty one over the fields of an event.
    ///
    /// # Errors
    /// [`TriggerError::NoField`], [`TriggerError::BadField`], [`TriggerError::BadModifier`],
    /// [`TriggerError::NoValue`], [`TriggerError::Variable`].
    pub(crate) fn new(
        hist: &Hist,
        list: &[Argument],
        is_return: bool,
        variables: &dyn Variables,
    ) -> Result<Self, TriggerError> {
        let references = Vec::new();
        let mut resolver = Resolver { list, is_return, variables, references };
        // In the kernel's order: variables are read in it.
        let values = hist.values.iter().map(|value| resolver.column(value));
        let values: Vec<HistColumn> = values.collect::<Result<_, _>>()?;
        let own = hist.variables.iter().map(|variable| resolver.variable(variable));
        let own: Vec<VariableColumn> = own.collect::<Result<_, _>>()?;
        let keys = hist.keys.iter().map(|key| resolver.key(key));
        let keys: Vec<HistColumn> = keys.collect::<Result<_, _>>()?;
        let mut of = HandlerResolver { own: &own, keys: &keys, resolver: &mut resolver };
        let handlers = hist.handlers.iter().map(|handler| of.handler(handler));
        let handlers: Vec<HandlerColumn> = handlers.collect::<Result<_, _>>()?;
        let references = resolver.references;
        for (value, written) in values.iter().zip(&hist.values) {
            value.check_value(&written.shown())?;
        }
        keys.iter().try_for_each(HistColumn::check_key)?;
        if hist.no_hitcount && values.is_empty() {
            return Err(TriggerError::NoValue);
        }
        Ok(Self {
            paused: AtomicBool::new(hist.change == Some(HistChange::Pause)),
            hist: hist.clone().with_listed_names(list),
            keys,
            values,
            variables: own,
            references,
            handlers,
            counted: Arc::default(),
        })
    }

    /// The same one, with memory that is given back with its entries.
    pub(crate) fn within(self, room: Share) -> Self {
        self.counted()._room = Some(room);
        self
    }

    /// The same one, with the entries of another of its name.
    ///
    /// # Errors
    /// [`TriggerError::OtherOfName`].
    pub(crate) fn sharing(mut self, other: &Self) -> Result<Self, TriggerError> {
        let is_same = (&self.keys, &self.values, &self.hist.sort)
            == (&other.keys, &other.values, &other.hist.sort)
            && (&self.hist.variables, &self.variables, &self.references)
                == (&other.hist.variables, &other.variables, &other.references)
            && (&self.hist.handlers, &self.handlers) == (&other.hist.handlers, &other.handlers);
        if !is_same {
            return Err(TriggerError::OtherOfName(self.hist.name.unwrap_or_default()));
        }
        self.counted = Arc::clone(&other.counted);
        self.hist.size = other.hist.size;
        Ok(self)
    }

    /// The entries.
    pub(crate) fn counted(&self) -> MutexGuard<'_, Counted> {
        lock(&self.counted)
    }

    /// One of its variables.
    pub(crate) fn variable(&self, name: &str) -> Option<FoundVariable> {
        let index = self.variables.iter().position(|variable| variable.name == name)?;
        let kind = self.variables[index].value.kind;
        Some(FoundVariable::new(&self.counted, self.keys.len(), index, kind))
    }

    /// Returns true if it refers to variables of another one.
    pub(crate) fn refers_to(&self, other: &Self) -> bool {
        self.references.iter().any(|reference| reference.is_of(&other.counted))
    }

    /// Returns true if its keys are of the number and the types of other ones.
    pub(crate) fn has_keys_like(&self, keys: &[HistColumn]) -> bool {
        let is_alike = |(one, other): (&HistColumn, &HistColumn)| one.is_compared_as(other);
        self.keys.len() == keys.len() && self.keys.iter().zip(keys).all(is_alike)
    }

    /// The synthetic events that its handlers make.
    pub(crate) fn makes(&self) -> impl Iterator<Item = &str> {
        self.hist.handlers.iter().filter_map(|handler| handler.action.makes())
    }

    /// Number of its handlers that take snapshots.
    pub(crate) fn snapshot_handlers(&self) -> usize {
        self.handlers.iter().filter(|handler| handler.takes_snapshots()).count()
    }

    /// The most memory that the entries may take, in bytes.
    pub(crate) fn most_bytes(&self) -> usize {
        let keys: usize = self.keys.iter().map(HistColumn::most_bytes).sum();
        let sums = self.values.len() * size_of::<u64>();
        let size = usize::try_from(self.hist.size).unwrap_or(usize::MAX);
        let variables: usize =
            self.variables.iter().map(|variable| variable.value.most_bytes()).sum();
        let variables = if self.variables.is_empty() { 0 } else { ENTRY + keys + variables };
        let tracked: usize = self.handlers.iter().map(HandlerColumn::most_bytes).sum();
        let tracked = if self.handlers.is_empty() { 0 } else { TRACKED + tracked };
        size.saturating_mul(ENTRY + keys + sums + variables + tracked)
    }

    /// Drops all hits.
    pub(crate) fn clear(&self) {
        let mut counted = self.counted();
        (counted.entries, counted.variables) = Default::default();
        (counted.hits, counted.dropped, counted.snapshot) = (0, 0, None);
    }

    /// Returns true if it needs the back-trace of each hit.
    pub(crate) fn wants_stack(&self) -> bool {
        let is_stack = |value: &ValueColumn| value.takes_stack();
        self.keys.iter().any(HistColumn::takes_stack)
            || self.variables.iter().any(|variable| is_stack(&variable.value))
            || self.handlers.iter().any(|handler| handler.values().iter().any(is_stack))
    }

    /// Counts a hit, and adds the events that handlers make. Returns true if the trace is to go
    /// into the snapshot.
    pub(crate) fn add(&self, hit: &Hit, made: &mut Vec<MadeEvent>) -> bool {
        if self.paused.load(Ordering::Relaxed) {
            return false;
        }
        let key = self.key(hit);
        let uses_variables = !self.variables.is_empty() || !self.references.is_empty();
        let comparable =
            if uses_variables { comparable_keys(&key, &self.keys) } else { Vec::new() };
        // As in the kernel: variables read before an unset one stay consumed.
        let read = self.references.iter().map(|reference| reference.read(&comparable));
        let Some(read) = read.collect::<Option<Vec<SavedValue>>>() else { return false };
        let Counted { entries, variables, hits, dropped, snapshot, .. } = &mut *self.counted();
        *hits += 1;
        let has_room = entries.len() < usize::try_from(self.hist.size).unwrap_or(usize::MAX);
        if !has_room && !entries.contains_key(key.as_slice()) {
            *dropped += 1;
            return false;
        }
        let entry = match entries.get_mut(key.as_slice()) {
            Some(entry) => entry,
            None => entries.entry(key.into()).or_default(),
        };
        entry.hits += 1;
        entry.sums.resize(self.values.len(), 0);
        for (sum, value) in entry.sums.iter_mut().zip(&self.values) {
            *sum = sum.wrapping_add(value.number(hit, &read).unwrap_or_default());
        }
        let at = Occurrence { hit, read: &read, own: &[] };
        let own: Vec<SavedValue> =
            self.variables.iter().map(|variable| variable.value.value(&at)).collect();
        set_variables(variables, comparable, &own);
        let at = Occurrence { own: &own, ..at };
        if self.handlers.is_empty() {
            return false;
        }
        let tracked = entry.tracked.get_or_insert_with(|| Arc::new(Tracked::of(&self.handlers)));
        match Arc::make_mut(tracked).update(&self.handlers, &at, made) {
            Some((condition, new)) => self.takes_snapshot(snapshot, condition, new, hit),
            None => false,
        }
    }

    fn key(&self, hit: &Hit) -> Vec<HistogramKey> {
        self.keys.iter().map(|key| key.key(hit)).collect()
    }

    /// Returns true if a value holds a handler's condition for all entries together.
    fn takes_snapshot(
        &self,
        last: &mut Option<SnapshotTaken>,
        condition: &HandlerCondition,
        value: u64,
        hit: &Hit,
    ) -> bool {
        let holds = condition.holds(last.as_ref().map_or(0, |last| last.value), value);
        if holds {
            *last = Some(SnapshotTaken { value, keys: self.key(hit).into() });
        }
        holds
    }
}

fn set_variables(all: &mut VariablesByKeys, key: Vec<HistogramKey>, own: &[SavedValue]) {
    if own.is_empty() {
        return;
    }
    let values = own.iter().cloned().map(Some);
    match all.get_mut(key.as_slice()) {
        Some(there) => there.iter_mut().zip(values).for_each(|(old, new)| *old = new),
        None => drop(all.insert(key.into(), values.collect())),
    }
}
