//! The kprobes of the guest's own kernel, which have their int3s in its text.

use std::collections::BTreeMap;

use exoprobe_guest::Gva;
use exoprobe_introspect::{SymbolTable, VirtualMemory};

use crate::engine::kernel::running::Kernel;
use crate::engine::kernel::view::KernelView;
use crate::engine::patch::text::INT3;

/// kernel/kprobes.c: an array of struct hlist_head.
const TABLE: &str = "kprobe_table";
/// KPROBE_TABLE_SIZE.
const LISTS: usize = 64;
/// Maximum number of kprobes read. The lists are the guest's, and may have no end.
const KPROBES_MAX: usize = 1 << 16;
/// struct kprobe of Linux 5.14 and later: hlist, list, nmissed, addr, symbol_name, offset,
/// pre_handler, post_handler, opcode.
const ADDR: u64 = 40;
/// See [`ADDR`].
const OPCODE: u64 = 80;

/// The first bytes of the instructions that have a kprobe of the guest's own.
pub(crate) struct OwnKprobes(BTreeMap<Gva, u8>);

impl OwnKprobes {
    /// Reads the kernel's table. It is empty where the kernel has none, or none in its symbols
    /// (CONFIG_KALLSYMS_ALL), and as far as it cannot be read.
    pub(crate) fn read(kernel: &Kernel) -> Self {
        Self::of(&kernel.memory(), &kernel.symbols)
    }

    fn of(memory: &VirtualMemory<'_, KernelView>, symbols: &SymbolTable) -> Self {
        let mut found = BTreeMap::new();
        let Some(table) = symbols.address_of(TABLE) else { return Self(found) };
        // In one read: probes of thousands of functions look here.
        let mut lists = [0; LISTS * size_of::<u64>()];
        if memory.read(table, &mut lists).is_err() {
            return Self(found);
        }
        let mut left = KPROBES_MAX;
        let (lists, _) = lists.as_chunks();
        for first in lists {
            let mut next = u64::from_le_bytes(*first);
            while next != 0 && left > 0 {
                left -= 1;
                let kprobe = Gva(next);
                let mut opcode = [0];
                let addr = memory.read_u64(kprobe.wrapping_add(ADDR));
                if let (Ok(addr), Ok(())) =
                    (addr, memory.read(kprobe.wrapping_add(OPCODE), &mut opcode))
                {
                    // Each place has one entry: several kprobes are in one aggregate.
                    found.insert(Gva(addr), opcode[0]);
                }
                next = memory.read_u64(kprobe).unwrap_or(0);
            }
        }
        Self(found)
    }

    /// The first byte of the instruction at `at`; `None` if it has no kprobe of the guest's own.
    pub(crate) fn opcode(&self, at: Gva) -> Option<u8> {
        self.0.get(&at).copied()
    }

    /// Puts the instructions' own first bytes over the int3s in `bytes`, which were read at
    /// `start`.
    pub(crate) fn restore(&self, start: Gva, bytes: &mut [u8]) {
        let end = start.wrapping_add(bytes.len() as u64);
        for (at, opcode) in self.0.range(start..end) {
            let byte = usize::try_from(at.0 - start.0).ok().and_then(|index| bytes.get_mut(index));
            if let Some(byte) = byte.filter(|byte| **byte == INT3) {
                *byte = *opcode;
            }
        }
    }
}
