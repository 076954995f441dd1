//! Structs and enums that a script defines.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::types::Record;

/// Structs and enums that the script defines.
#[derive(Default)]
pub(super) struct OwnTypes {
    pub(super) records: HashMap<Arc<str>, Record>,
    pub(super) numbered: Vec<Record>,
    pub(super) enums: HashMap<Arc<str>, Vec<(Arc<str>, i64)>>,
}

impl OwnTypes {
    pub(super) fn enumerator(&self, name: &str) -> Option<(Arc<str>, i64)> {
        let mut all =
            self.enums.iter().flat_map(|(of, values)| values.iter().map(move |v| (of, v)));
        let (of, (_, value)) = all.find(|(_, (constant, _))| **constant == *name)?;
        Some((Arc::clone(of), *value))
    }

    pub(super) fn add_enum(&mut self, name: &Arc<str>, values: Vec<(Arc<str>, i64)>) {
        self.enums.insert(Arc::clone(name), values);
    }
}
