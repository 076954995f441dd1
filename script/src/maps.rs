//! The maps of a running script.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;

use crate::aggregate::Cell;
use crate::ir::MapInfo;
use crate::limits::{LimitError, limit};
use crate::types::{Aggregate, Type};
use crate::value::Value;

/// The memory that a script's maps may take together.
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicUsize,
    limit: usize,
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), limit })
    }
}

/// A map's part of the budget. Maps are used under a lock, so no other change comes between.
#[derive(Debug)]
struct Share {
    bytes: usize,
    budget: Arc<Budget>,
}

impl Share {
    /// Takes bytes, unless the budget has not so many.
    fn take(&mut self, bytes: usize) -> Result<(), LimitError> {
        let Budget { used, limit: all } = &*self.budget;
        if used.load(Ordering::Relaxed).saturating_add(bytes) > *all {
            return Err(limit("map_bytes", *all));
        }
        self.add(bytes);
        Ok(())
    }

    /// Takes bytes that are in use already, whether or not the budget has so many.
    fn add(&mut self, bytes: usize) {
        self.budget.used.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
    }

    fn give_back(&mut self, bytes: usize) {
        self.budget.used.fetch_sub(bytes, Ordering::Relaxed);
        self.bytes -= bytes;
    }
}

/// A map's entries.
#[derive(Debug)]
pub(crate) struct MapStore {
    entries: HashMap<Box<[Value]>, Cell>,
    /// Of the entries.
    share: Share,
    limit: usize,
    aggregate: Option<Aggregate>,
    /// A `count()` without keys: it has an entry from the start, which stays.
    is_counter: bool,
}

impl MapStore {
    pub(crate) fn new(info: &MapInfo, limit: usize, budget: Arc<Budget>) -> Self {
        let aggregate = match &info.value.ty {
            Type::Aggregate(aggregate) => Some(*aggregate),
            _ => None,
        };
        let is_counter = aggregate == Some(Aggregate::Count) && info.keys.is_empty();
        let mut entries = HashMap::new();
        if is_counter {
            entries.insert(Box::from([]), Cell::Count(0));
        }
        let share = Share { bytes: 0, budget };
        Self { entries, share, limit, aggregate, is_counter }
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
        let cell = Cell::Value(value);
        let Some(known) = self.entries.get_mut(keys) else { return self.insert(keys, cell) };
        let (before, after) = (known.heap_bytes(), cell.heap_bytes());
        self.share.take(after.saturating_sub(before))?;
        self.share.give_back(before.saturating_sub(after));
        *known = cell;
        Ok(())
    }

    /// Adds a number to an aggregate.
    pub(crate) fn add(&mut self, keys: &[Value], number: i64, time: u64) -> Result<(), LimitError> {
        if let Some(cell) = self.entries.get_mut(keys) {
            let before = cell.heap_bytes();
            cell.add(number, time);
            let grown = cell.heap_bytes() - before;
            // It has grown already: that it is too much ends the run, and its bytes count.
            return self.share.take(grown).inspect_err(|_| self.share.add(grown));
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
        self.share.take(entry_bytes(keys, &cell))?;
        self.entries.insert(keys.into(), cell);
        Ok(())
    }

    pub(crate) fn delete(&mut self, keys: &[Value]) -> bool {
        if self.is_counter {
            self.zero();
            return true;
        }
        let Some((keys, cell)) = self.entries.remove_entry(keys) else { return false };
        self.share.give_back(entry_bytes(&keys, &cell));
        true
    }

    pub(crate) fn clear(&mut self) {
        if self.is_counter {
            return self.zero();
        }
        self.entries.clear();
        self.share.give_back(self.share.bytes);
    }

    pub(crate) fn zero(&mut self) {
        let of_cells = |entries: &HashMap<_, Cell>| entries.values().map(Cell::heap_bytes).sum();
        let before: usize = of_cells(&self.entries);
        self.entries.values_mut().for_each(Cell::zero);
        self.share.give_back(before - of_cells(&self.entries));
    }
}

/// Bytes of an entry, with those on the heap.
fn entry_bytes(keys: &[Value], cell: &Cell) -> usize {
    let of_keys =
        |keys: &[Value]| size_of_val(keys) + keys.iter().map(Value::heap_bytes).sum::<usize>();
    size_of::<(Box<[Value]>, Cell)>() + of_keys(keys) + cell.heap_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(limit: usize) -> (MapStore, Arc<Budget>) {
        let budget = Budget::new(limit);
        let aggregate = Some(Aggregate::Hist { bits: 0 });
        let map = MapStore {
            entries: HashMap::new(),
            share: Share { bytes: 0, budget: Arc::clone(&budget) },
            limit: 100,
            aggregate,
            is_counter: false,
        };
        (map, budget)
    }

    #[test]
    fn maps_have_a_budget_in_bytes_and_give_it_back() {
        let (mut map, budget) = map(4096);
        let key = |number: i64| [Value::Int(number)];
        let text = |len: usize| Value::Bytes(vec![0; len].into());
        map.set(&key(1), text(1000)).unwrap();
        map.set(&key(1), text(10)).unwrap();
        map.set(&key(2), text(1000)).unwrap();
        map.set(&[text(1000)], Value::Int(1)).unwrap();
        let full = map.set(&key(3), text(2000)).unwrap_err();
        assert_eq!((full.name, full.limit), ("map_bytes", 4096));
        assert_eq!(map.set(&key(1), text(3000)).unwrap_err().name, "map_bytes");
        assert_eq!((map.len(), map.get(&key(1)).unwrap().bytes().len()), (3, 10), "as before");
        assert!(map.delete(&[text(1000)]) && !map.delete(&key(9)));
        map.set(&key(3), text(1500)).unwrap();
        map.clear();
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
        for number in [1, 1 << 20, 1 << 40] {
            map.add(&key(1), number, 0).unwrap();
        }
        map.add(&[text(2000)], 1, 0).unwrap();
        assert_eq!(map.add(&[text(2000), Value::Int(1)], 1, 0).unwrap_err().name, "map_bytes");
        map.zero();
        assert!(map.delete(&key(1)) && map.delete(&[text(2000)]));
        assert_eq!((map.share.bytes, budget.used.load(Ordering::Relaxed)), (0, 0));
    }
}
