//! Tables of a kernel that list special text.

use std::collections::HashMap;

use exoprobe_guest::Gva;
use exoprobe_introspect::modules::ModuleEntries;
use exoprobe_introspect::{SymbolTable, VirtualMemory};

use crate::engine::kernel::error::AttachError;
use crate::engine::kernel::view::KernelView;

/// Largest kernel table read, in bytes: ten times a distribution kernel's.
const TABLE_MAX: u64 = 8 << 20;

/// A kernel table of place-relative 32-bit addresses, one at the start of each entry.
///
/// Where an entry has 8 bytes or more, another such address follows the first.
pub(crate) struct RelativeTable {
    pub(crate) name: &'static str,
    pub(crate) start: &'static str,
    pub(crate) stop: &'static str,
    /// Bytes of an entry.
    pub(crate) entry: u64,
}

/// include/linux/jump_label.h: code, target (32 bits each), key (64 bits).
pub(crate) const JUMP_LABELS: RelativeTable = RelativeTable {
    name: "__jump_table",
    start: "__start___jump_table",
    stop: "__stop___jump_table",
    entry: 16,
};

/// include/linux/static_call_types.h: addr, key (32 bits each).
pub(crate) const STATIC_CALLS: RelativeTable = RelativeTable {
    name: ".static_call_sites",
    start: "__start_static_call_sites",
    stop: "__stop_static_call_sites",
    entry: 8,
};

impl RelativeTable {
    /// The addresses in the table, each with the one that follows it (or itself, in entries of 4
    /// bytes); empty if the kernel has no such table.
    pub(crate) fn read(
        &self,
        memory: &VirtualMemory<'_, KernelView>,
        symbols: &SymbolTable,
    ) -> Result<HashMap<Gva, Gva>, AttachError> {
        let fail = |reason: String| AttachError::KernelTable { table: self.name, reason };
        let (start, bytes) = read_table(memory, symbols, self.start, self.stop).map_err(fail)?;
        if !(bytes.len() as u64).is_multiple_of(self.entry) {
            return Err(fail(format!("it has {} bytes", bytes.len())));
        }
        Ok(self.addresses(start, &bytes))
    }

    /// As [`Self::read`], for a module's table.
    pub(crate) fn read_entries(
        &self,
        memory: &VirtualMemory<'_, KernelView>,
        entries: ModuleEntries,
    ) -> Result<HashMap<Gva, Gva>, AttachError> {
        let fail = |reason: String| AttachError::KernelTable { table: self.name, reason };
        let len = u64::from(entries.count) * self.entry;
        let bytes = read_bytes(memory, entries.at, len).map_err(fail)?;
        Ok(self.addresses(entries.at, &bytes))
    }

    fn addresses(&self, start: Gva, bytes: &[u8]) -> HashMap<Gva, Gva> {
        let step = usize::try_from(self.entry).expect("a few bytes");
        let entries = (0u64..).step_by(step).zip(bytes.chunks_exact(step));
        let both = entries.map(|(offset, entry)| {
            let place = start.wrapping_add(offset);
            let first = relative(place, entry);
            let second = entry.get(4..8).map(|next| relative(place.wrapping_add(4), next));
            (first, second.unwrap_or(first))
        });
        both.collect()
    }
}

/// The bytes between two symbols, with the address of the first; empty if the kernel lacks one of
/// them.
pub(crate) fn read_table(
    memory: &VirtualMemory<'_, KernelView>,
    symbols: &SymbolTable,
    start: &str,
    stop: &str,
) -> Result<(Gva, Vec<u8>), String> {
    let (Some(start), Some(stop)) = (symbols.address_of(start), symbols.address_of(stop)) else {
        return Ok((Gva(0), Vec::new()));
    };
    Ok((start, read_bytes(memory, start, stop.0.wrapping_sub(start.0))?))
}

/// A table of `len` bytes.
fn read_bytes(
    memory: &VirtualMemory<'_, KernelView>,
    at: Gva,
    len: u64,
) -> Result<Vec<u8>, String> {
    if len > TABLE_MAX {
        return Err(format!("it has {len} bytes"));
    }
    let mut bytes = vec![0; usize::try_from(len).expect("at most 8 MiB")];
    memory.read(at, &mut bytes).map_err(|e| e.to_string())?;
    Ok(bytes)
}

/// The address that the 32-bit offset at `place` refers to.
pub(crate) fn relative(place: Gva, entry: &[u8]) -> Gva {
    let offset = entry.first_chunk().map_or(0, |bytes| i32::from_le_bytes(*bytes));
    place.wrapping_add(i64::from(offset).cast_unsigned())
}
