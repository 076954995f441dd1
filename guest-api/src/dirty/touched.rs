//! Which pages of RAM the host has memory for.

use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

use super::pages::{PageRun, WORD_PAGES};
use crate::addr::to_usize;
use crate::memory::GuestRam;
use crate::paging::PAGE_SIZE;

impl PageRun {
    /// Keeps those pages that may have content: in private memory without a file, those that were
    /// touched.
    /// All others are zero. Keeps all where the host does not report it.
    pub fn keep_touched(&mut self, ram: &GuestRam) {
        let Some(pagemap) = ram.pagemap() else { return };
        let Some(region) = ram.as_vm_memory().iter().nth(self.range) else { return };
        // Pages of a file, and those that others share, have content before they are touched here.
        let is_private = region.flags() & libc::MAP_PRIVATE != 0;
        if region.file_offset().is_some() || !is_private || self.words.is_empty() {
            return;
        }
        let count = self.left.min(self.words.len() as u64 * WORD_PAGES);
        let first = region.as_ptr().addr() + to_usize(self.first * PAGE_SIZE);
        let Some(in_use) = pagemap.in_use(first, count) else { return };
        for (word, pages) in self.words.iter_mut().zip(in_use.chunks(u64::BITS as usize)) {
            for (bit, in_use) in pages.iter().enumerate() {
                if !in_use {
                    *word &= !(1 << bit);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::mmap::MmapRegionBuilder;

    use super::super::pages::PageSet;
    use crate::addr::Gpa;
    use crate::memory::ram_ranges;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no pagemap")]
    fn pages_that_were_never_touched_are_left_out() {
        let ram = GuestRam::anonymous(&ram_ranges(8)).unwrap();
        let touched = [0x3000, 0x7f_f000];
        for at in touched {
            ram.store_byte(Gpa(at + 5), 1).unwrap();
        }
        let mut all = PageSet::all(&ram);
        let mut run = all.take_run(usize::MAX).unwrap();
        assert_eq!((run.count(), all.count()), (2048, 0));
        run.keep_touched(&ram);
        let kept: Vec<u64> = run.pages().map(|page| page.0).collect();
        // Transparent huge pages touch their neighbours.
        assert!(touched.iter().all(|at| kept.contains(at)), "{kept:x?}");
        assert!(kept.len() == 2 || kept.len().is_multiple_of(512), "{}", kept.len());
    }

    /// Another process may have written to it.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no pagemap")]
    fn all_pages_of_shared_memory_are_kept() {
        let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let ram = GuestRam::map(&ram_ranges(1), |_| {
            MmapRegionBuilder::new(1 << 20).with_mmap_prot(access).with_mmap_flags(shared)
        });
        let ram = ram.unwrap();
        let mut run = PageSet::all(&ram).take_run(usize::MAX).unwrap();
        run.keep_touched(&ram);
        assert_eq!(run.count(), 256);
    }
}
