//! Types by name.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::id::TypeId;

/// Whether a type can be asked for by this name. One with a blank could be confused with a tag and
/// its name.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The types of each name. Names are the guest's: the hash is keyed, so that none can be made to
/// collide.
#[derive(Debug, Default)]
pub(super) struct TypeNames {
    keys: RandomState,
    /// Of each name the type with the least number.
    first: HashTable<u32>,
    /// By number less one: the next type of the same name; 0 after the last.
    next: Vec<u32>,
}

impl TypeNames {
    /// Indexes the types from 1 to `count`, where `name_of` gives each type's name. Those without
    /// [one](is_name) are left out.
    pub(super) fn of<'a>(count: u32, name_of: impl Fn(TypeId) -> &'a str) -> Self {
        let keys = RandomState::new();
        let mut first = HashTable::with_capacity(count as usize);
        let mut next = vec![0; count as usize];
        // Each goes before those of its name that are there.
        for (id, next) in (1..=count).rev().zip(next.iter_mut().rev()) {
            let name = name_of(TypeId(id));
            if !is_name(name) {
                continue;
            }
            let is_same = |other: &u32| name_of(TypeId(*other)) == name;
            let hash = |other: &u32| keys.hash_one(name_of(TypeId(*other)));
            match first.entry(keys.hash_one(name), is_same, hash) {
                Entry::Occupied(mut entry) => *next = std::mem::replace(entry.get_mut(), id),
                Entry::Vacant(entry) => drop(entry.insert(id)),
            }
        }
        Self { keys, first, next }
    }

    /// The type of this name with the least number, where `name_of` gives each type's.
    pub(super) fn first<'a>(
        &self,
        name: &str,
        name_of: impl Fn(TypeId) -> &'a str,
    ) -> Option<TypeId> {
        let is_it = |id: &u32| name_of(TypeId(*id)) == name;
        self.first.find(self.keys.hash_one(name), is_it).map(|id| TypeId(*id))
    }

    /// The next type of the same name, by number.
    pub(super) fn next(&self, id: TypeId) -> Option<TypeId> {
        let next = self.next.get((id.0 as usize).checked_sub(1)?)?;
        (*next > 0).then_some(TypeId(*next))
    }
}
