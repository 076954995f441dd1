//! Calls that return probes follow, and their true return addresses.

use crate::engine::hit::frames::TrampolineTable;
use crate::engine::hit::table::Table;
use crate::engine::probe::registered::is_same_stack;
use crate::engine::probe::registered::unwatch_stack;
use exoprobe_guest::{Gva, HiddenMemory};

/// The calls that are followed by replaced return addresses.
pub(crate) struct CallTracker {
    pub(crate) frames: TrampolineTable,
    pub(crate) hidden: HiddenMemory,
}

impl CallTracker {
    /// Returns the true address for a return address on a stack: for a trampoline, the one that it
    /// replaced.
    pub(crate) fn true_return(&self, table: &Table, found: Gva) -> Gva {
        let index = table.trampoline_at(found);
        let found = index.and_then(|index| self.frames.return_address(index)).unwrap_or(found);
        self.return_of_stub(table, found).unwrap_or(found)
    }

    /// Returns the true return address of a call whose return address is a stub's.
    #[inline]
    pub(crate) fn return_of_stub(&self, table: &Table, found: Gva) -> Option<Gva> {
        match table.in_guest.is_empty() {
            true => None,
            false => self.return_of_any_stub(table, found),
        }
    }

    #[inline(never)]
    fn return_of_any_stub(&self, table: &Table, found: Gva) -> Option<Gva> {
        let (_, in_guest) = table.in_guest.at(found)?;
        let index = in_guest.pool.of_stub(found)?;
        Some(in_guest.pool.call(&self.hidden, index)?.shows)
    }

    /// Counts the followed calls, also those of removed probes.
    pub(crate) fn calls_followed(&self, table: &Table) -> usize {
        self.frames.active() + table.in_guest.active(&self.hidden)
    }

    /// Recycles the instances of all calls on a stack that is left for good.
    pub(crate) fn end_stack(&self, table: &Table, rsp: Gva) {
        self.frames.end_stack(rsp);
        for probe in table.watching.iter().filter_map(|probe| probe.returns()) {
            unwatch_stack(&probe.watched, rsp);
        }
        table.in_guest.release_where(&self.hidden, |key| is_same_stack(key, rsp));
    }
}
