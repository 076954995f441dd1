//! The maps of a running script.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;

use crate::aggregate::Cell;
use crate::ir::MapInfo;
use crate::limits::{LimitError, limit};
use crate::types::{Aggregate, Type};
use crate::value::Value;

/// The memory that maps may take together: those of a script, or of several.
#[derive(Debug)]
pub struct MapBudget {
    /// Of the limit, as errors have it.
    name: &'static str,
    used: AtomicUsize,
    limit: usize,
}

impl MapBudget {
    /// A budget for the maps of several scripts, in bytes. Its limit is called `all_map_bytes`.
    #[must_use]
    pub fn of_scripts(limit: usize) -> Arc<Self> {
        Self::new("all_map_bytes", limit)
    }

    pub(crate) fn of_one(limit: usize) -> Arc<Self> {
        Self::new("map_bytes", limit)
    }

    fn new(name: &'static str, limit: usize) -> Arc<Self> {
        Arc::new(Self { name, used: AtomicUsize::new(0), limit })
    }

    /// Returns true if more than half of it is taken.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.limit / 2
    }

    /// Takes bytes, unless it has not so many.
    fn take(&self, bytes: usize) -> Result<(), LimitError> {
        let more = |used: usize| used.checked_add(bytes).filter(|all| *all <= self.limit);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map(|_| ()).map_err(|_| limit(self.name, self.limit))
    }

    fn add(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The budgets that a map's memory is of: its script's, and that of all scripts.
#[derive(Clone, Debug)]
pub(crate) struct MapBudgets {
    own: Arc<MapBudget>,
    all: Arc<MapBudget>,
}

impl MapBudgets {
    pub(crate) fn new(own: Arc<MapBudget>, all: Arc<MapBudget>) -> Self {
        Self { own, all }
    }
}

/// A map's part of the budgets, given back with it.
#[derive(Debug)]
struct Share {
    bytes: usize,
    budgets: MapBudgets,
}

impl Share {
    /// Takes bytes, unless a budget has not so many.
    fn take(&mut self, bytes: usize) -> Result<(), LimitError> {
        let MapBudgets { own, all } = &self.budgets;
        own.take(bytes)?;
        all.take(bytes).inspect_err(|_| own.give_back(bytes))?;
        self.bytes += bytes;
        Ok(())
    }

    /// Takes bytes that are in use already, whether or not the budgets have so many.
    fn add(&mut self, bytes: usize) {
        let MapBudgets { own, all } = &self.budgets;
        own.add(bytes);
        all.add(bytes);
        self.bytes += bytes;
    }

    fn give_back(&mut self, bytes: usize) {
        let MapBudgets { own, all } = &self.budgets;
        own.give_back(bytes);
        all.give_back(bytes);
        self.bytes -= bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(self.bytes);
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
    pub(crate) fn new(info: &MapInfo, limit: usize, budgets: MapBudgets) -> Self {
        let aggregate = match &info.value.ty {
            Type::Aggregate(aggregate) => Some(*aggregate),
            _ => None,
        };
        let is_counter = aggregate == Some(Aggregate::Count) && info.keys.is_empty();
        let mut entries = HashMap::new();
        if is_counter {
            entries.insert(Box::from([]), Cell::Count(0));
        }
        let share = Share { bytes: 0, budgets };
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

    fn map(own: &Arc<MapBudget>, all: &Arc<MapBudget>) -> MapStore {
        MapStore {
            entries: HashMap::new(),
            share: Share { bytes: 0, budgets: MapBudgets::new(Arc::clone(own), Arc::clone(all)) },
            limit: 100,
            aggregate: Some(Aggregate::Hist { bits: 0 }),
            is_counter: false,
        }
    }

    fn used(budget: &MapBudget) -> usize {
        budget.used.load(Ordering::Relaxed)
    }

    #[test]
    fn maps_of_all_scripts_have_a_budget_and_give_it_back_with_them() {
        let all = MapBudget::of_scripts(10_000);
        let owns = [(); 2].map(|()| MapBudget::of_one(8_000));
        let mut maps = owns.each_ref().map(|own| map(own, &all));
        let text = |len: usize| Value::Bytes(vec![0; len].into());
        maps[0].set(&[Value::Int(1)], text(6_000)).unwrap();
        let full = maps[1].set(&[Value::Int(1)], text(6_000)).unwrap_err();
        assert_eq!((full.name, full.limit, used(&owns[1])), ("all_map_bytes", 10_000, 0));
        maps[1].set(&[Value::Int(1)], text(2_000)).unwrap();
        assert_eq!(used(&all), used(&owns[0]) + used(&owns[1]));
        let [first, mut second] = maps;
        drop(first);
        assert_eq!((used(&all), used(&owns[0])), (used(&owns[1]), 0));
        second.set(&[Value::Int(2)], text(5_000)).unwrap();
        drop(second);
        assert_eq!(used(&all), 0);
    }

    #[test]
    fn maps_have_a_budget_in_bytes_and_give_it_back() {
        let (budget, all) = (MapBudget::of_one(4096), MapBudget::of_scripts(usize::MAX));
        let mut map = map(&budget, &all);
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
        assert_eq!(used(&budget), 0);
        for number in [1, 1 << 20, 1 << 40] {
            map.add(&key(1), number, 0).unwrap();
        }
        map.add(&[text(2000)], 1, 0).unwrap();
        assert_eq!(map.add(&[text(2000), Value::Int(1)], 1, 0).unwrap_err().name, "map_bytes");
        map.zero();
        assert!(map.delete(&key(1)) && map.delete(&[text(2000)]));
        assert_eq!((map.share.bytes, used(&budget), used(&all)), (0, 0, 0));
    }
}
