//! Hidden memory: one region outside the guest's RAM and e820 map, in its own KVM memory slot,
//! reached by the guest's kernel through a single entry in its own page tables.
//!
//! | pages     | mapped as          | holds |
//! |-----------|--------------------|-------|
//! | 0         | not mapped         | the page table for all the others |
//! | 1         | read, execute      | the VMM's own stubs |
//! | 2 to 255  | read, execute      | code window: slots of probes |
//! | 256 to 511| read, write        | data window |
//!
//! The guest can, as kernel, rewrite its tables; so the entry is checked before each use.

use std::sync::atomic::{AtomicU64, Ordering};

use vm_memory::{GuestAddress, GuestRegionMmap, MmapRegion, VolatileMemory};

use crate::addr::{Gpa, Gva};
use crate::layout::{HIDDEN_GVA_HIGHEST, HIDDEN_SIZE, KERNEL_IMAGE_BASE};
use crate::memory::{GuestRam, MemoryError, OutsideMemory, to_usize};
use crate::paging::{
    self, PAGE_SIZE, PAGE_SIZE_2M, PTE_ACCESSED, PTE_DIRTY, PTE_NO_EXECUTE, PTE_PRESENT, PTE_WRITE,
    PagingError, PagingMode, ReadPhys,
};

/// Global translation: survives a CR3 write, as the kernel's own text does.
const PTE_GLOBAL: u64 = 1 << 8;
const STUB_PAGE: u64 = 1;
const CODE_PAGES: std::ops::Range<u64> = 2..256;
const DATA_PAGES: std::ops::Range<u64> = 256..512;
const NOT_MAPPED: u64 = 0;

/// Why hidden memory cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HiddenError {
    /// The vCPU's tables cannot be walked, most often because the guest is not that far yet.
    #[error("the guest's kernel page tables cannot be used yet: {0}")]
    Paging(#[from] PagingError),
    /// Every entry of the kernel-image range is taken.
    #[error("no free page-directory entry between {from} and {to} to map hidden memory at")]
    NoRoom {
        /// Lowest address tried.
        from: Gva,
        /// Highest address tried.
        to: Gva,
    },
    /// The guest's entry for the region no longer holds what was written into it.
    #[error(
        "the guest changed its page-table entry for hidden memory at {gva}: it is now {now:#x}"
    )]
    Overwritten {
        /// Where the region was mapped.
        gva: Gva,
        /// The entry now.
        now: u64,
    },
    /// The page tables lie where the guest has no RAM.
    #[error("the guest's page directory is outside its memory: {0}")]
    Table(#[from] OutsideMemory),
}

/// A window of hidden memory: host-writable bytes with a guest address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Guest-virtual address of the first byte.
    pub gva: Gva,
    /// Offset of the first byte in the region.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// The hidden region of one guest.
#[derive(Debug)]
pub struct HiddenMemory {
    region: GuestRegionMmap,
    gpa: Gpa,
    /// Guest-virtual base once mapped; 0 before.
    base: AtomicU64,
}

impl HiddenMemory {
    /// Reserves the region above `ram` and builds its page table. Pages cost memory when touched.
    ///
    /// # Errors
    /// [`MemoryError`] when the host cannot map 2 MiB.
    pub fn new(ram: &GuestRam) -> Result<Self, MemoryError> {
        let gpa = Gpa(ram.end().0.max(1 << 32).next_multiple_of(PAGE_SIZE_2M));
        let mapping = MmapRegion::new(to_usize(HIDDEN_SIZE))
            .map_err(|source| MemoryError::Map { mib: HIDDEN_SIZE >> 20, source })?;
        let region =
            GuestRegionMmap::new(mapping, GuestAddress(gpa.0)).ok_or(MemoryError::Wraps(gpa))?;
        let hidden = Self { region, gpa, base: AtomicU64::new(NOT_MAPPED) };
        hidden.build_page_table();
        Ok(hidden)
    }

    fn build_page_table(&self) {
        for page in 1..HIDDEN_SIZE / PAGE_SIZE {
            let kind =
                if DATA_PAGES.contains(&page) { PTE_WRITE | PTE_NO_EXECUTE | PTE_DIRTY } else { 0 };
            let frame = self.gpa.0 + page * PAGE_SIZE;
            let entry = frame | PTE_PRESENT | PTE_ACCESSED | PTE_GLOBAL | kind;
            self.write(page * 8, &entry.to_le_bytes());
        }
    }

    /// Guest-physical address of the region.
    #[must_use]
    pub fn gpa(&self) -> Gpa {
        self.gpa
    }

    /// Host address and length in bytes, for the KVM memory slot.
    #[must_use]
    pub(crate) fn host_mapping(&self) -> (*mut u8, u64) {
        (self.region.as_ptr(), HIDDEN_SIZE)
    }

    /// The guest-virtual base once [`Self::map`] succeeded.
    #[must_use]
    pub fn base(&self) -> Option<Gva> {
        let base = self.base.load(Ordering::Acquire);
        (base != NOT_MAPPED).then_some(Gva(base))
    }

    pub(crate) fn restore_base(&self, base: Option<Gva>) {
        self.base.store(base.map_or(NOT_MAPPED, |gva| gva.0), Ordering::Release);
    }

    fn entry(&self) -> u64 {
        self.gpa.0 | PTE_PRESENT | PTE_WRITE | PTE_ACCESSED
    }

    /// Maps the region into the kernel image range of the guest, once; later calls check that the
    /// guest left the entry alone. To be called with tables of the running kernel (after its early
    /// clean-up of unused entries).
    ///
    /// # Errors
    /// [`HiddenError`]; nothing was written to the guest then.
    pub fn map(&self, ram: &GuestRam, mode: PagingMode) -> Result<Gva, HiddenError> {
        let directory = paging::table_for(ram, mode, KERNEL_IMAGE_BASE, 2)?;
        if let Some(base) = self.base() {
            return self.check(ram, directory, base);
        }
        let mut candidate = HIDDEN_GVA_HIGHEST;
        while candidate > KERNEL_IMAGE_BASE {
            let at = paging::entry_address(directory, candidate, 2);
            let entry = ram.read_u64(at).ok_or(OutsideMemory { gpa: at, len: 8 })?;
            if entry == 0 || entry == self.entry() {
                ram.store_u64(at, self.entry())?;
                self.base.store(candidate.0, Ordering::Release);
                return Ok(candidate);
            }
            candidate = Gva(candidate.0 - PAGE_SIZE_2M);
        }
        Err(HiddenError::NoRoom { from: KERNEL_IMAGE_BASE, to: HIDDEN_GVA_HIGHEST })
    }

    fn check(&self, ram: &GuestRam, directory: Gpa, gva: Gva) -> Result<Gva, HiddenError> {
        let at = paging::entry_address(directory, gva, 2);
        let now = ram.read_u64(at).ok_or(OutsideMemory { gpa: at, len: 8 })?;
        // The CPU sets the accessed (and, unused in a table entry, the dirty) bit by itself.
        if now | PTE_ACCESSED | PTE_DIRTY == self.entry() | PTE_ACCESSED | PTE_DIRTY {
            Ok(gva)
        } else {
            Err(HiddenError::Overwritten { gva, now })
        }
    }

    /// The VMM's own code page, once mapped.
    #[must_use]
    pub fn stub_window(&self) -> Option<Window> {
        self.window(STUB_PAGE..STUB_PAGE + 1)
    }

    /// Where probes' slots live, once mapped.
    #[must_use]
    pub fn code_window(&self) -> Option<Window> {
        self.window(CODE_PAGES)
    }

    fn window(&self, pages: std::ops::Range<u64>) -> Option<Window> {
        let base = self.base()?;
        let offset = pages.start * PAGE_SIZE;
        let len = (pages.end - pages.start) * PAGE_SIZE;
        Some(Window { gva: base.wrapping_add(offset), offset, len })
    }

    /// Writes `data` at `offset` of the region.
    ///
    /// # Panics
    /// When the range is not inside the region: offsets come from a [`Window`], never from a guest.
    pub fn write(&self, offset: u64, data: &[u8]) {
        let slice = self.region.as_volatile_slice_at(to_usize(offset), data.len());
        slice.copy_from(data);
    }

    /// Reads `buf.len()` bytes at `offset` of the region.
    ///
    /// # Panics
    /// As [`Self::write`].
    pub fn read(&self, offset: u64, buf: &mut [u8]) {
        let slice = self.region.as_volatile_slice_at(to_usize(offset), buf.len());
        slice.copy_to(buf);
    }
}

/// Bounds-checked slices of the region: the one place where an offset becomes memory.
trait SliceAt {
    fn as_volatile_slice_at(&self, offset: usize, len: usize) -> vm_memory::VolatileSlice<'_>;
}

impl SliceAt for GuestRegionMmap {
    fn as_volatile_slice_at(&self, offset: usize, len: usize) -> vm_memory::VolatileSlice<'_> {
        let mapping: &MmapRegion = self;
        VolatileMemory::get_slice(mapping, offset, len)
            .expect("offset and length lie inside the hidden region")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::ram_ranges;
    use crate::paging::{PTE_LARGE, translate};

    /// RAM with kernel-like tables: 0x1000 PML4, 0x2000 PDPT, 0x3000 PD.
    fn guest() -> (GuestRam, PagingMode) {
        let ram = GuestRam::anonymous(&ram_ranges(1)).unwrap();
        let rw = PTE_PRESENT | PTE_WRITE;
        ram.store_u64(Gpa(0x1ff8), 0x2000 | rw).unwrap();
        ram.store_u64(Gpa(0x2ff0), 0x3000 | rw).unwrap();
        (ram, PagingMode { cr3: 0x1000, levels: 4 })
    }

    struct Both<'a>(&'a GuestRam, &'a HiddenMemory);
    impl ReadPhys for Both<'_> {
        fn read_u64(&self, gpa: Gpa) -> Option<u64> {
            if let Some(offset) = gpa.0.checked_sub(self.1.gpa().0).filter(|o| *o < HIDDEN_SIZE) {
                let mut word = [0; 8];
                self.1.read(offset, &mut word);
                return Some(u64::from_le_bytes(word));
            }
            self.0.read_u64(gpa)
        }
    }

    #[test]
    fn code_is_executable_only_and_data_writable_only() {
        let (ram, mode) = guest();
        let hidden = HiddenMemory::new(&ram).unwrap();
        assert_eq!(hidden.code_window(), None);
        let base = hidden.map(&ram, mode).unwrap();
        assert_eq!(base, HIDDEN_GVA_HIGHEST);
        let code = hidden.code_window().unwrap();
        let found = translate(&Both(&ram, &hidden), mode, code.gva).unwrap();
        assert!(found.executable && !found.writable && !found.user);
        assert_eq!(found.gpa, Gpa(hidden.gpa().0 + code.offset));
        let data = base.wrapping_add(DATA_PAGES.start * PAGE_SIZE);
        let found = translate(&Both(&ram, &hidden), mode, data).unwrap();
        assert!(!found.executable && found.writable && !found.user);
        assert!(translate(&Both(&ram, &hidden), mode, base).is_err(), "its table stays unmapped");
    }

    #[test]
    fn taken_entries_are_passed_over_and_a_changed_one_is_reported() {
        let (ram, mode) = guest();
        let index = (HIDDEN_GVA_HIGHEST.0 >> 21) & 511;
        let taken = 0x20_0000 | PTE_PRESENT | PTE_LARGE;
        ram.store_u64(Gpa(0x3000 + index * 8), taken).unwrap();
        let hidden = HiddenMemory::new(&ram).unwrap();
        let base = hidden.map(&ram, mode).unwrap();
        assert_eq!(base.0, HIDDEN_GVA_HIGHEST.0 - PAGE_SIZE_2M);
        assert_eq!(hidden.map(&ram, mode), Ok(base));
        ram.store_u64(Gpa(0x3000 + (index - 1) * 8), 0).unwrap();
        assert_eq!(hidden.map(&ram, mode), Err(HiddenError::Overwritten { gva: base, now: 0 }));
    }

    #[test]
    fn a_full_or_unmapped_directory_is_an_error() {
        let (ram, mode) = guest();
        for entry in 0..512 {
            ram.store_u64(Gpa(0x3000 + entry * 8), PTE_PRESENT).unwrap();
        }
        let hidden = HiddenMemory::new(&ram).unwrap();
        assert!(matches!(hidden.map(&ram, mode), Err(HiddenError::NoRoom { .. })));
        let nowhere = PagingMode { cr3: 0x8000, levels: 4 };
        assert!(matches!(hidden.map(&ram, nowhere), Err(HiddenError::Paging(_))));
    }
}
