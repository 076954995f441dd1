//! Memory that the kernel keeps mapped: code in the guest may read it without a fault.

use exoprobe_guest::{Gpa, GuestRam, Gva};
use exoprobe_introspect::{SymbolTable, VirtualMemory};

use crate::detour::Mapped;
use crate::engine::kernel::view::KernelView;

/// The kernel's own data: from the end of its image's start-up part, since that part is freed.
const IMAGE: [(&str, &str); 3] =
    [("__start_rodata", "__end_rodata"), ("_sdata", "_edata"), ("__bss_start", "__bss_stop")];
/// The kernel's variable with the start of the direct map, with CONFIG_RANDOMIZE_MEMORY.
const DIRECT_BASE: &str = "page_offset_base";
/// The start of the direct map otherwise: since Linux 4.20, and before (mm.rst).
const DIRECT_BASES: [Gva; 2] = [Gva(0xffff_8880_0000_0000), Gva(0xffff_8800_0000_0000)];
/// Present if the kernel unmaps free pages (CONFIG_DEBUG_PAGEALLOC).
const UNMAPS_FREE: &str = "_debug_pagealloc_enabled";
/// Longest accepted run, in bytes: more RAM than any guest has.
const RUN_MAX: u64 = 1 << 46;

/// A range of RAM in the kernel's direct map.
#[derive(Clone, Copy)]
pub(crate) struct Direct {
    pub(crate) mapped: Mapped,
    gpa: Gpa,
}

impl Direct {
    /// The guest-physical address, if the address is in this range.
    pub(crate) fn place(&self, at: Gva) -> Option<Gpa> {
        let offset = at.0.wrapping_sub(self.mapped.start.0);
        (offset < self.mapped.len).then(|| self.gpa.wrapping_add(offset))
    }
}

/// The ranges, the largest first.
pub(crate) fn mapped(
    memory: &VirtualMemory<'_, KernelView>,
    symbols: &SymbolTable,
    ram: &GuestRam,
) -> Vec<Mapped> {
    let direct = direct_map(memory, symbols, ram);
    let mut found: Vec<Mapped> = direct.into_iter().map(|range| range.mapped).collect();
    for (start, end) in IMAGE {
        let (Some(start), Some(end)) = (symbols.address_of(start), symbols.address_of(end)) else {
            continue;
        };
        let whole = end.0.checked_sub(start.0).filter(|len| *len >= 8);
        found.extend(
            whole
                .filter(|len| run(memory, start, *len, None) == *len)
                .map(|len| Mapped { start, len }),
        );
    }
    found.sort_by_key(|range| std::cmp::Reverse(range.len));
    found
}

/// The direct map, if the kernel has one.
pub(crate) fn direct_map(
    memory: &VirtualMemory<'_, KernelView>,
    symbols: &SymbolTable,
    ram: &GuestRam,
) -> Vec<Direct> {
    if symbols.address_of(UNMAPS_FREE).is_some() {
        return Vec::new();
    }
    let told = symbols.address_of(DIRECT_BASE).and_then(|at| memory.read_u64(at).ok()).map(Gva);
    let is_base = |base: &Gva| memory.translate(*base).is_ok_and(|found| found.gpa == Gpa(0));
    let Some(base) = told.into_iter().chain(DIRECT_BASES).find(is_base) else {
        return Vec::new();
    };
    let ranges = ram.ranges().into_iter().filter_map(|range| {
        let start = base.wrapping_add(range.start.0);
        let len = run(memory, start, range.len, Some(range.start));
        let mapped = Mapped { start, len };
        (len >= 8).then_some(Direct { mapped, gpa: range.start })
    });
    ranges.collect()
}

/// Number of the `len` bytes at `start` that are mapped in one run; if `gpa` is given, contiguously
/// from there.
fn run(memory: &VirtualMemory<'_, KernelView>, start: Gva, len: u64, gpa: Option<Gpa>) -> u64 {
    let (mut at, len) = (0, len.min(RUN_MAX));
    while at < len {
        let Ok(found) = memory.translate(start.wrapping_add(at)) else { break };
        if gpa.is_some_and(|gpa| found.gpa != gpa.wrapping_add(at)) {
            break;
        }
        at += found.page_size - found.gpa.offset_in(found.page_size);
    }
    at.min(len)
}
