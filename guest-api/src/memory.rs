//! The guest's RAM as the host sees it.

mod logged;

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use vm_memory::mmap::{MmapRegion, MmapRegionBuilder, MmapRegionError};
use vm_memory::{
    Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
};

use crate::addr::{Gpa, to_usize};
use crate::dirty::{HostWrites, LoggedHostWrites, Pagemap};
use crate::layout;
use crate::paging::{PAGE_SIZE, ReadPhys};

pub use logged::{LoggedBytes, LoggedWord};

/// Bytes of a word.
const WORD: u64 = size_of::<u64>() as u64;

const PROT_RAM: i32 = libc::PROT_READ | libc::PROT_WRITE;
const MAP_RAM: i32 = libc::MAP_ANONYMOUS | libc::MAP_PRIVATE | libc::MAP_NORESERVE;

/// The reason why guest memory could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The host refused the mapping.
    #[error("cannot map {mib} MiB of guest memory: {source}; lower --memory or free host memory")]
    Map {
        /// The size requested.
        mib: u64,
        /// mmap's error.
        source: vm_memory::mmap::MmapRegionError,
    },
    /// Regions overlap or wrap: a bug in `layout`, or a damaged snapshot.
    #[error("guest memory regions are not valid: {0}")]
    Regions(vm_memory::GuestRegionCollectionError),
    /// A region does not fit below 2^64.
    #[error("guest memory region at {0} wraps around the address space")]
    Wraps(Gpa),
    /// There is no region at all.
    #[error("guest memory has no region")]
    Empty,
    /// A region does not begin and end at a page.
    #[error("guest memory region at {0} is not of whole pages of 4 KiB")]
    Unaligned(Gpa),
    /// A region is mapped without read or write access.
    #[error("guest memory region at {0} is not mapped readable and writable")]
    Protection(Gpa),
}

/// An access that does not lie wholly inside guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at guest-physical {gpa} are outside guest memory")]
pub struct OutsideMemory {
    /// First byte of the access.
    pub gpa: Gpa,
    /// The number of bytes requested.
    pub len: usize,
}

/// A range of RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RamRange {
    /// First guest-physical address.
    pub start: Gpa,
    /// Length in bytes.
    pub len: u64,
}

/// All RAM of a guest. Cheap to clone: clones share the memory.
#[derive(Clone, Debug)]
pub struct GuestRam {
    map: Arc<GuestMemoryMmap>,
    /// Its first region, and the others, for hits' look-ups.
    first: Span,
    others: Arc<[Span]>,
    host_writes: Arc<HostWrites>,
    pagemap: Option<Arc<Pagemap>>,
}

/// A region of RAM and its mapping.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u64,
    len: u64,
    at: NonNull<u8>,
}

impl Span {
    fn of(region: &GuestRegionMmap) -> Option<Self> {
        let (start, len) = (region.start_addr().0, region.len());
        Some(Self { start, len, at: NonNull::new(region.as_ptr())? })
    }

    #[inline]
    fn has(&self, gpa: Gpa) -> bool {
        gpa.0.wrapping_sub(self.start) < self.len
    }
}

// SAFETY: the mapping is not a thread's own, and all accesses to it are atomic or volatile.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

/// The RAM layout of a machine with `mib` MiB: split around the MMIO gap below 4 GiB.
#[must_use]
pub fn ram_ranges(mib: u64) -> Vec<RamRange> {
    let total = mib << 20;
    let low = RamRange { start: Gpa(0), len: total.min(layout::MMIO_GAP_START) };
    let mut ranges = vec![low];
    if total > layout::MMIO_GAP_START {
        let start = Gpa(layout::MMIO_GAP_END);
        ranges.push(RamRange { start, len: total - layout::MMIO_GAP_START });
    }
    ranges
}

impl GuestRam {
    /// RAM that a VMM has already mapped. The regions are shared, not copied. Whether they are part
    /// of core dumps stays as it is. Opens `/proc/self/pagemap`, if it may: searches of RAM read
    /// it, also in a process that can open no files any more.
    ///
    /// ```
    /// use exoprobe_guest::{Gpa, GuestRam};
    /// use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
    ///
    /// let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 1 << 20)])?;
    /// let ram = GuestRam::new(memory.clone())?;
    /// memory.write_obj(0x1234_u16, GuestAddress(0x1000))?;
    /// assert_eq!(ram.load_byte(Gpa(0x1001))?, 0x12);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`MemoryError::Empty`] without a region, [`MemoryError::Unaligned`] for a region that does
    /// not consist of whole pages, [`MemoryError::Protection`] for one that the host may not both
    /// read and write.
    pub fn new(map: GuestMemoryMmap) -> Result<Self, MemoryError> {
        let mut spans = map.iter().filter_map(Span::of);
        let (first, others) = (spans.next().ok_or(MemoryError::Empty)?, spans.collect());
        for region in map.iter() {
            let start = Gpa(region.start_addr().0);
            let is_aligned = |n: u64| n.is_multiple_of(PAGE_SIZE);
            if !is_aligned(start.0) || !is_aligned(region.len()) {
                return Err(MemoryError::Unaligned(start));
            }
            if region.prot() & PROT_RAM != PROT_RAM {
                return Err(MemoryError::Protection(start));
            }
        }
        let end = Gpa(map.last_addr().0 + 1);
        let host_writes = Arc::new(HostWrites::below(end));
        let pagemap = Pagemap::open().map(Arc::new);
        Ok(Self { map: Arc::new(map), first, others, host_writes, pagemap })
    }

    /// The memory as crates of rust-vmm take it. Their accesses are volatile, as ours.
    #[must_use]
    pub fn as_memory(&self) -> &GuestMemoryMmap {
        &self.map
    }

    /// Fresh zeroed RAM, which is not part of core dumps.
    ///
    /// # Errors
    /// [`MemoryError::Map`] if the host lacks the address space or memory.
    pub fn anonymous(ranges: &[RamRange]) -> Result<Self, MemoryError> {
        Self::map(ranges, |range| {
            MmapRegionBuilder::new(to_usize(range.len))
                .with_mmap_prot(PROT_RAM)
                .with_mmap_flags(MAP_RAM)
        })
    }

    /// RAM with one mapping per range, each made by `builder`: readable and writable, as long as
    /// the range. It is not part of core dumps.
    ///
    /// # Errors
    /// As [`Self::anonymous`], and those of [`Self::new`].
    pub fn map(
        ranges: &[RamRange],
        mut builder: impl FnMut(&RamRange) -> MmapRegionBuilder,
    ) -> Result<Self, MemoryError> {
        let mut regions = Vec::with_capacity(ranges.len());
        for range in ranges {
            let mapping = undumped(builder(range).build(), range.len)?;
            let region = GuestRegionMmap::new(mapping, GuestAddress(range.start.0))
                .ok_or(MemoryError::Wraps(range.start))?;
            regions.push(region);
        }
        Self::new(GuestMemoryMmap::from_regions(regions).map_err(MemoryError::Regions)?)
    }

    /// The rust-vmm view, for loaders and device models that need it.
    #[must_use]
    pub fn as_vm_memory(&self) -> &GuestMemoryMmap {
        &self.map
    }

    /// The ranges of RAM, in ascending order.
    #[must_use]
    pub fn ranges(&self) -> Vec<RamRange> {
        self.map.iter().map(|r| RamRange { start: Gpa(r.start_addr().0), len: r.len() }).collect()
    }

    /// Bytes of RAM.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.map.iter().map(GuestMemoryRegion::len).sum()
    }

    /// First guest-physical address above all RAM.
    #[must_use]
    pub fn end(&self) -> Gpa {
        Gpa(self.map.last_addr().0 + 1)
    }

    /// Reads all of `buf`.
    ///
    /// # Errors
    /// [`OutsideMemory`] if any byte is not RAM; `buf` may then be partly filled.
    pub fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), OutsideMemory> {
        let len = buf.len();
        // Most values of hits are part of a word, which is read at once.
        let start = to_usize(gpa.offset_in(WORD));
        if len > 0 && start + len <= size_of::<u64>() {
            let word = self.word(gpa.align_down(WORD)).ok_or(OutsideMemory { gpa, len })?;
            let bytes = word.load(Ordering::SeqCst).to_ne_bytes();
            buf.copy_from_slice(&bytes[start..start + len]);
            return Ok(());
        }
        self.map.read_slice(buf, GuestAddress(gpa.0)).map_err(|_| OutsideMemory { gpa, len })
    }

    /// Logs the pages that this and its clones store to from now on, until the value is dropped.
    /// Stores by [`Self::as_memory`] and [`Self::words`] are not logged. One log at a time.
    #[must_use = "the log ends when it is dropped"]
    pub fn log_host_writes(&self) -> LoggedHostWrites<'_> {
        LoggedHostWrites::start(&self.host_writes)
    }

    /// Which of its pages the host has memory for; `None` where the host does not report it.
    pub(crate) fn pagemap(&self) -> Option<&Pagemap> {
        self.pagemap.as_deref()
    }

    /// Writes all of `data`; not atomic for the guest beyond single bytes.
    ///
    /// # Errors
    /// [`OutsideMemory`] if any byte is not RAM.
    pub fn write(&self, gpa: Gpa, data: &[u8]) -> Result<(), OutsideMemory> {
        let written = self.map.write_slice(data, GuestAddress(gpa.0));
        self.host_writes.mark(gpa, data.len());
        written.map_err(|_| OutsideMemory { gpa, len: data.len() })
    }

    /// Stores one byte in a single access that a running vCPU sees whole.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    pub fn store_byte(&self, gpa: Gpa, byte: u8) -> Result<(), OutsideMemory> {
        self.byte(gpa)?.store(byte, Ordering::SeqCst);
        self.host_writes.mark(gpa, 1);
        Ok(())
    }

    /// Replaces a byte if it is `expected`, in a single access that is atomic with respect to
    /// vCPUs' stores. Returns the old byte.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    pub fn exchange_byte(&self, gpa: Gpa, expected: u8, byte: u8) -> Result<u8, OutsideMemory> {
        let place = self.byte(gpa)?;
        let found = place.compare_exchange(expected, byte, Ordering::SeqCst, Ordering::SeqCst);
        self.host_writes.mark(gpa, 1);
        Ok(found.unwrap_or_else(|found| found))
    }

    /// Loads one byte in a single access.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    pub fn load_byte(&self, gpa: Gpa) -> Result<u8, OutsideMemory> {
        Ok(self.byte(gpa)?.load(Ordering::SeqCst))
    }

    fn byte(&self, gpa: Gpa) -> Result<&AtomicU8, OutsideMemory> {
        let bytes = self.bytes(gpa, 1).and_then(<[AtomicU8]>::first);
        bytes.ok_or(OutsideMemory { gpa, len: 1 })
    }

    /// `count` bytes from `gpa` on, for single accesses.
    #[inline]
    fn bytes(&self, gpa: Gpa, count: usize) -> Option<&[AtomicU8]> {
        let at = self.place(gpa, count as u64)?;
        // SAFETY: as in `words`; bytes are aligned.
        Some(unsafe { std::slice::from_raw_parts(at.cast().as_ptr(), count) })
    }

    /// `count` bytes from `gpa` on, for stores that are logged as well; `None` unless all are RAM
    /// of one range.
    #[inline]
    #[must_use]
    pub fn logged_bytes(&self, gpa: Gpa, count: usize) -> Option<LoggedBytes<'_>> {
        Some(LoggedBytes::new(self.bytes(gpa, count)?, gpa, &self.host_writes))
    }

    /// The 64-bit word at `gpa`, a multiple of 8, for single accesses; `None` outside RAM. Hits
    /// walk page tables by it, so it must be cheap.
    #[inline]
    #[must_use]
    pub fn word(&self, gpa: Gpa) -> Option<&AtomicU64> {
        if !gpa.0.is_multiple_of(WORD) {
            return None;
        }
        let span = self.span(gpa)?;
        // SAFETY: the byte lies inside the region's mapping, and so does all of its word: regions
        // are of whole pages (`new`).
        let at = unsafe { span.at.add(to_usize(gpa.0 - span.start)) };
        // SAFETY: as in `words`.
        Some(unsafe { at.cast::<AtomicU64>().as_ref() })
    }

    /// The word at `gpa`, for stores that are logged as well; `None` outside RAM.
    #[inline]
    #[must_use]
    pub fn logged_word(&self, gpa: Gpa) -> Option<LoggedWord<'_>> {
        Some(LoggedWord::new(self.word(gpa)?, gpa, &self.host_writes))
    }

    /// The address of `len` bytes in this process; `None` unless all are RAM of one range.
    #[inline]
    fn place(&self, gpa: Gpa, len: u64) -> Option<NonNull<u8>> {
        let span = self.span(gpa)?;
        let offset = gpa.0 - span.start;
        if span.len - offset < len {
            return None;
        }
        // SAFETY: the bytes lie inside the region's mapping, as just checked.
        Some(unsafe { span.at.add(to_usize(offset)) })
    }

    /// The region with `gpa`.
    #[inline]
    fn span(&self, gpa: Gpa) -> Option<&Span> {
        match self.first.has(gpa) {
            true => Some(&self.first),
            false => self.others.iter().find(|span| span.has(gpa)),
        }
    }

    /// `count` words from `gpa` on, for single accesses, as [`Self::word`]. Hits read memory by it,
    /// so it must be cheap.
    #[inline]
    #[must_use]
    pub fn words(&self, gpa: Gpa, count: usize) -> Option<&[AtomicU64]> {
        let len = count.checked_mul(size_of::<u64>())? as u64;
        if !gpa.0.is_multiple_of(size_of::<u64>() as u64) {
            return None;
        }
        let at = self.place(gpa, len)?;
        // SAFETY: they lie inside one mapping (`place`), and are aligned, as mappings and regions'
        // starts are to pages (`new`), and mmap initialised them. `map` keeps the mapping for as
        // long as `self`; Rust accesses it by raw pointers and atomics only.
        Some(unsafe { std::slice::from_raw_parts(at.cast().as_ptr(), count) })
    }

    /// Stores an aligned 64-bit word in a single access, as page-table entries require.
    ///
    /// # Errors
    /// [`OutsideMemory`], also if `gpa` is not a multiple of 8.
    pub fn store_u64(&self, gpa: Gpa, word: u64) -> Result<(), OutsideMemory> {
        let place = self.logged_word(gpa).ok_or(OutsideMemory { gpa, len: size_of::<u64>() })?;
        place.store(word);
        Ok(())
    }
}

impl ReadPhys for GuestRam {
    #[inline]
    fn read_u64(&self, gpa: Gpa) -> Option<u64> {
        self.word(gpa).map(|word| word.load(Ordering::SeqCst))
    }
}

/// A mapping of guest memory that was made, of `len` bytes; it is left out of core dumps.
pub(crate) fn undumped(
    made: Result<MmapRegion, MmapRegionError>,
    len: u64,
) -> Result<MmapRegion, MemoryError> {
    let left_out = |region: MmapRegion| {
        leave_out_of_dumps(region.as_ptr(), region.size()).map_err(MmapRegionError::Mmap)?;
        Ok(region)
    };
    made.and_then(left_out).map_err(|source| MemoryError::Map { mib: len >> 20, source })
}

/// Leaves pages of this process out of its core dumps (madvise(2), MADV_DONTDUMP), for as long as
/// their mapping lasts. `at` is a page's start.
///
/// # Errors
/// madvise's.
pub fn leave_out_of_dumps(at: *mut u8, len: usize) -> io::Result<()> {
    // Miri has no core dumps.
    if cfg!(miri) {
        return Ok(());
    }
    // SAFETY: this advice changes neither content nor access, whatever is mapped there.
    let result = unsafe { libc::madvise(at.cast(), len, libc::MADV_DONTDUMP) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::has_vm_flag;

    #[test]
    fn ram_is_split_around_the_gap() {
        assert_eq!(ram_ranges(32), [RamRange { start: Gpa(0), len: 32 << 20 }]);
        let big = ram_ranges(4096);
        assert_eq!(big[0].len, 3 << 30);
        assert_eq!(big[1], RamRange { start: Gpa(4 << 30), len: 1 << 30 });
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no /proc/self/smaps")]
    fn ram_is_left_out_of_core_dumps() {
        let ram = GuestRam::anonymous(&ram_ranges(1)).unwrap();
        let at = ram.words(Gpa(0), 1).unwrap().as_ptr().addr();
        assert!(has_vm_flag(at, "dd"));
        let embedders = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        let ram = GuestRam::new(embedders).unwrap();
        let at = ram.words(Gpa(0), 1).unwrap().as_ptr().addr();
        assert!(!has_vm_flag(at, "dd"), "another VMM decides itself");
    }

    #[test]
    fn aligned_words_of_ram_are_found_and_no_others() {
        let ranges = [(0, 4096), (1 << 20, 8192)];
        let ram = ranges.map(|(start, len)| RamRange { start: Gpa(start), len });
        let ram = GuestRam::anonymous(&ram).unwrap();
        for at in [0, 0x100, 4088, 1 << 20, (1 << 20) + 8184] {
            ram.word(Gpa(at)).unwrap().store(at + 7, Ordering::SeqCst);
            let mut bytes = [0; 8];
            ram.read(Gpa(at), &mut bytes).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), at + 7);
        }
        let none = [4, 4089, 4096, (1 << 20) - 8, (1 << 20) + 8192, u64::MAX - 7, u64::MAX];
        assert!(none.into_iter().all(|at| ram.word(Gpa(at)).is_none()));
        assert_eq!(ram.words(Gpa(4080), 2).map(<[_]>::len), Some(2));
        for (at, count) in [(4080, 3), (0, usize::MAX), (0, 1 << 61), (1 << 20, 1025), (4, 1)] {
            assert!(ram.words(Gpa(at), count).is_none());
        }
    }

    /// Under Miri, a word without interior mutability would be an error here.
    #[test]
    fn a_word_that_is_held_sees_what_is_written_meanwhile() {
        let ram = GuestRam::anonymous(&[RamRange { start: Gpa(0), len: 4096 }]).unwrap();
        let words = ram.words(Gpa(0), 2).unwrap();
        ram.write(Gpa(8), &[7; 8]).unwrap();
        ram.store_u64(Gpa(0), 9).unwrap();
        assert_eq!(words[0].load(Ordering::SeqCst), 9);
        assert_eq!(words[1].load(Ordering::SeqCst).to_le_bytes(), [7; 8]);
        std::thread::scope(|scope| {
            scope.spawn(|| ram.store_u64(Gpa(0), 1).unwrap());
            while words[0].load(Ordering::SeqCst) != 1 {
                std::thread::yield_now();
            }
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no mapping that is only read")]
    fn only_whole_pages_that_can_be_written_are_ram() {
        let region = |start: u64, len: usize, prot: i32| {
            let builder = MmapRegionBuilder::new(len).with_mmap_prot(prot).with_mmap_flags(MAP_RAM);
            let region = GuestRegionMmap::new(builder.build().unwrap(), GuestAddress(start));
            GuestRam::new(GuestMemoryMmap::from_regions(vec![region.unwrap()]).unwrap())
        };
        assert!(region(0x1000, 0x2000, PROT_RAM).is_ok());
        for (start, len) in [(0x1004, 0x1000), (0x1000, 0x1800)] {
            let refused = region(start, len, PROT_RAM);
            assert!(matches!(refused, Err(MemoryError::Unaligned(at)) if at == Gpa(start)));
        }
        let refused = region(0x1000, 0x1000, libc::PROT_READ);
        assert!(matches!(refused, Err(MemoryError::Protection(Gpa(0x1000)))));
        assert!(matches!(GuestRam::new(GuestMemoryMmap::new()), Err(MemoryError::Empty)));
    }

    #[test]
    fn accesses_are_all_or_nothing_at_the_edge() {
        let ram = GuestRam::anonymous(&ram_ranges(1)).unwrap();
        let edge = Gpa((1 << 20) - 2);
        ram.write(edge, &[1, 2]).unwrap();
        assert_eq!(ram.load_byte(Gpa(edge.0 + 1)), Ok(2));
        assert_eq!(ram.write(edge, &[0; 4]), Err(OutsideMemory { gpa: edge, len: 4 }));
        assert!(ram.read(Gpa(u64::MAX - 1), &mut [0; 8]).is_err());
        assert_eq!(ram.read_u64(Gpa(1 << 20)), None);
        assert!(ram.store_u64(Gpa(1), 0).is_err(), "page-table entries are aligned");
    }
}
