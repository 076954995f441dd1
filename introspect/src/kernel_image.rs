//! Where the kernel is: its image in virtual memory, found from an address that it must have
//! mapped, as its system-call entry (IA32_LSTAR).

use exoprobe_guest::Gva;
use exoprobe_guest::layout::KERNEL_IMAGE_BASE;
use exoprobe_guest::paging::{PAGE_SIZE, PAGE_SIZE_2M, PagingError};

use crate::view::GuestView;
use crate::virt::VirtualMemory;

/// Bytes that an image may take: KERNEL_IMAGE_SIZE of x86-64's page_64_types.h with KASLR, 1 GiB,
/// is also where modules begin.
const IMAGE_SPACE: u64 = 1 << 30;
/// Most pages that are looked at one by one.
const STEPS_MAX: usize = 1 << 19;

/// A contiguous mapped range of virtual addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedRange {
    /// First address.
    pub start: Gva,
    /// Bytes.
    pub len: u64,
}

impl MappedRange {
    /// First address after the range.
    #[must_use]
    pub fn end(&self) -> Gva {
        self.start.wrapping_add(self.len)
    }

    /// Whether `at` is in it.
    #[must_use]
    pub fn contains(&self, at: Gva) -> bool {
        at.0.wrapping_sub(self.start.0) < self.len
    }
}

/// The mapped ranges of the kernel's image, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelImage {
    ranges: Vec<MappedRange>,
}

/// Reasons why no image is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The address is not where images are.
    #[error("{0} is not in the range of kernel images")]
    Outside(Gva),
    /// Nothing is mapped there.
    #[error("the kernel's image is not mapped at {0}")]
    NotMapped(Gva),
}

impl KernelImage {
    /// The image around `inside`, which is one of its addresses. Ranges that are mapped elsewhere
    /// in the space of images belong to it, too: freed text splits it.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn find<V: GuestView + ?Sized>(
        memory: &VirtualMemory<'_, V>,
        inside: Gva,
    ) -> Result<Self, ImageError> {
        if inside.0.wrapping_sub(KERNEL_IMAGE_BASE.0) >= IMAGE_SPACE {
            return Err(ImageError::Outside(inside));
        }
        let mut ranges: Vec<MappedRange> = Vec::new();
        let (mut at, end) = (KERNEL_IMAGE_BASE, KERNEL_IMAGE_BASE.wrapping_add(IMAGE_SPACE));
        for _ in 0..STEPS_MAX {
            let (len, mapped) = match memory.translate(at) {
                Ok(found) => (found.bytes_left(), true),
                Err(PagingError::NotPresent { level, .. }) if level > 1 => {
                    (PAGE_SIZE_2M - at.0 % PAGE_SIZE_2M, false)
                }
                Err(_) => (PAGE_SIZE - at.0 % PAGE_SIZE, false),
            };
            let len = len.min(end.0 - at.0);
            match ranges.last_mut() {
                Some(last) if mapped && last.end() == at => last.len += len,
                _ if mapped => ranges.push(MappedRange { start: at, len }),
                _ => {}
            }
            at = at.wrapping_add(len);
            if at == end {
                break;
            }
        }
        if !ranges.iter().any(|range| range.contains(inside)) {
            return Err(ImageError::NotMapped(inside));
        }
        Ok(Self { ranges })
    }

    /// Its first address: with KASLR, where the kernel was put.
    #[must_use]
    pub fn base(&self) -> Gva {
        self.ranges.first().map_or(KERNEL_IMAGE_BASE, |range| range.start)
    }

    /// Its mapped ranges, ascending.
    #[must_use]
    pub fn ranges(&self) -> &[MappedRange] {
        &self.ranges
    }
}

#[cfg(test)]
mod tests {
    use exoprobe_guest::Gpa;
    use exoprobe_guest::paging::{PTE_LARGE, PTE_PRESENT, PagingMode};

    use super::*;
    use crate::MemoryImage;

    #[test]
    fn the_image_is_what_is_mapped_where_kernels_are() {
        let mut bytes = vec![0; 0x5000];
        let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        put(511 * 8, 0x1000 | PTE_PRESENT);
        put(0x1000 + 510 * 8, 0x2000 | PTE_PRESENT);
        // Two large pages, then a table with its first two pages and its last.
        put(0x2000 + 8 * 8, PTE_PRESENT | PTE_LARGE);
        put(0x2000 + 9 * 8, PTE_PRESENT | PTE_LARGE);
        put(0x2000 + 10 * 8, 0x3000 | PTE_PRESENT);
        for page in [0, 1, 511] {
            put(0x3000 + page * 8, PTE_PRESENT);
        }
        let mode = PagingMode { cr3: 0, levels: 4 };
        let image = MemoryImage::new(Gpa(0), bytes, mode);
        let memory = VirtualMemory::with_mode(&image, mode);
        let base = Gva(0xffff_ffff_8100_0000);
        let found = KernelImage::find(&memory, base.wrapping_add(0x20_1234)).unwrap();
        let first = MappedRange { start: base, len: 0x40_2000 };
        let last = MappedRange { start: base.wrapping_add(0x5f_f000), len: 0x1000 };
        assert_eq!((found.base(), found.ranges()), (base, &[first, last][..]));
        let at = base.wrapping_add(0x40_2000);
        assert_eq!(KernelImage::find(&memory, at), Err(ImageError::NotMapped(at)));
        assert_eq!(KernelImage::find(&memory, Gva(0x1000)), Err(ImageError::Outside(Gva(0x1000))));
    }
}
