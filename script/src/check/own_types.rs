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
    /// The enum and the value of each constant.
    constants: HashMap<Arc<str>, (Arc<str>, i64)>,
}

impl OwnTypes {
    /// The enum and the value of a constant.
    pub(super) fn enumerator(&self, name: &str) -> Option<(Arc<str>, i64)> {
        self.constants.get(name).cloned()
    }

    /// Adds a constant to an enum. Of two with one name the first counts.
    pub(super) fn add_constant(&mut self, of: &Arc<str>, name: &Arc<str>, value: i64) {
        self.enums.entry(Arc::clone(of)).or_default().push((Arc::clone(name), value));
        self.constants.entry(Arc::clone(name)).or_insert((Arc::clone(of), value));
    }
}
