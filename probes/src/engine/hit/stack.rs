//! A stack with true return addresses in place of those that probes replaced.

use exoprobe_guest::Gva;
use exoprobe_introspect::unwind::Stack;

use crate::engine::hit::addresses::CallTracker;
use crate::engine::hit::table::Table;
use crate::engine::kernel::memory::{HitMemory, KERNEL_HALF};

/// Stacks of a guest with probes.
pub(crate) struct ProbedStack<'a> {
    pub(crate) calls: &'a CallTracker,
    pub(crate) table: &'a Table,
    pub(crate) memory: HitMemory<'a>,
}

impl Stack for ProbedStack<'_> {
    fn word(&self, at: Gva) -> Option<u64> {
        self.memory.word(at)
    }

    fn returns_to(&self, found: Gva) -> Gva {
        self.calls.true_return(self.table, found)
    }

    /// The address itself; in a slot, that of the instruction which it displaces.
    fn stands_for(&self, ip: Gva) -> Gva {
        let original = || {
            let address = self.table.slot_address(&self.calls.hidden, ip)?;
            Some(Gva(self.calls.hidden.load_u64(address)))
        };
        original().filter(|at| at.0 & KERNEL_HALF != 0).unwrap_or(ip)
    }
}
