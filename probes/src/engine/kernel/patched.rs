//! Text that the kernel patches while it boots (alternatives, paravirtual calls, thunks): an int3
//! there would be overwritten, or be taken for an instruction. The places are read from the
//! kernel's own tables, which are in its memory until it has booted.

use exoprobe_guest::Gva;
use exoprobe_introspect::{SymbolTable, VirtualMemory};
use iced_x86::{Decoder, DecoderOptions};

use crate::engine::kernel::tables::{RelativeTable, read_table, relative};
use crate::engine::kernel::view::KernelView;

/// Bytes of the longest call or jmp to a thunk, with prefixes; used for one that cannot be decoded.
const THUNK_CALL: usize = 15;
/// Bytes of a call.
const CALL: u64 = 5;
/// Bytes of the longest constant in an instruction.
const CONSTANT: u64 = 8;
/// Prefix of the symbols of [`runtime_constants`].
const RUNTIME_CONSTANT: &str = "__start_runtime_";
/// Longest accepted replacement of alternatives.
const LONGEST: u64 = 255;
/// Sizes of struct alt_instr, each with the offset of `instrlen`: since Linux 5.13, before, since
/// 6.3.
const ALTERNATIVE_FORMS: [(usize, usize); 3] = [(12, 10), (13, 10), (14, 12)];
/// struct paravirt_patch_site: instr (64 bits), type, len, and filling.
const PARAVIRT_SITE: usize = 16;

/// The extent of a replacement.
#[derive(Clone, Copy)]
enum Extent {
    /// This number of bytes.
    Bytes(u64),
    /// The instruction there: its replacement is filled up to its length (apply_retpolines(),
    /// apply_returns()). Nothing after it, since in init text the next function follows
    /// immediately.
    Instruction,
}

/// Tables of places only, one at the start of each entry.
const PLACES: [(&str, &str, Extent); 6] = [
    ("__smp_locks", "__smp_locks_end", Extent::Bytes(1)),
    ("__retpoline_sites", "__retpoline_sites_end", Extent::Instruction),
    ("__return_sites", "__return_sites_end", Extent::Instruction),
    ("__call_sites", "__call_sites_end", Extent::Instruction),
    // The 16 bytes before a function (fineibt_preamble_start).
    ("__cfi_sites", "__cfi_sites_end", Extent::Bytes(16)),
    ("__ibt_endbr_seal", "__ibt_endbr_seal_end", Extent::Bytes(4)),
];

impl Extent {
    /// In bytes, at `at`.
    fn at(self, memory: &VirtualMemory<'_, KernelView>, at: Gva) -> u64 {
        let Self::Bytes(len) = self else { return instruction_len(memory, at) };
        len
    }
}

fn instruction_len(memory: &VirtualMemory<'_, KernelView>, at: Gva) -> u64 {
    let mut bytes = [0; THUNK_CALL];
    if memory.read(at, &mut bytes).is_err() {
        return THUNK_CALL as u64;
    }
    let instruction = Decoder::with_ip(64, &bytes, at.0, DecoderOptions::NONE).decode();
    let len = if instruction.is_invalid() { THUNK_CALL } else { instruction.len() };
    len as u64
}

/// The patched places.
pub(crate) enum Patched {
    /// Ranges by ascending start, none overlapping another.
    Known(Vec<(u64, u64)>),
    /// A table exists and cannot be read: any place may be patched.
    Unknown,
}

impl Patched {
    pub(crate) const NONE: Self = Self::Known(Vec::new());

    /// Reads the tables of a kernel that has not patched its text yet.
    pub(crate) fn read(memory: &VirtualMemory<'_, KernelView>, symbols: &SymbolTable) -> Self {
        let gathered = alternatives(memory, symbols).and_then(|mut ranges| {
            ranges.extend(paravirt_sites(memory, symbols)?);
            ranges.extend(tracer_calls(memory, symbols)?);
            ranges.extend(runtime_constants(memory, symbols)?);
            for (start, stop, extent) in PLACES {
                let table = RelativeTable { name: start, start, stop, entry: 4 };
                let places = table.read(memory, symbols).ok()?;
                let range = |at: Gva| (at.0, at.0.saturating_add(extent.at(memory, at)));
                ranges.extend(places.into_keys().map(range));
            }
            Some(ranges)
        });
        gathered.map_or(Self::Unknown, |ranges| Self::Known(merge(ranges)))
    }

    /// Returns true if the kernel patches any of `len` bytes at `at`.
    pub(crate) fn covers(&self, at: Gva, len: u64) -> bool {
        let Self::Known(ranges) = self else { return true };
        let after = ranges.partition_point(|(start, _)| *start < at.0.saturating_add(len));
        after.checked_sub(1).is_some_and(|last| ranges[last].1 > at.0)
    }
}

fn merge(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for (start, end) in ranges {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

/// The form of the entries is the one that makes all of them valid.
fn alternatives(
    memory: &VirtualMemory<'_, KernelView>,
    symbols: &SymbolTable,
) -> Option<Vec<(u64, u64)>> {
    let (start, bytes) =
        read_table(memory, symbols, "__alt_instructions", "__alt_instructions_end").ok()?;
    ALTERNATIVE_FORMS.iter().find_map(|(size, len_at)| {
        if bytes.len() % size != 0 {
            return None;
        }
        let entries = (0u64..).step_by(*size).zip(bytes.chunks_exact(*size));
        let ranges = entries.map(|(offset, entry)| {
            let at = relative(start.wrapping_add(offset), entry);
            let len = u64::from(entry[*len_at]);
            let sensible = symbols.text_contains(at) && (1..=LONGEST).contains(&len);
            sensible.then(|| (at.0, at.0.saturating_add(len)))
        });
        ranges.collect()
    })
}

/// Calls of the function tracer, which become nops while the kernel boots: one address per entry.
fn tracer_calls(
    memory: &VirtualMemory<'_, KernelView>,
    symbols: &SymbolTable,
) -> Option<Vec<(u64, u64)>> {
    let (_, bytes) = read_table(memory, symbols, "__start_mcount_loc", "__stop_mcount_loc").ok()?;
    let (places, _) = bytes.as_chunks();
    let ranges = places.iter().map(|place| {
        let at = u64::from_le_bytes(*place);
        (at, at.saturating_add(CALL))
    });
    Some(ranges.collect())
}

/// Constants in instructions that the kernel sets while it boots (runtime-const.h, since Linux
/// 6.11): one table of places per constant.
fn runtime_constants(
    memory: &VirtualMemory<'_, KernelView>,
    symbols: &SymbolTable,
) -> Option<Vec<(u64, u64)>> {
    let mut ranges = Vec::new();
    let tables = symbols.iter().filter_map(|s| s.name.strip_prefix(RUNTIME_CONSTANT));
    for name in tables {
        let (start, stop) = (format!("{RUNTIME_CONSTANT}{name}"), format!("__stop_runtime_{name}"));
        let (start, bytes) = read_table(memory, symbols, &start, &stop).ok()?;
        let (places, _) = bytes.as_chunks::<4>();
        let places = (0u64..).step_by(4).zip(places);
        ranges.extend(places.map(|(offset, place)| {
            let at = relative(start.wrapping_add(offset), place);
            (at.0, at.0.saturating_add(CONSTANT))
        }));
    }
    Some(ranges)
}

fn paravirt_sites(
    memory: &VirtualMemory<'_, KernelView>,
    symbols: &SymbolTable,
) -> Option<Vec<(u64, u64)>> {
    let (_, bytes) =
        read_table(memory, symbols, "__parainstructions", "__parainstructions_end").ok()?;
    let sites = bytes.chunks_exact(PARAVIRT_SITE).map(|site| {
        let at = u64::from_le_bytes(*site.first_chunk()?);
        symbols.text_contains(Gva(at)).then(|| (at, at.saturating_add(u64::from(site[9]))))
    });
    sites.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_that_touches_a_patched_place_is_told() {
        let patched =
            Patched::Known(merge(vec![(0x1010, 0x1015), (0x1000, 0x1004), (0x1012, 0x1020)]));
        for (at, len, covered) in [
            (0xffd, 3, false),
            (0xffd, 4, true),
            (0x1003, 1, true),
            (0x1004, 12, false),
            (0x1004, 13, true),
            (0x101f, 1, true),
            (0x1020, 15, false),
        ] {
            assert_eq!(patched.covers(Gva(at), len), covered, "{at:#x} {len}");
        }
        assert!(!Patched::NONE.covers(Gva(0x1000), 15));
        assert!(Patched::Unknown.covers(Gva(0x1000), 1));
    }
}
