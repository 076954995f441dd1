//! The guest's RAM as the VMM sees it.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use vm_memory::mmap::{MmapRegionBuilder, MmapRegionError};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap, VolatileMemory,
};

use crate::addr::Gpa;
use crate::layout;
use crate::paging::ReadPhys;

/// Bytes of RAM that are copied at once to a file.
pub(crate) const CHUNK: usize = 1 << 20;
const PROT_RAM: i32 = libc::PROT_READ | libc::PROT_WRITE;
const MAP_RAM: i32 = libc::MAP_ANONYMOUS | libc::MAP_PRIVATE | libc::MAP_NORESERVE;

/// Why guest memory could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The host refused the mapping.
    #[error("cannot map {mib} MiB of guest memory: {source}; lower --memory or free host memory")]
    Map {
        /// Size asked for.
        mib: u64,
        /// What mmap said.
        source: vm_memory::mmap::MmapRegionError,
    },
    /// Regions overlap or wrap: a bug in `layout`, or a snapshot that lies.
    #[error("guest memory regions are not valid: {0}")]
    Regions(vm_memory::GuestRegionCollectionError),
    /// A region does not fit below 2^64.
    #[error("guest memory region at {0} wraps around the address space")]
    Wraps(Gpa),
}

/// An access that does not lie wholly inside guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at guest-physical {gpa} are outside guest memory")]
pub struct OutsideMemory {
    /// First byte of the access.
    pub gpa: Gpa,
    /// Bytes asked for.
    pub len: usize,
}

/// A stretch of RAM: where it starts and how many bytes it has.
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
}

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
    /// Fresh zeroed RAM.
    ///
    /// # Errors
    /// [`MemoryError::Map`] when the host has not the address space or memory.
    pub fn anonymous(ranges: &[RamRange]) -> Result<Self, MemoryError> {
        Self::build(ranges, |range| {
            MmapRegionBuilder::new(to_usize(range.len))
                .with_mmap_prot(PROT_RAM)
                .with_mmap_flags(MAP_RAM)
        })
    }

    /// RAM whose first content is in `file`, ranges one behind the other from `offset` on. The
    /// mapping is private: pages are read when touched and the file never changes.
    ///
    /// # Errors
    /// As [`Self::anonymous`].
    pub fn from_file(ranges: &[RamRange], file: File, offset: u64) -> Result<Self, MemoryError> {
        let shared = Arc::new(file);
        let mut at = offset;
        Self::build(ranges, |range| {
            let here = FileOffset::from_arc(Arc::clone(&shared), at);
            at += range.len;
            MmapRegionBuilder::new(to_usize(range.len))
                .with_file_offset(here)
                .with_mmap_prot(PROT_RAM)
                .with_mmap_flags(libc::MAP_PRIVATE | libc::MAP_NORESERVE)
        })
    }

    fn build(
        ranges: &[RamRange],
        mut builder: impl FnMut(&RamRange) -> MmapRegionBuilder,
    ) -> Result<Self, MemoryError> {
        let mut regions = Vec::with_capacity(ranges.len());
        for range in ranges {
            let mapping = builder(range)
                .build()
                .map_err(|source| MemoryError::Map { mib: range.len >> 20, source })?;
            let region = GuestRegionMmap::new(mapping, GuestAddress(range.start.0))
                .ok_or(MemoryError::Wraps(range.start))?;
            regions.push(region);
        }
        let map = GuestMemoryMmap::from_regions(regions).map_err(MemoryError::Regions)?;
        Ok(Self { map: Arc::new(map) })
    }

    /// Makes all RAM zero again, and gives its pages back to the host. RAM that was mapped from a file is
    /// not any more. Who reads meanwhile sees each page as it was or zero.
    ///
    /// # Errors
    /// [`MemoryError::Map`] when the host refuses.
    pub(crate) fn clear(&self) -> Result<(), MemoryError> {
        for region in self.map.iter() {
            let flags = MAP_RAM | libc::MAP_FIXED;
            // SAFETY: the range is exactly one mapping that `self` owns, so no other mapping is replaced, and
            // its owner unmaps the new one in its place. Accesses go through raw pointers and atomics
            // (`words`), for which the memory stays readable and writable all the time (mmap(2) replaces it
            // in one step): to them the guest may have written zeros, as it may at any moment. KVM is told
            // of the change by the host's kernel.
            let mapped = unsafe {
                libc::mmap(region.as_ptr().cast(), region.size(), PROT_RAM, flags, -1, 0)
            };
            if mapped == libc::MAP_FAILED {
                let source = MmapRegionError::Mmap(std::io::Error::last_os_error());
                return Err(MemoryError::Map { mib: region.len() >> 20, source });
            }
        }
        Ok(())
    }

    /// The rust-vmm view, for loaders and device models that want it.
    #[must_use]
    pub fn as_vm_memory(&self) -> &GuestMemoryMmap {
        &self.map
    }

    /// Where RAM lies, in ascending order.
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

    /// Passes a copy of all RAM on, in ascending order, in chunks with their first addresses, until `take` fails.
    ///
    /// # Errors
    /// That of `take`.
    ///
    /// # Panics
    /// Never: what is read is in RAM.
    pub(crate) fn for_each_chunk<E>(
        &self,
        mut take: impl FnMut(Gpa, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut buffer = vec![0; CHUNK];
        for range in self.ranges() {
            for at in (0..range.len).step_by(CHUNK) {
                let chunk = &mut buffer[..to_usize((range.len - at).min(CHUNK as u64))];
                let gpa = Gpa(range.start.0 + at);
                self.read(gpa, chunk).expect("a range of RAM is in RAM");
                take(gpa, chunk)?;
            }
        }
        Ok(())
    }

    /// Reads all of `buf`.
    ///
    /// # Errors
    /// [`OutsideMemory`] when any byte has no RAM behind it; `buf` may then be partly filled.
    pub fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), OutsideMemory> {
        let len = buf.len();
        self.map.read_slice(buf, GuestAddress(gpa.0)).map_err(|_| OutsideMemory { gpa, len })
    }

    /// Writes all of `data`; not atomic for the guest beyond single bytes.
    ///
    /// # Errors
    /// [`OutsideMemory`] when any byte has no RAM behind it.
    pub fn write(&self, gpa: Gpa, data: &[u8]) -> Result<(), OutsideMemory> {
        self.map
            .write_slice(data, GuestAddress(gpa.0))
            .map_err(|_| OutsideMemory { gpa, len: data.len() })
    }

    /// Stores one byte in a single access that a running vCPU sees whole.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    pub fn store_byte(&self, gpa: Gpa, byte: u8) -> Result<(), OutsideMemory> {
        self.map
            .store(byte, GuestAddress(gpa.0), Ordering::SeqCst)
            .map_err(|_| OutsideMemory { gpa, len: 1 })
    }

    /// Replaces a byte if it is `expected`, in a single access that no store of a vCPU comes between; gives
    /// what was there.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    pub fn exchange_byte(&self, gpa: Gpa, expected: u8, byte: u8) -> Result<u8, OutsideMemory> {
        let outside = OutsideMemory { gpa, len: 1 };
        let slice = self.map.get_slice(GuestAddress(gpa.0), 1).map_err(|_| outside)?;
        let atomic = slice.get_atomic_ref::<AtomicU8>(0).map_err(|_| outside)?;
        let found = atomic.compare_exchange(expected, byte, Ordering::SeqCst, Ordering::SeqCst);
        Ok(found.unwrap_or_else(|found| found))
    }

    /// Loads one byte in a single access.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    pub fn load_byte(&self, gpa: Gpa) -> Result<u8, OutsideMemory> {
        self.map
            .load(GuestAddress(gpa.0), Ordering::SeqCst)
            .map_err(|_| OutsideMemory { gpa, len: 1 })
    }

    /// The 64-bit word at `gpa`, a multiple of 8, for single accesses; `None` outside RAM.
    #[must_use]
    pub fn word(&self, gpa: Gpa) -> Option<&AtomicU64> {
        self.words(gpa, 1)?.first()
    }

    /// So many words from `gpa` on, for single accesses, as [`Self::word`]. Hits read by it, so that it must cost
    /// little.
    #[must_use]
    pub fn words(&self, gpa: Gpa, count: usize) -> Option<&[AtomicU64]> {
        let len = count.checked_mul(size_of::<u64>())? as u64;
        if !gpa.0.is_multiple_of(size_of::<u64>() as u64) {
            return None;
        }
        let offset_in = |region: &GuestRegionMmap| {
            let offset = gpa.0.wrapping_sub(region.start_addr().0);
            (offset <= region.len().checked_sub(len)?).then_some(offset)
        };
        let (region, offset) =
            self.map.iter().find_map(|region| Some((region, offset_in(region)?)))?;
        // SAFETY: the words lie inside the region's mapping, as just checked.
        let at = unsafe { region.as_ptr().add(to_usize(offset)) };
        // SAFETY: they are aligned, as mappings and regions' starts are to pages, and mmap initialised them. The mapping
        // stays for as long as `self`; Rust accesses it by raw pointers and atomics only.
        Some(unsafe { std::slice::from_raw_parts(at.cast(), count) })
    }

    /// Stores an aligned 64-bit word in a single access, as a page-table entry must be.
    ///
    /// # Errors
    /// [`OutsideMemory`], also when `gpa` is not a multiple of 8.
    pub fn store_u64(&self, gpa: Gpa, word: u64) -> Result<(), OutsideMemory> {
        self.map
            .store(word, GuestAddress(gpa.0), Ordering::SeqCst)
            .map_err(|_| OutsideMemory { gpa, len: 8 })
    }
}

impl ReadPhys for GuestRam {
    fn read_u64(&self, gpa: Gpa) -> Option<u64> {
        self.word(gpa).map(|word| word.load(Ordering::SeqCst))
    }
}

/// Host address of the first byte of the RAM range that starts at `start`.
pub(crate) fn host_address(ram: &GuestRam, start: Gpa) -> u64 {
    let host = ram.as_vm_memory().get_host_address(GuestAddress(start.0));
    host.expect("the range starts in RAM") as u64
}

/// A 64-bit host is a fact of this crate (x86-64 KVM), so lengths always fit.
#[must_use]
pub(crate) fn to_usize(n: u64) -> usize {
    usize::try_from(n).expect("usize has 64 bits on x86-64")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_is_split_around_the_gap() {
        assert_eq!(ram_ranges(32), [RamRange { start: Gpa(0), len: 32 << 20 }]);
        let big = ram_ranges(4096);
        assert_eq!(big[0].len, 3 << 30);
        assert_eq!(big[1], RamRange { start: Gpa(4 << 30), len: 1 << 30 });
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

    #[test]
    fn cleared_ram_is_zero_and_its_file_is_as_it_was() {
        let ranges = [
            RamRange { start: Gpa(0), len: 1 << 20 },
            RamRange { start: Gpa(1 << 30), len: 1 << 20 },
        ];
        let content = vec![7; 2 << 20];
        let path = std::env::temp_dir().join(format!("exoprobe-ram-{}", std::process::id()));
        std::fs::write(&path, &content).unwrap();
        let from_file = GuestRam::from_file(&ranges, File::open(&path).unwrap(), 0).unwrap();
        let anonymous = GuestRam::anonymous(&ranges).unwrap();
        let last = Gpa((1 << 30) + (1 << 20) - 1);
        for ram in [from_file, anonymous] {
            ram.write(Gpa(0), &[1, 2]).unwrap();
            ram.store_byte(last, 3).unwrap();
            ram.clear().unwrap();
            for range in &ranges {
                let mut bytes = vec![1; to_usize(range.len)];
                ram.read(range.start, &mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| *byte == 0));
            }
            ram.store_byte(last, 4).unwrap();
            assert_eq!(ram.load_byte(last), Ok(4), "it is memory as before");
        }
        assert_eq!(std::fs::read(&path).unwrap(), content);
        std::fs::remove_file(&path).unwrap();
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
