//! A guest's memory by virtual address.

use std::ops::Range;

use exoprobe_guest::paging::{self, PagingError, PagingMode, ReadPhys, Translation};
use exoprobe_guest::{Gpa, Gva};

use crate::view::{GuestView, ReadError};

/// Bytes fetched at once while looking for the end of a string; a power of two that divides the
/// page size, so that a block never crosses a page.
const STRING_BLOCK: usize = 64;
/// Bytes of a word.
const WORD: u64 = 8;

/// Reasons why virtual memory cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VirtualReadError {
    /// An address of the range has no translation.
    #[error("no translation for guest-virtual {gva}: {source}")]
    Unmapped {
        /// First address of the range that is not mapped.
        gva: Gva,
        /// Where the walk ended.
        source: PagingError,
    },
    /// An address of the range maps to where the guest has no memory (a device, or nothing).
    #[error("guest-virtual {gva} maps to no memory: {source}")]
    NoMemory {
        /// First address of the piece that could not be read.
        gva: Gva,
        /// The physical range it maps to.
        source: ReadError,
    },
    /// The range passes the end of the address space.
    #[error("{len} bytes at guest-virtual {gva} pass the end of the address space")]
    PastEnd {
        /// First address asked for.
        gva: Gva,
        /// Bytes asked for.
        len: usize,
    },
}

/// A string read from guest memory, without its terminating NUL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestString {
    /// The bytes as they are; Linux promises no encoding.
    pub bytes: Vec<u8>,
    /// Whether a NUL ended it. If not, the string is longer than was asked for.
    pub terminated: bool,
}

/// A guest's virtual address space under one set of page tables.
///
/// The paging registers are read once, at creation. The tables themselves are walked anew by each
/// read, so a running guest may change them in between.
#[derive(Debug)]
pub struct VirtualMemory<'a, V: ?Sized> {
    view: &'a V,
    mode: PagingMode,
}

struct Words<'a, V: ?Sized>(&'a V);

impl<V: GuestView + ?Sized> ReadPhys for Words<'_, V> {
    fn read_u64(&self, gpa: Gpa) -> Option<u64> {
        self.0.read_word(gpa)
    }
}

impl<'a, V: GuestView + ?Sized> VirtualMemory<'a, V> {
    /// The address space the guest uses now.
    ///
    /// # Errors
    /// [`PagingError::NotLongMode`] while the guest does not run with 64-bit tables.
    pub fn new(view: &'a V) -> Result<Self, PagingError> {
        Ok(Self::with_mode(view, view.paging()?))
    }

    /// The address space of other tables than the current ones (another task's, or the kernel's
    /// own while a user's are loaded under page-table isolation).
    #[must_use]
    pub fn with_mode(view: &'a V, mode: PagingMode) -> Self {
        Self { view, mode }
    }

    /// The tables in use.
    #[must_use]
    pub fn mode(&self) -> PagingMode {
        self.mode
    }

    /// Where `gva` lies in physical memory, and with which permissions.
    ///
    /// # Errors
    /// [`PagingError`] where the CPU itself would fault.
    pub fn translate(&self, gva: Gva) -> Result<Translation, PagingError> {
        paging::translate(&Words(self.view), self.mode, gva)
    }

    /// Fills `buf` from `gva` on, across pages of any size. Permissions are not checked: the
    /// reader stands outside the guest. After an error the contents of `buf` are unspecified.
    ///
    /// # Errors
    /// [`VirtualReadError`], naming the first address that could not be read.
    pub fn read(&self, gva: Gva, buf: &mut [u8]) -> Result<(), VirtualReadError> {
        // Most values of hits are part of a word, which is read at once.
        let start = gva.offset_in(WORD);
        if start + buf.len() as u64 <= WORD
            && let Ok(word) = self.read_u64(gva.align_down(WORD))
        {
            let bytes = word.to_le_bytes();
            let start = usize::try_from(start).expect("below 8");
            buf.copy_from_slice(&bytes[start..start + buf.len()]);
            return Ok(());
        }
        self.for_each_piece(gva, buf.len(), |gpa, piece| self.view.read_phys(gpa, &mut buf[piece]))
    }

    /// Splits `len` bytes from `gva` on into pieces that are contiguous in physical memory, in
    /// order. Calls `access` with the place of each, and its range of the bytes.
    ///
    /// # Errors
    /// As [`Self::read`], and the error that `access` returns; pieces before have been accessed.
    pub fn for_each_piece(
        &self,
        gva: Gva,
        len: usize,
        mut access: impl FnMut(Gpa, Range<usize>) -> Result<(), ReadError>,
    ) -> Result<(), VirtualReadError> {
        let past_end = VirtualReadError::PastEnd { gva, len };
        let mut done = 0;
        while done < len {
            let at = gva.checked_add(done as u64).ok_or(past_end)?;
            let found = self
                .translate(at)
                .map_err(|source| VirtualReadError::Unmapped { gva: at, source })?;
            let in_page = usize::try_from(found.bytes_left()).unwrap_or(usize::MAX);
            let piece = in_page.min(len - done);
            access(found.gpa, done..done + piece)
                .map_err(|source| VirtualReadError::NoMemory { gva: at, source })?;
            done += piece;
        }
        Ok(())
    }

    /// The little-endian 64-bit word at `gva`, which need not be aligned.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_u64(&self, gva: Gva) -> Result<u64, VirtualReadError> {
        const LEN: usize = size_of::<u64>();
        if gva.0.is_multiple_of(LEN as u64) {
            let found = self.translate(gva);
            let gpa = found.map_err(|source| VirtualReadError::Unmapped { gva, source })?.gpa;
            let source = ReadError::OutsideMemory { gpa, len: LEN };
            return self.view.read_word(gpa).ok_or(VirtualReadError::NoMemory { gva, source });
        }
        let mut word = [0; LEN];
        self.read(gva, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// The string at `gva`, up to its NUL or `max` bytes, whichever comes first. Memory after the
    /// NUL's block of 64 bytes is not touched, so it may be unmapped.
    ///
    /// # Errors
    /// As [`Self::read`], where memory ends before the string does.
    pub fn read_cstr(&self, gva: Gva, max: usize) -> Result<GuestString, VirtualReadError> {
        let mut bytes = Vec::new();
        let mut block = [0; STRING_BLOCK];
        while bytes.len() < max {
            let past_end = VirtualReadError::PastEnd { gva, len: bytes.len() + 1 };
            let at = gva.checked_add(bytes.len() as u64).ok_or(past_end)?;
            let used = usize::try_from(at.offset_in(STRING_BLOCK as u64)).unwrap_or(0);
            let piece = &mut block[used..];
            let wanted = piece.len().min(max - bytes.len());
            let piece = &mut piece[..wanted];
            self.read(at, piece)?;
            if let Some(nul) = piece.iter().position(|byte| *byte == 0) {
                bytes.extend_from_slice(&piece[..nul]);
                return Ok(GuestString { bytes, terminated: true });
            }
            bytes.extend_from_slice(piece);
        }
        Ok(GuestString { bytes, terminated: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::MemoryImage;
    use exoprobe_guest::paging::{PAGE_SIZE, PTE_LARGE, PTE_PRESENT};
    use proptest::prelude::*;

    /// Where the test's first mapped page lies.
    const KERNEL: Gva = Gva(0xffff_ffff_8100_0000);
    /// Virtual address of a 1 GiB page that maps physical 0.
    const LARGE: Gva = Gva(0xffff_ffff_c000_0000);

    fn put(bytes: &mut [u8], at: usize, word: u64) {
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// Four tables at 0x0 to 0x3fff, then three pages. Virtual pages 0, 1 and 3 from `KERNEL` on
    /// map physical 0x6000, 0x4000 (reversed order) and, outside memory, 0x9000.
    fn image() -> MemoryImage {
        let mut bytes = vec![0; 0x7000];
        put(&mut bytes, 511 * 8, 0x1000 | PTE_PRESENT);
        put(&mut bytes, 0x1000 + 510 * 8, 0x2000 | PTE_PRESENT);
        put(&mut bytes, 0x1000 + 511 * 8, PTE_PRESENT | PTE_LARGE);
        put(&mut bytes, 0x2000 + 8 * 8, 0x3000 | PTE_PRESENT);
        put(&mut bytes, 0x3000, 0x6000 | PTE_PRESENT);
        put(&mut bytes, 0x3000 + 8, 0x4000 | PTE_PRESENT);
        put(&mut bytes, 0x3000 + 24, 0x9000 | PTE_PRESENT);
        bytes[0x6ffc..0x7000].copy_from_slice(b"exop");
        bytes[0x4000..0x4005].copy_from_slice(b"robe\0");
        bytes[0x4f80..0x5000].fill(b'x');
        MemoryImage::new(Gpa(0), bytes, PagingMode { cr3: 0, levels: 4 })
    }

    #[test]
    fn reads_cross_pages_that_are_not_neighbours() {
        let image = image();
        let memory = VirtualMemory::new(&image).unwrap();
        let word = memory.read_u64(Gva(KERNEL.0 + PAGE_SIZE - 4)).unwrap();
        assert_eq!(&word.to_le_bytes(), b"exoprobe");
        assert_eq!(memory.translate(KERNEL).unwrap().gpa, Gpa(0x6000));
        assert_eq!(memory.mode(), PagingMode { cr3: 0, levels: 4 });
    }

    #[test]
    fn an_error_names_the_first_address_that_cannot_be_read() {
        let image = image();
        let memory = VirtualMemory::new(&image).unwrap();
        let gva = Gva(KERNEL.0 + 2 * PAGE_SIZE);
        let source = PagingError::NotPresent { gva, level: 1 };
        let unmapped = Err(VirtualReadError::Unmapped { gva, source });
        assert_eq!(memory.read(Gva(gva.0 - 6), &mut [0; 16]), unmapped);
        let gva = Gva(KERNEL.0 + 3 * PAGE_SIZE);
        let source = ReadError::OutsideMemory { gpa: Gpa(0x9000), len: 8 };
        assert_eq!(memory.read_u64(gva), Err(VirtualReadError::NoMemory { gva, source }));
        assert_eq!(memory.read(gva, &mut []), Ok(()), "nothing is always there");
    }

    #[test]
    fn strings_end_at_their_nul_or_at_the_limit() {
        let image = image();
        let memory = VirtualMemory::new(&image).unwrap();
        let start = Gva(KERNEL.0 + PAGE_SIZE - 4);
        let string = |bytes: &[u8], terminated| Ok(GuestString { bytes: bytes.into(), terminated });
        assert_eq!(memory.read_cstr(start, 64), string(b"exoprobe", true));
        assert_eq!(memory.read_cstr(start, 9), string(b"exoprobe", true));
        assert_eq!(memory.read_cstr(start, 8), string(b"exoprobe", false));
        assert_eq!(memory.read_cstr(start, 0), string(b"", false));
        let last = Gva(KERNEL.0 + 2 * PAGE_SIZE - 3);
        assert_eq!(memory.read_cstr(last, 3), string(b"xxx", false));
        let refused = memory.read_cstr(last, 4);
        assert!(matches!(refused, Err(VirtualReadError::Unmapped { .. })), "{refused:?}");
    }

    #[test]
    fn the_end_of_the_address_space_is_an_end() {
        // All of the last GiB maps one GiB of memory that is not there beyond 0x7000 bytes.
        let image = image();
        let memory = VirtualMemory::new(&image).unwrap();
        assert_eq!(memory.read_u64(LARGE), Ok(0));
        let end = memory.read_u64(Gva(u64::MAX - 3));
        assert!(matches!(end, Err(VirtualReadError::NoMemory { .. })), "{end:?}");
    }

    proptest! {
        #[test]
        fn any_memory_is_read_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..0x3000),
            tables in prop::collection::vec((0..0x600_usize, 0..4_u64, any::<u16>()), 0..200),
            gva: u64, len in 0..0x3000_usize, cr3 in 0..0x3000_u64, five: bool,
        ) {
            let mut bytes = bytes;
            // Plausible entries among the noise, so that walks get past the first level.
            for (slot, page, flags) in tables {
                if bytes.len() >= slot * 8 + 8 {
                    put(&mut bytes, slot * 8, page * PAGE_SIZE + (u64::from(flags & 0xfff) | 1));
                }
            }
            let mode = PagingMode { cr3, levels: if five { 5 } else { 4 } };
            let image = MemoryImage::new(Gpa(0), bytes, mode);
            let memory = VirtualMemory::new(&image).unwrap();
            for gva in [gva, gva & 0x3fff, gva | 0xffff_8000_0000_0000, u64::MAX - gva % 64] {
                let mut buf = vec![0; len];
                let read = memory.read(Gva(gva), &mut buf);
                let string = memory.read_cstr(Gva(gva), len);
                if read.is_ok() {
                    let nul = buf.iter().position(|byte| *byte == 0);
                    let string = string.unwrap();
                    prop_assert_eq!(string.terminated, nul.is_some());
                    prop_assert_eq!(&string.bytes[..], &buf[..nul.unwrap_or(len)]);
                }
            }
        }
    }
}
