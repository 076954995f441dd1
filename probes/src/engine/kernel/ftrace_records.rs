//! The function tracer's records, which have the addresses of its calls.
//!
//! The call of a function that begins with endbr64 is at its second instruction, which a jmp at its
//! entry covers. A record there is no sign of a task within the jmp.

use std::collections::BTreeMap;

use exoprobe_guest::{Gpa, Gva};
use exoprobe_introspect::{SymbolTable, VirtualMemory};

use crate::engine::kernel::running::Kernel;
use crate::engine::kernel::view::KernelView;

/// kernel/trace/ftrace.c: the first struct ftrace_page.
const FIRST: &str = "ftrace_pages_start";
/// struct ftrace_page: next, records, index (int: the number of records in use), order.
const RECORDS: u64 = 8;
const INDEX: u64 = 16;
/// Maximum number of struct ftrace_page read. The list is the guest's, and may have no end.
const PAGES_MAX: usize = 1 << 14;
/// struct dyn_ftrace: ip, flags.
const RECORD_LEN: u64 = 16;
/// The largest allocation of pages (MAX_ORDER).
const RECORDS_LEN_MAX: u64 = 4 << 20;

/// Where the records are: by start, the end.
pub(crate) struct FtraceRecords(BTreeMap<Gpa, Gpa>);

impl FtraceRecords {
    /// Reads the kernel's list. It is empty where the kernel has none, or none in its symbols
    /// (CONFIG_KALLSYMS_ALL), and as far as it cannot be read.
    pub(crate) fn read(kernel: &Kernel) -> Self {
        Self::of(&kernel.memory(), &kernel.symbols)
    }

    fn of(memory: &VirtualMemory<'_, KernelView>, symbols: &SymbolTable) -> Self {
        let mut found = BTreeMap::new();
        let first = symbols.address_of(FIRST).and_then(|first| memory.read_u64(first).ok());
        let mut next = first.unwrap_or(0);
        for _ in 0..PAGES_MAX {
            let page = Gva(next);
            if next == 0 {
                break;
            }
            let records = memory.read_u64(page.wrapping_add(RECORDS));
            let index = memory.read_u64(page.wrapping_add(INDEX));
            if let (Ok(records), Ok(index)) = (records, index)
                && let Ok(start) = memory.translate(Gva(records))
            {
                let len = RECORD_LEN * (index & u64::from(u32::MAX));
                found.insert(start.gpa, start.gpa.wrapping_add(len.min(RECORDS_LEN_MAX)));
            }
            next = memory.read_u64(page).unwrap_or(0);
        }
        Self(found)
    }

    /// Returns true if the word at `at` is the address of a record's call.
    pub(crate) fn contains(&self, at: Gpa) -> bool {
        let before = self.0.range(..=at).next_back();
        before.is_some_and(|(start, end)| at < *end && (at.0 - start.0).is_multiple_of(RECORD_LEN))
    }
}
