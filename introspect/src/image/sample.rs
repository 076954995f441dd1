//! Small images of memory that is mapped, for tests and fuzzing.

use exoprobe_guest::Gpa;
use exoprobe_guest::layout::KERNEL_IMAGE_BASE;
use exoprobe_guest::paging::{PTE_LARGE, PTE_PRESENT, PagingMode};

use super::MemoryImage;

/// Where memory is mapped as kernels are.
pub const KERNEL: u64 = KERNEL_IMAGE_BASE.0;
/// Where memory is mapped to itself.
pub const SAME: u64 = 0;
/// How these images are translated.
pub const MODE: PagingMode = PagingMode { cr3: 0, levels: 4 };
/// Bytes of the page tables, with which memory begins.
pub const TABLES: usize = 0x2000;

/// Memory of `len` bytes, whose first GiB is mapped at each of `at` ([`KERNEL`], [`SAME`]): page
/// tables, and zeros.
///
/// # Panics
/// When it is shorter than [`TABLES`].
#[must_use]
pub fn mapped(len: usize, at: &[u64]) -> Vec<u8> {
    let mut memory = vec![0; len];
    let mut put = |at: usize, entry: u64| memory[at..at + 8].copy_from_slice(&entry.to_le_bytes());
    for at in at {
        let entry = |shift: u32| ((at >> shift) & 511) as usize * 8;
        put(entry(39), 0x1000 | PTE_PRESENT);
        put(0x1000 + entry(30), PTE_PRESENT | PTE_LARGE);
    }
    memory
}

/// An image of such memory with `content` after the page tables.
#[must_use]
pub fn with_content(content: &[u8], at: &[u64]) -> MemoryImage {
    image([&mapped(TABLES, at)[..], content].concat())
}

/// The image of such memory.
#[must_use]
pub fn image(memory: Vec<u8>) -> MemoryImage {
    MemoryImage::new(Gpa(0), memory, MODE)
}
