//! The table that hits use now. Each vCPU keeps the one of its last hit: to see that it is still
//! the newest costs a hit less than to count its use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use crossbeam_utils::atomic::AtomicCell;

use crate::engine::hit::table::Table;

/// The newest table, which replaces the one before it as a whole.
pub(crate) struct CurrentTable {
    newest: ArcSwap<Table>,
    /// Version of `newest`, which its table has as well.
    version: AtomicU64,
    /// By vCPU: the table of its last hit, or none. It is taken for the duration of a hit.
    last_used: Box<[AtomicCell<Option<Arc<Table>>>]>,
}

impl CurrentTable {
    pub(crate) fn new(vcpus: u8, table: Table) -> Self {
        Self {
            version: AtomicU64::new(table.version),
            newest: ArcSwap::from_pointee(table),
            last_used: (0..vcpus).map(|_| AtomicCell::new(None)).collect(),
        }
    }

    /// Replaces the table. Hits that are under way go on with the one that they have. One thread
    /// does so at a time.
    pub(crate) fn store(&self, mut table: Table) {
        let version = self.version.load(Ordering::Relaxed) + 1;
        table.version = version;
        self.newest.store(Arc::new(table));
        self.version.store(version, Ordering::SeqCst);
        // No vCPU that is idle keeps an old table, and its probes, in memory.
        self.last_used.iter().for_each(|used| drop(used.take()));
    }

    /// The newest table.
    pub(crate) fn load(&self) -> Guard<Arc<Table>> {
        self.newest.load()
    }

    /// Calls `act` with the newest table, for a hit of a vCPU.
    #[inline]
    pub(crate) fn with<T>(&self, vcpu: u8, act: impl FnOnce(&Table) -> T) -> T {
        let used = &self.last_used[usize::from(vcpu)];
        let is_newest = |table: &Arc<Table>| table.version == self.version.load(Ordering::SeqCst);
        let table = used.take().filter(is_newest).unwrap_or_else(|| self.newest.load_full());
        let done = act(&table);
        if is_newest(&table) {
            used.store(Some(table));
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(table: &Table) -> u64 {
        table.version
    }

    #[test]
    fn each_hit_has_the_newest_table_and_old_ones_are_freed() {
        let current = CurrentTable::new(2, Table::default());
        let first = Arc::downgrade(&current.load());
        assert_eq!(current.with(0, version), 0, "it is kept");
        assert_eq!(current.with(0, version), 0, "and used again");
        // It is replaced within a hit, which goes on with the old one.
        let during = current.with(1, |table| {
            current.store(Table::default());
            version(table)
        });
        assert_eq!(during, 0);
        assert!(first.upgrade().is_none(), "neither vCPU keeps it");
        assert_eq!([0, 1].map(|vcpu| current.with(vcpu, version)), [1, 1]);
        let second = Arc::downgrade(&current.load());
        current.store(Table::default());
        assert!(second.upgrade().is_none());
        assert_eq!(current.with(0, version), 2);
    }
}
