//! Hidden memory: one region outside the guest's RAM and e820 map, in its own KVM memory slot,
//! reached by the guest's kernel through entries in its own page tables.
//!
//! | pages     | mapped as          | holds |
//! |-----------|--------------------|-------|
//! | 0         | not mapped         | nothing |
//! | 1         | read, execute      | the VMM's own stubs (`stub`) |
//! | 2 to 5    | read, execute      | trampolines: an int3 in each byte |
//! | 6 to 127  | read, execute      | code window: slots of probes |
//! | 128 to 255| read, execute      | detour window: code of optimized probes |
//! | 256 to 493| read, write        | data window: what that code counts and records |
//! | 494 to 511| read, write        | where the rings begin |
//!
//! The rings continue in the next 4 MiB (read, write), which entries of their own map when they are
//! needed. So are the extensions after them: code and counters of more optimized probes, and larger
//! rings for several vCPUs. Their addresses are others: unused entries of the directory that maps
//! the kernel's image.
//!
//! The page tables of hidden memory are in the guest's RAM, at [`HIDDEN_TABLES`]: one for all
//! pages, and one for page 1 alone, for a user half of the guest's tables. A kernel that walks its
//! own tables (CONFIG_DEBUG_WX, /sys/kernel/debug/page_tables) reads each table through its direct
//! map, which contains only RAM.
//!
//! The guest's kernel can rewrite its tables, so the entry is checked before each use.

mod extension;
mod more;
mod rings;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vm_memory::{Bytes, GuestAddress, GuestRegionMmap, MmapRegion, VolatileMemory};

use crate::addr::{Gpa, Gva, to_usize};
use crate::layout::{
    HIDDEN_GVA, HIDDEN_SIZE, HIDDEN_TABLES, MORE_SIZE, RINGS_SIZE, more_rings_len,
};
use crate::memory::{GuestRam, MemoryError, OutsideMemory, undumped};
use crate::paging::{
    self, PAGE_SIZE, PAGE_SIZE_2M, PTE_ACCESSED, PTE_ADDR_MASK, PTE_DIRTY, PTE_NO_EXECUTE,
    PTE_PRESENT, PTE_WRITE, PagingError, PagingMode, ReadPhys,
};

/// Global translation: survives a CR3 write, as the kernel's own text does.
const PTE_GLOBAL: u64 = 1 << 8;
const STUB_PAGE: u64 = 1;
const TRAMPOLINE_PAGES: Range<u64> = 2..6;
const CODE_PAGES: Range<u64> = 6..128;
const DETOUR_PAGES: Range<u64> = 128..256;
const DATA_PAGES: Range<u64> = 256..494;
/// The rings' first pages: besides a power of two of bytes, room for what is before and after the
/// records of each of 64 rings (1,152 bytes).
const RING_PAGES: Range<u64> = 494..512;
const NOT_MAPPED: u64 = 0;
/// The page table that maps all pages, and the one for user halves: page 1 alone.
const TABLE: Gpa = HIDDEN_TABLES;
const USER_TABLE: Gpa = Gpa(HIDDEN_TABLES.0 + PAGE_SIZE);
/// Difference between the user half of a pair of roots and the kernel's (PTI_USER_PGTABLE_BIT of
/// Linux).
const USER_HALF: u64 = PAGE_SIZE;
const INT3: u8 = 0xcc;

/// Bytes of a slot, the unit of the code window: aligned to it, so that its start is known from any
/// address in it.
pub const SLOT_SIZE: u64 = 32;
/// Number of trampolines of return probes: one per byte of their pages.
pub const TRAMPOLINES: usize = 4 * 4096;
/// Offset in a slot of the address of its displaced instruction, a 64-bit word. A fault in the slot
/// is shown to the guest at that address ([`crate::fault_fixup`]).
pub const SLOT_ADDRESS_OFFSET: u64 = 24;

/// The reason why hidden memory cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HiddenError {
    /// The vCPU's tables cannot be walked, most often because the guest has not set them up yet.
    #[error("the guest's kernel page tables cannot be used yet: {0}")]
    Paging(#[from] PagingError),
    /// The guest uses a directory entry reserved for hidden memory or its rings.
    #[error(
        "the guest uses the page-directory entry of {gva}, which is for hidden memory: it is {now:#x}"
    )]
    Taken {
        /// The address that the entry maps.
        gva: Gva,
        /// The entry.
        now: u64,
    },
    /// The guest has changed its entry for the region.
    #[error(
        "the guest changed its page-table entry for hidden memory at {gva}: it is now {now:#x}"
    )]
    Overwritten {
        /// The address of the region.
        gva: Gva,
        /// The present entry.
        now: u64,
    },
    /// The directory of the kernel's image has too few unused entries in a row.
    #[error("the guest's page directory of its image has no {entries} unused entries in a row")]
    NoRoom {
        /// How many are needed.
        entries: u64,
    },
    /// Page-table isolation is on, and user mode's tables have no directory that could map the
    /// stubs.
    #[error("the guest isolates page tables, and those of user mode cannot map hidden memory: {0}")]
    UserTables(PagingError),
    /// The page tables are outside the guest's RAM.
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
    /// Length in bytes.
    pub len: u64,
}

/// The hidden region of one guest. Clones share the region, so the hit path needs no `Guest` to
/// access it. A reboot resets it in place.
#[derive(Clone, Debug)]
pub struct HiddenMemory(Arc<Shared>);

/// The region and its state, shared by all clones.
#[derive(Debug)]
struct Shared {
    region: GuestRegionMmap,
    gpa: Gpa,
    /// Guest-virtual base once mapped; 0 before.
    base: AtomicU64,
    /// True if the rings are mapped that [`rings::RINGS`] describes.
    has_rings: AtomicBool,
    /// Guest-virtual base of the extension once mapped; 0 before.
    more: AtomicU64,
    /// Bytes of the larger rings, and their guest-virtual base once mapped; 0 before.
    more_rings_len: u64,
    more_rings: AtomicU64,
}

/// Bytes of the whole region, without larger rings for several vCPUs.
const REGION: u64 = HIDDEN_SIZE + RINGS_SIZE + MORE_SIZE;
/// Bytes of the largest region.
pub const REGION_MOST: u64 = REGION + more_rings_len(u8::MAX);

impl HiddenMemory {
    /// Reserves the region above `ram` and fills its trampolines. Its pages take memory when they
    /// are first accessed. It is not part of core dumps.
    ///
    /// # Errors
    /// [`MemoryError`] if the host cannot map 30 MiB, and for several vCPUs 2 MiB and 4 MiB for
    /// each, at most 18 MiB.
    pub fn new(ram: &GuestRam, vcpus: u8) -> Result<Self, MemoryError> {
        let gpa = Gpa(ram.end().0.max(1 << 32).next_multiple_of(PAGE_SIZE_2M));
        let more_rings_len = more_rings_len(vcpus);
        let len = REGION + more_rings_len;
        let mapping = undumped(MmapRegion::new(to_usize(len)), len)?;
        let region =
            GuestRegionMmap::new(mapping, GuestAddress(gpa.0)).ok_or(MemoryError::Wraps(gpa))?;
        let not_mapped = || AtomicU64::new(NOT_MAPPED);
        let hidden = Self(Arc::new(Shared {
            region,
            gpa,
            base: not_mapped(),
            has_rings: AtomicBool::new(false),
            more: not_mapped(),
            more_rings_len,
            more_rings: not_mapped(),
        }));
        hidden.fill_trampolines();
        Ok(hidden)
    }

    /// Resets the region, except for the content of the rings and the extensions: all zero but its
    /// trampolines, and not mapped. The guest must be at power-on: none of its state may refer to
    /// the region any more.
    pub fn reset(&self) {
        self.restore_base(None);
        self.write(0, &vec![0; to_usize(HIDDEN_SIZE)]);
        self.fill_trampolines();
    }

    /// Writes the page table of all pages.
    fn write_table(&self, ram: &GuestRam) -> Result<(), OutsideMemory> {
        for page in STUB_PAGE..RING_PAGES.end {
            let is_data = page >= DATA_PAGES.start;
            let kind = if is_data { PTE_WRITE | PTE_NO_EXECUTE | PTE_DIRTY } else { 0 };
            let entry = self.page_entry(page) | PTE_GLOBAL | kind;
            ram.store_u64(Gpa(TABLE.0 + page * 8), entry)?;
        }
        Ok(())
    }

    /// Writes the page table of user halves.
    fn write_user_table(&self, ram: &GuestRam) -> Result<(), OutsideMemory> {
        ram.store_u64(Gpa(USER_TABLE.0 + STUB_PAGE * 8), self.page_entry(STUB_PAGE))
    }

    fn page_entry(&self, page: u64) -> u64 {
        (self.0.gpa.0 + page * PAGE_SIZE) | PTE_PRESENT | PTE_ACCESSED
    }

    fn fill_trampolines(&self) {
        let bytes = (TRAMPOLINE_PAGES.end - TRAMPOLINE_PAGES.start) * PAGE_SIZE;
        self.write(TRAMPOLINE_PAGES.start * PAGE_SIZE, &vec![INT3; to_usize(bytes)]);
    }

    /// Guest-physical address of the region.
    #[must_use]
    pub fn gpa(&self) -> Gpa {
        self.0.gpa
    }

    /// Host address and length in bytes, for the KVM memory slot at [`Self::gpa`]. The mapping is
    /// valid while `self` lives.
    #[must_use]
    pub fn host_mapping(&self) -> (*mut u8, u64) {
        (self.0.region.as_ptr(), REGION + self.0.more_rings_len)
    }

    /// The guest-virtual base once [`Self::map`] succeeded.
    #[must_use]
    pub fn base(&self) -> Option<Gva> {
        let base = self.0.base.load(Ordering::Acquire);
        (base != NOT_MAPPED).then_some(Gva(base))
    }

    /// Sets the address of the region to the one that [`Self::base`] returned for the guest whose
    /// snapshot is restored.
    pub fn restore_base(&self, base: Option<Gva>) {
        self.0.has_rings.store(false, Ordering::Release);
        self.0.more.store(NOT_MAPPED, Ordering::Release);
        self.0.more_rings.store(NOT_MAPPED, Ordering::Release);
        self.0.base.store(base.map_or(NOT_MAPPED, |gva| gva.0), Ordering::Release);
    }

    fn entry() -> u64 {
        TABLE.0 | PTE_PRESENT | PTE_WRITE | PTE_ACCESSED
    }

    /// Maps the region at [`HIDDEN_GVA`] by one entry of the guest's own page directory, once.
    /// Later calls check that the guest has not changed the entry. It can be called as soon as the
    /// kernel runs on its own page tables. It changes the guest, so it is called only for a probe,
    /// or a quirk of the host.
    ///
    /// # Errors
    /// [`HiddenError`]; the guest's directory is unchanged in that case.
    pub fn map(&self, ram: &GuestRam, mode: PagingMode) -> Result<Gva, HiddenError> {
        if let Some(base) = self.base() {
            let at = directory_entry(ram, mode, base)?;
            return self.check(ram, at, base);
        }
        let at = directory_entry(ram, mode, HIDDEN_GVA)?;
        match load(ram, at)? {
            0 => {
                self.write_table(ram)?;
                ram.store_u64(at, Self::entry())?;
            }
            now if is_entry(now, Self::entry()) => {}
            now => return Err(HiddenError::Taken { gva: HIDDEN_GVA, now }),
        }
        self.0.base.store(HIDDEN_GVA.0, Ordering::Release);
        Ok(HIDDEN_GVA)
    }

    fn check(&self, ram: &GuestRam, at: Gpa, gva: Gva) -> Result<Gva, HiddenError> {
        let now = load(ram, at)?;
        if is_entry(now, Self::entry()) {
            Ok(gva)
        } else {
            Err(HiddenError::Overwritten { gva, now })
        }
    }

    /// Under page-table isolation an exception in user mode enters the kernel on page tables that
    /// map little but its entry code (Linux's pti.rst): maps the stub page there as well, and no
    /// other. Their root is the page above the kernel's (`mode`), and they map `entry_code` as the
    /// kernel's do. If they do not, there is no isolation, and this does nothing. [`Self::map`]
    /// must be called before.
    ///
    /// # Errors
    /// [`HiddenError`]; nothing was written to the guest in that case.
    pub(crate) fn map_stubs_for_user(
        &self,
        ram: &GuestRam,
        mode: PagingMode,
        entry_code: Gva,
    ) -> Result<(), HiddenError> {
        let Some(base) = self.base() else { return Ok(()) };
        let user = PagingMode { cr3: mode.cr3 & PTE_ADDR_MASK | USER_HALF, ..mode };
        let found = |root| paging::translate(ram, root, entry_code).ok().map(|found| found.gpa);
        if found(user).is_none() || found(user) != found(mode) {
            return Ok(());
        }
        let at = directory_entry(ram, user, base).map_err(HiddenError::UserTables)?;
        let now = load(ram, at)?;
        // The kernel's own directory: the tables are those of two processes, adjacent by chance.
        if at == directory_entry(ram, mode, base)? || is_entry(now, Self::user_entry()) {
            return Ok(());
        }
        if now != 0 {
            return Err(HiddenError::Overwritten { gva: base, now });
        }
        self.write_user_table(ram)?;
        Ok(ram.store_u64(at, Self::user_entry())?)
    }

    fn user_entry() -> u64 {
        USER_TABLE.0 | PTE_PRESENT | PTE_WRITE | PTE_ACCESSED
    }

    /// The VMM's own code page, once mapped.
    #[must_use]
    pub(crate) fn stub_window(&self) -> Option<Window> {
        self.window(STUB_PAGE..STUB_PAGE + 1)
    }

    /// The trampolines of return probes, once mapped: one per byte, each an int3.
    #[must_use]
    pub fn trampoline_window(&self) -> Option<Window> {
        self.window(TRAMPOLINE_PAGES)
    }

    /// The slots of probes, once mapped.
    #[must_use]
    pub fn code_window(&self) -> Option<Window> {
        self.window(CODE_PAGES)
    }

    /// The code of optimized probes, once mapped.
    #[must_use]
    pub fn detour_window(&self) -> Option<Window> {
        self.window(DETOUR_PAGES)
    }

    /// The memory that this code writes, once mapped.
    #[must_use]
    pub fn data_window(&self) -> Option<Window> {
        self.window(DATA_PAGES)
    }

    fn window(&self, pages: Range<u64>) -> Option<Window> {
        let base = self.base()?;
        let offset = pages.start * PAGE_SIZE;
        let len = (pages.end - pages.start) * PAGE_SIZE;
        Some(Window { gva: base.wrapping_add(offset), offset, len })
    }

    /// Writes `data` at `offset` of the region.
    ///
    /// # Panics
    /// If the range is not inside the region: offsets come from a [`Window`], never from a guest.
    pub fn write(&self, offset: u64, data: &[u8]) {
        let slice = self.0.region.as_volatile_slice_at(to_usize(offset), data.len());
        slice.copy_from(data);
    }

    /// The 64-bit word at `offset`, a multiple of 8, which the guest may write at the same time.
    /// Loads that follow it see the writes before the word's (acquire).
    ///
    /// # Panics
    /// As [`Self::write`].
    #[must_use]
    pub fn load_u64(&self, offset: u64) -> u64 {
        let slice = self.0.region.as_volatile_slice_at(to_usize(offset), size_of::<u64>());
        slice.load(0, Ordering::Acquire).expect("a word that is aligned and inside")
    }

    /// Replaces the word at `offset`, a multiple of 8. Earlier writes are visible before it
    /// (release).
    ///
    /// # Panics
    /// As [`Self::write`].
    pub fn store_u64(&self, offset: u64, word: u64) {
        let slice = self.0.region.as_volatile_slice_at(to_usize(offset), size_of::<u64>());
        slice.store(word, 0, Ordering::Release).expect("a word that is aligned and inside");
    }

    /// Sets `len` bytes at `offset`, both multiples of 8, to zero, word by word as
    /// [`Self::store_u64`]. Pages that are zero are not written: the host need not give them.
    ///
    /// # Panics
    /// As [`Self::write`].
    pub fn clear_u64s(&self, offset: u64, len: u64) {
        let slice = self.0.region.as_volatile_slice_at(to_usize(offset), to_usize(len));
        for at in (0..to_usize(len)).step_by(size_of::<u64>()) {
            let word = slice.get_atomic_ref::<AtomicU64>(at).expect("it is aligned and inside");
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Release);
            }
        }
    }

    /// Replaces the word at `offset`, a multiple of 8, by `new` if it is `current`; atomic with
    /// respect to the guest's own locked accesses.
    ///
    /// # Errors
    /// The present word, if it differs.
    ///
    /// # Panics
    /// As [`Self::write`].
    pub fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<(), u64> {
        let slice = self.0.region.as_volatile_slice_at(to_usize(offset), size_of::<u64>());
        let word = slice.get_atomic_ref::<AtomicU64>(0).expect("a word that is aligned and inside");
        let swapped = word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
        swapped.map(|_| ())
    }

    /// Reads `buf.len()` bytes at `offset` of the region.
    ///
    /// # Panics
    /// As [`Self::write`].
    pub fn read(&self, offset: u64, buf: &mut [u8]) {
        let slice = self.0.region.as_volatile_slice_at(to_usize(offset), buf.len());
        slice.copy_to(buf);
    }
}

/// Address of the page-directory entry for `gva`.
fn directory_entry(ram: &GuestRam, mode: PagingMode, gva: Gva) -> Result<Gpa, PagingError> {
    Ok(paging::entry_address(paging::table_for(ram, mode, gva, 2)?, gva, 2))
}

fn load(ram: &GuestRam, at: Gpa) -> Result<u64, OutsideMemory> {
    ram.read_u64(at).ok_or(OutsideMemory { gpa: at, len: 8 })
}

/// Returns true if `now` is `entry`. The CPU sets the accessed (and, unused in a table entry, the
/// dirty) bit by itself.
fn is_entry(now: u64, entry: u64) -> bool {
    now | PTE_ACCESSED | PTE_DIRTY == entry | PTE_ACCESSED | PTE_DIRTY
}

/// Bounds-checked slices of the region: the only place where an offset becomes memory.
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

pub use rings::RINGS;

#[cfg(test)]
mod tests;
