//! Walks a guest's page tables (Intel SDM vol. 3, 4.5 "4-Level Paging and 5-Level Paging").
//!
//! This crate contains it, and not `introspect`, because it is the CPU's format, not Linux's, and
//! because hidden memory is placed by it. The tables are the guest's memory, so nothing in them is
//! trusted: a walk reads at most five entries, whatever their content, and cannot loop or panic.

use kvm_bindings::kvm_sregs;

use crate::addr::{Gpa, Gva};

/// Bytes in the smallest page, and in a page table.
pub const PAGE_SIZE: u64 = 4096;
/// Bytes mapped by one page-directory entry.
pub const PAGE_SIZE_2M: u64 = 2 << 20;
/// Bytes mapped by one page-directory-pointer entry.
pub const PAGE_SIZE_1G: u64 = 1 << 30;

/// Entry bit 0: the entry is valid.
pub const PTE_PRESENT: u64 = 1;
/// Entry bit 1: writable.
pub const PTE_WRITE: u64 = 1 << 1;
/// Entry bit 2: accessible from user mode.
pub const PTE_USER: u64 = 1 << 2;
/// Entry bit 5: accessed.
pub const PTE_ACCESSED: u64 = 1 << 5;
/// Entry bit 6: dirty.
pub const PTE_DIRTY: u64 = 1 << 6;
/// Entry bit 7, in levels 2 and 3: maps a page instead of naming a table.
pub const PTE_LARGE: u64 = 1 << 7;
/// Entry bit 63: no instruction fetch.
pub const PTE_NO_EXECUTE: u64 = 1 << 63;
/// Entry bits that hold an address (51:12; MAXPHYADDR is at most 52).
pub const PTE_ADDR_MASK: u64 = 0x000f_ffff_ffff_f000;

const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const CR4_LA57: u64 = 1 << 12;
const EFER_LMA: u64 = 1 << 10;

/// Reads guest-physical memory for a walk.
pub trait ReadPhys {
    /// The 64-bit little-endian word at `gpa`, or `None` if the guest has no memory there.
    fn read_u64(&self, gpa: Gpa) -> Option<u64>;
}

/// The control registers that determine how an address is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagingMode {
    /// Table root: CR3 with its PCID and flag bits.
    pub cr3: u64,
    /// 4 or 5 (CR4.LA57).
    pub levels: u8,
}

impl PagingMode {
    /// The mode of a vCPU with these registers.
    ///
    /// # Errors
    /// [`PagingError::NotLongMode`] if the vCPU does not translate by 64-bit tables (yet).
    pub fn of(sregs: &kvm_sregs) -> Result<Self, PagingError> {
        let kvm_sregs { cr0, cr3, cr4, efer, .. } = *sregs;
        if cr0 & CR0_PG == 0 || cr4 & CR4_PAE == 0 || efer & EFER_LMA == 0 {
            return Err(PagingError::NotLongMode);
        }
        let levels = if cr4 & CR4_LA57 == 0 { 4 } else { 5 };
        Ok(Self { cr3, levels })
    }
}

/// The reason why an address has no translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PagingError {
    /// Paging is off or not in its 64-bit form.
    #[error("the vCPU is not in long mode with paging on")]
    NotLongMode,
    /// Bits 63:48 (63:57 with five levels) do not repeat the sign bit.
    #[error("{gva} is not a canonical address")]
    NonCanonical {
        /// The requested address.
        gva: Gva,
    },
    /// An entry of the walk is not present.
    #[error("{gva} is not mapped (no entry at level {level})")]
    NotPresent {
        /// The requested address.
        gva: Gva,
        /// 1 for the page table up to 5.
        level: u8,
    },
    /// A table is outside the guest's memory.
    #[error("page table at {table} (level {level}) is outside guest memory")]
    TableOutsideMemory {
        /// The address in the guest's entry.
        table: Gpa,
        /// 1 for the page table up to 5.
        level: u8,
    },
    /// An entry has a reserved bit set, so the CPU would fault as well.
    #[error("entry {entry:#x} at level {level} has reserved bits set")]
    Reserved {
        /// The raw entry.
        entry: u64,
        /// 1 for the page table up to 5.
        level: u8,
    },
}

/// One page's translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// Physical address of the requested byte.
    pub gpa: Gpa,
    /// Size of its page: 4 KiB, 2 MiB or 1 GiB.
    pub page_size: u64,
    /// Every level allows writing.
    pub writable: bool,
    /// Every level allows user mode.
    pub user: bool,
    /// Every level allows instruction fetch.
    pub executable: bool,
}

impl Translation {
    /// Bytes from the requested address to the end of its page.
    #[must_use]
    pub fn bytes_left(&self) -> u64 {
        self.page_size - self.gpa.offset_in(self.page_size)
    }
}

/// Address bits that a level translates.
const LEVEL_BITS: u32 = 9;
/// Shift of a page table's index, and of that of the level whose entries may map 1 GiB.
const LAST_SHIFT: u32 = 12;
const LARGEST_PAGE_SHIFT: u32 = LAST_SHIFT + 2 * LEVEL_BITS;

fn shift(level: u8) -> u32 {
    LAST_SHIFT + LEVEL_BITS * (u32::from(level) - 1)
}

/// The level whose index is at `shift`.
fn level_of(shift: u32) -> u8 {
    u8::try_from((shift - LAST_SHIFT) / LEVEL_BITS + 1).expect("at most 5")
}

/// Physical address of the entry for `gva` in the `table` of `level`.
#[must_use]
pub fn entry_address(table: Gpa, gva: Gva, level: u8) -> Gpa {
    let index = (gva.0 >> shift(level)) & 511;
    Gpa((table.0 & PTE_ADDR_MASK) + index * 8)
}

#[inline]
fn is_canonical(gva: Gva, levels: u8) -> bool {
    let top = gva.0 >> (shift(levels) + 8);
    top == 0 || top == u64::MAX >> (shift(levels) + 8)
}

/// Physical address of the table with the entry for `gva` at `level` (1 to 4).
///
/// # Errors
/// As [`translate`]; also [`PagingError::Reserved`] if a large page maps the address.
pub fn table_for(
    mem: &impl ReadPhys,
    mode: PagingMode,
    gva: Gva,
    level: u8,
) -> Result<Gpa, PagingError> {
    if !is_canonical(gva, mode.levels) {
        return Err(PagingError::NonCanonical { gva });
    }
    let mut table = Gpa(mode.cr3 & PTE_ADDR_MASK);
    for at in (level + 1..=mode.levels).rev() {
        let entry = read_entry(mem, table, gva, at)?;
        if entry & PTE_LARGE != 0 {
            return Err(PagingError::Reserved { entry, level: at });
        }
        table = Gpa(entry & PTE_ADDR_MASK);
    }
    Ok(table)
}

fn read_entry(mem: &impl ReadPhys, table: Gpa, gva: Gva, level: u8) -> Result<u64, PagingError> {
    let found = mem.read_u64(entry_address(table, gva, level));
    let present = found.filter(|entry| entry & PTE_PRESENT != 0);
    present.ok_or_else(|| no_entry(found, table, gva, level))
}

/// Translates one address as the CPU does, with the permissions of all levels combined.
///
/// # Errors
/// [`PagingError`], with the level at which the walk ended.
#[inline]
pub fn translate(
    mem: &impl ReadPhys,
    mode: PagingMode,
    gva: Gva,
) -> Result<Translation, PagingError> {
    let (mut allowed, mut denied) = (u64::MAX, 0);
    let (gpa, page_size) = walk(mem, mode, gva, |entry| {
        allowed &= entry;
        denied |= entry & PTE_NO_EXECUTE;
    })?;
    Ok(Translation {
        gpa,
        page_size,
        writable: allowed & PTE_WRITE != 0,
        user: allowed & PTE_USER != 0,
        executable: denied == 0,
    })
}

/// The physical address of one address, whatever the permissions; `None` where [`translate`] has an
/// error.
#[inline]
#[must_use]
pub fn locate(mem: &impl ReadPhys, mode: PagingMode, gva: Gva) -> Option<Gpa> {
    Some(walk(mem, mode, gva, |_| ()).ok()?.0)
}

/// Walks to the entry that maps an address, and calls `visit` with each entry on the way. Returns
/// the physical address and the size of the page.
// Hits walk tables: the level is counted by its shift.
#[inline(always)]
fn walk(
    mem: &impl ReadPhys,
    mode: PagingMode,
    gva: Gva,
    mut visit: impl FnMut(u64),
) -> Result<(Gpa, u64), PagingError> {
    if !is_canonical(gva, mode.levels) {
        return Err(PagingError::NonCanonical { gva });
    }
    let mut table = mode.cr3 & PTE_ADDR_MASK;
    let mut shift = shift(mode.levels);
    loop {
        let found = mem.read_u64(Gpa(table + ((gva.0 >> shift) & 511) * 8));
        let entry = match found {
            Some(entry) if entry & PTE_PRESENT != 0 => entry,
            _ => return Err(no_entry(found, Gpa(table), gva, level_of(shift))),
        };
        visit(entry);
        let is_large = entry & PTE_LARGE != 0 && shift > LAST_SHIFT;
        if is_large && shift > LARGEST_PAGE_SHIFT {
            return Err(PagingError::Reserved { entry, level: level_of(shift) });
        }
        if is_large || shift == LAST_SHIFT {
            let page_size = 1u64 << shift;
            // Bit 12 of a large entry is its PAT bit, not an address bit.
            let base = Gpa(entry & PTE_ADDR_MASK).align_down(page_size);
            return Ok((Gpa(base.0 | gva.offset_in(page_size)), page_size));
        }
        table = entry & PTE_ADDR_MASK;
        shift -= LEVEL_BITS;
    }
}

/// The reason why a walk ends at an entry.
#[cold]
fn no_entry(found: Option<u64>, table: Gpa, gva: Gva, level: u8) -> PagingError {
    match found {
        Some(_) => PagingError::NotPresent { gva, level },
        None => PagingError::TableOutsideMemory { table, level },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    struct Image(HashMap<u64, u64>);

    impl ReadPhys for Image {
        fn read_u64(&self, gpa: Gpa) -> Option<u64> {
            (gpa.0 < 1 << 20).then(|| self.0.get(&gpa.0).copied().unwrap_or(0))
        }
    }

    const RW: u64 = PTE_PRESENT | PTE_WRITE;

    /// Tables at 0x1000 (root), 0x2000, ... one a level, all entries for one address.
    fn image(gva: Gva, levels: u8, leaf_level: u8, leaf: u64) -> (Image, PagingMode) {
        let mut entries = HashMap::new();
        let mut table = Gpa(0x1000);
        for level in (leaf_level + 1..=levels).rev() {
            let next = Gpa(table.0 + 0x1000);
            entries.insert(entry_address(table, gva, level).0, next.0 | RW);
            table = next;
        }
        entries.insert(entry_address(table, gva, leaf_level).0, leaf);
        (Image(entries), PagingMode { cr3: 0x1000, levels })
    }

    #[test]
    fn every_page_size_at_both_depths() {
        let gva = Gva(0xffff_ffff_8123_4567);
        for levels in [4, 5] {
            for (level, size) in [(1, PAGE_SIZE), (2, PAGE_SIZE_2M), (3, PAGE_SIZE_1G)] {
                let large = if level > 1 { PTE_LARGE } else { 0 };
                let (mem, mode) = image(gva, levels, level, size | RW | large);
                let found = translate(&mem, mode, gva).unwrap();
                assert_eq!(found.page_size, size);
                assert_eq!(found.gpa, Gpa(size + gva.offset_in(size)));
                assert_eq!(locate(&mem, mode, gva), Some(found.gpa));
                assert!(found.writable && found.executable && !found.user);
            }
        }
    }

    #[test]
    fn the_pat_bit_of_a_large_page_is_no_address_bit() {
        let gva = Gva(0x20_0000);
        let (mem, mode) = image(gva, 4, 2, 0x40_0000 | (1 << 12) | RW | PTE_LARGE);
        assert_eq!(translate(&mem, mode, gva).unwrap().gpa, Gpa(0x40_0000));
    }

    #[test]
    fn absent_and_non_canonical_addresses_are_refused_by_name() {
        let gva = Gva(0xffff_ffff_8123_4567);
        let (mem, mode) = image(gva, 4, 1, 0);
        let missing = translate(&mem, mode, gva);
        assert_eq!(missing, Err(PagingError::NotPresent { gva, level: 1 }));
        let odd = Gva(0x8000_0000_0000_0000);
        let refused = translate(&mem, mode, odd);
        assert_eq!(refused, Err(PagingError::NonCanonical { gva: odd }));
        let wide = Gva(0x0100_0000_0000_0000);
        let five = PagingMode { cr3: 0x1000, levels: 5 };
        assert!(matches!(translate(&mem, five, wide), Err(PagingError::NonCanonical { .. })));
        assert!(!is_canonical(Gva(1 << 47), 4) && is_canonical(Gva(1 << 47), 5));
    }

    #[test]
    fn a_table_that_points_outside_memory_or_at_itself_ends_the_walk() {
        let gva = Gva(0);
        let (mem, mode) = image(gva, 4, 3, (1 << 40) | RW);
        let outside = translate(&mem, mode, gva);
        assert!(matches!(outside, Err(PagingError::TableOutsideMemory { level: 2, .. })));
        let mut own = HashMap::new();
        own.insert(0x1000, 0x1000 | RW);
        assert!(translate(&Image(own), mode, gva).is_ok(), "a cycle is a mere five reads");
    }

    #[test]
    fn control_registers_choose_the_mode() {
        assert_eq!(PagingMode::of(&kvm_sregs::default()), Err(PagingError::NotLongMode));
        let (cr4, efer) = (CR4_PAE | CR4_LA57, EFER_LMA);
        let sregs = kvm_sregs { cr0: CR0_PG, cr3: 0x5000, cr4, efer, ..Default::default() };
        assert_eq!(PagingMode::of(&sregs), Ok(PagingMode { cr3: 0x5000, levels: 5 }));
    }

    proptest! {
        #[test]
        fn no_table_content_panics(gva: u64, words: Vec<u64>, five: bool) {
            let entries = words.iter().enumerate().map(|(i, w)| (i as u64 * 8, *w)).collect();
            let mode = PagingMode { cr3: 0, levels: if five { 5 } else { 4 } };
            let (mem, gva) = (Image(entries), Gva(gva));
            let found = translate(&mem, mode, gva).map(|found| found.gpa);
            prop_assert_eq!(locate(&mem, mode, gva), found.ok());
        }
    }
}
