//! The maps of a running script.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::aggregate::Cell;
use crate::ir::MapInfo;
use crate::limits::{LimitError, limit};
use crate::types::{Aggregate, Type};
use crate::value::Value;

/// A map's entries.
#[derive(Debug)]
pub(crate) struct MapStore {
    entries: HashMap<Box<[Value]>, Cell>,
    limit: usize,
    aggregate: Option<Aggregate>,
    /// A `count()` without keys: it has an entry from the start, which stays.
    is_counter: bool,
}

impl MapStore {
    pub(crate) fn new(info: &MapInfo, limit: usize) -> Self {
        let aggregate = match &info.value.ty {
            Type::Aggregate(aggregate) => Some(*aggregate),
            _ => None,
        };
        let is_counter = aggregate == Some(Aggregate::Count) && info.keys.is_empty();
        let mut entries = HashMap::new();
        if is_counter {
            entries.insert(Box::from([]), Cell::Count(0));
        }
        Self { entries, limit, aggregate, is_counter }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn contains(&self, keys: &[Value]) -> bool {
        self.entries.contains_key(keys)
    }

    /// The value of an entry; of an aggregate its number.
    pub(crate) fn get(&self, keys: &[Value]) -> Option<Value> {
        self.entries.get(keys).map(Cell::value)
    }

    pub(crate) fn cell(&self, keys: &[Value]) -> Option<&Cell> {
        self.entries.get(keys)
    }

    pub(crate) fn cells(&self) -> impl Iterator<Item = (&[Value], &Cell)> {
        self.entries.iter().map(|(keys, cell)| (&**keys, cell))
    }

    /// Keys and values as tuples, in the order of the keys.
    pub(crate) fn pairs(&self) -> Vec<Value> {
        let mut entries: Vec<(&[Value], &Cell)> = self.cells().collect();
        entries.sort_by(|one, other| one.0.cmp(other.0));
        let pair = |(keys, cell): (&[Value], &Cell)| {
            let key = match keys {
                [key] => key.clone(),
                keys => Value::Tuple(keys.into()),
            };
            Value::Tuple(Arc::from([key, cell.value()]))
        };
        entries.into_iter().map(pair).collect()
    }

    pub(crate) fn set(&mut self, keys: &[Value], value: Value) -> Result<(), LimitError> {
        match self.entries.get_mut(keys) {
            Some(cell) => *cell = Cell::Value(value),
            None => self.insert(keys, Cell::Value(value))?,
        }
        Ok(())
    }

    /// Adds a number to an aggregate.
    pub(crate) fn add(&mut self, keys: &[Value], number: i64, time: u64) -> Result<(), LimitError> {
        if let Some(cell) = self.entries.get_mut(keys) {
            cell.add(number, time);
            return Ok(());
        }
        let Some(aggregate) = self.aggregate else { return Ok(()) };
        let mut cell = Cell::new(aggregate);
        cell.add(number, time);
        self.insert(keys, cell)
    }

    fn insert(&mut self, keys: &[Value], cell: Cell) -> Result<(), LimitError> {
        if self.entries.len() >= self.limit {
            return Err(limit("map_entries", self.limit));
        }
        self.entries.insert(keys.into(), cell);
        Ok(())
    }

    pub(crate) fn delete(&mut self, keys: &[Value]) -> bool {
        if self.is_counter {
            self.zero();
            return true;
        }
        self.entries.remove(keys).is_some()
    }

    pub(crate) fn clear(&mut self) {
        if self.is_counter {
            return self.zero();
        }
        self.entries.clear();
    }

    pub(crate) fn zero(&mut self) {
        self.entries.values_mut().for_each(Cell::zero);
    }
}
