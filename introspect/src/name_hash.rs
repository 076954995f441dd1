//! Positions of names in a list, by their hash.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

/// Positions of names in a list where equal names are neighbours. Names are the guest's: the hash
/// is keyed, so that none can be made to collide.
#[derive(Debug)]
pub(crate) struct NameHash {
    keys: RandomState,
    positions: HashTable<u32>,
}

impl NameHash {
    /// Of each name the first of its positions from 0 to `count`, as `name_at` returns them.
    pub(crate) fn of<'a>(count: usize, name_at: impl Fn(usize) -> &'a str) -> Self {
        let keys = RandomState::new();
        let mut positions = HashTable::with_capacity(count);
        let is_first = |at: &usize| *at == 0 || name_at(*at) != name_at(at - 1);
        for (number, at) in (0u32..).zip(0..count).filter(|(_, at)| is_first(at)) {
            let hash = |number: &u32| keys.hash_one(name_at(*number as usize));
            positions.insert_unique(keys.hash_one(name_at(at)), number, hash);
        }
        Self { keys, positions }
    }

    /// The first position whose name is `name`.
    pub(crate) fn find<'a>(&self, name: &str, name_at: impl Fn(usize) -> &'a str) -> Option<usize> {
        let is_it = |at: &u32| name_at(*at as usize) == name;
        self.positions.find(self.keys.hash_one(name), is_it).map(|at| *at as usize)
    }
}
