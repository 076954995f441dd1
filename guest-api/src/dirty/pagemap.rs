//! Which pages of this process the host has memory for.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::addr::to_usize;
use crate::paging::PAGE_SIZE;

/// Bits of an entry (Documentation/admin-guide/mm/pagemap.rst): the page is swapped out; it is
/// present.
const IN_USE: u64 = 1 << 62 | 1 << 63;
const ENTRY: usize = size_of::<u64>();

/// `/proc/self/pagemap`, open: it can be read, too, once the process is not dumpable (prctl(2)) or
/// may open no files.
#[derive(Debug)]
pub(crate) struct Pagemap(File);

impl Pagemap {
    /// Opens it; `None` where the host has none.
    pub(crate) fn open() -> Option<Self> {
        // Miri has none, and would end.
        if cfg!(miri) {
            return None;
        }
        File::open("/proc/self/pagemap").ok().map(Self)
    }

    /// Of each of `count` pages from the address `at` on, whether the host has memory for it, or
    /// has swapped it out. `None` if the host does not report it.
    pub(crate) fn in_use(&self, at: usize, count: u64) -> Option<Vec<bool>> {
        let mut entries = vec![0; to_usize(count) * ENTRY];
        let first = at as u64 / PAGE_SIZE;
        self.0.read_exact_at(&mut entries, first * ENTRY as u64).ok()?;
        let (entries, _) = entries.as_chunks::<ENTRY>();
        Some(entries.iter().map(|entry| u64::from_ne_bytes(*entry) & IN_USE != 0).collect())
    }
}
