//! The types of a script's maps, as far as they are known.

use std::sync::Arc;

use crate::ir::MapId;
use crate::types::Type;

/// The maps of a script, in the order in which they are met.
#[derive(Default)]
pub(super) struct Maps {
    pub(super) all: Vec<Map>,
}

#[derive(Clone, PartialEq)]
pub(super) struct Map {
    pub(super) name: Arc<str>,
    pub(super) keys: Option<Vec<Type>>,
    pub(super) value: Type,
}

impl Maps {
    /// A copy of all maps as known so far. Another pass is needed if it found more.
    pub(super) fn known(&self) -> Vec<Map> {
        self.all.clone()
    }

    /// The number of a map, a new one if needed.
    pub(super) fn id(&mut self, name: &Arc<str>) -> MapId {
        if let Some(id) = self.all.iter().position(|map| map.name == *name) {
            return id;
        }
        self.all.push(Map { name: Arc::clone(name), keys: None, value: Type::Unknown });
        self.all.len() - 1
    }

    pub(super) fn value_type(&self, id: MapId) -> &Type {
        self.all.get(id).map_or(&Type::Unknown, |map| &map.value)
    }

    /// Types of the keys; `None` as long as they are not known.
    pub(super) fn key_types(&self, id: MapId) -> Option<&[Type]> {
        self.all.get(id)?.keys.as_deref()
    }
}
