//! The extension of hidden memory: code and counters of more optimized probes.

use std::sync::atomic::Ordering;

use super::{HiddenError, HiddenMemory, NOT_MAPPED, Window, directory_entry, is_entry, load};
use crate::addr::{Gpa, Gva};
use crate::layout::{
    HIDDEN_SIZE, KERNEL_IMAGE_BASE, MORE_CODE_SIZE, MORE_DATA_SIZE, MORE_END, MORE_SIZE, RINGS_SIZE,
};
use crate::memory::GuestRam;
use crate::paging::{
    PAGE_SIZE_2M, PTE_ACCESSED, PTE_DIRTY, PTE_LARGE, PTE_NO_EXECUTE, PTE_PRESENT, PTE_WRITE,
    PagingMode,
};

/// Offset of the extension in the region.
const OFFSET: u64 = HIDDEN_SIZE + RINGS_SIZE;
/// Its number of page-directory entries.
const ENTRIES: u64 = MORE_SIZE / PAGE_SIZE_2M;

impl HiddenMemory {
    /// Maps the extension by unused entries of the directory that maps the kernel's image, the
    /// highest below [`MORE_END`]. Later calls check that the guest has not changed them. It can be
    /// called once the kernel has booted. Its content is an earlier guest's, or zero.
    ///
    /// # Errors
    /// [`HiddenError`]; nothing was written to the guest in that case.
    pub fn map_more(&self, ram: &GuestRam, mode: PagingMode) -> Result<(), HiddenError> {
        let directory = directory_entry(ram, mode, KERNEL_IMAGE_BASE)?;
        let mapped = Gva(self.0.more.load(Ordering::Acquire));
        if mapped != Gva(NOT_MAPPED) {
            let changed = self.first_other(ram, directory, mapped, |_| false)?;
            return match changed {
                Some((gva, now)) => Err(HiddenError::Overwritten { gva, now }),
                None => Ok(()),
            };
        }
        let mut base = Gva(MORE_END.0 - MORE_SIZE);
        while self.first_other(ram, directory, base, |now| now == 0)?.is_some() {
            if base <= KERNEL_IMAGE_BASE {
                return Err(HiddenError::NoRoom { entries: ENTRIES });
            }
            base = Gva(base.0 - PAGE_SIZE_2M);
        }
        for step in 0..ENTRIES {
            ram.store_u64(place(directory, base, step), self.entry_of_more(step))?;
        }
        self.0.more.store(base.0, Ordering::Release);
        Ok(())
    }

    /// The first address from `base` on whose entry is neither the extension's nor accepted, and
    /// the entry.
    fn first_other(
        &self,
        ram: &GuestRam,
        directory: Gpa,
        base: Gva,
        accept: impl Fn(u64) -> bool,
    ) -> Result<Option<(Gva, u64)>, HiddenError> {
        for step in 0..ENTRIES {
            let now = load(ram, place(directory, base, step))?;
            if !accept(now) && !is_entry(now, self.entry_of_more(step)) {
                return Ok(Some((base.wrapping_add(step * PAGE_SIZE_2M), now)));
            }
        }
        Ok(None)
    }

    /// Entry number `step`: code, then data.
    fn entry_of_more(&self, step: u64) -> u64 {
        let is_data = step * PAGE_SIZE_2M >= MORE_CODE_SIZE;
        let kind = if is_data { PTE_WRITE | PTE_NO_EXECUTE | PTE_DIRTY } else { 0 };
        let gpa = self.0.gpa.0 + OFFSET + step * PAGE_SIZE_2M;
        gpa | PTE_PRESENT | PTE_ACCESSED | PTE_LARGE | super::PTE_GLOBAL | kind
    }

    /// More code of optimized probes, once [`Self::map_more`] succeeded.
    #[must_use]
    pub fn more_code_window(&self) -> Option<Window> {
        self.window_of_more(0, MORE_CODE_SIZE)
    }

    /// More memory that this code writes, once [`Self::map_more`] succeeded.
    #[must_use]
    pub fn more_data_window(&self) -> Option<Window> {
        self.window_of_more(MORE_CODE_SIZE, MORE_DATA_SIZE)
    }

    fn window_of_more(&self, start: u64, len: u64) -> Option<Window> {
        let base = self.0.more.load(Ordering::Acquire);
        let (gva, offset) = (Gva(base).wrapping_add(start), OFFSET + start);
        (base != NOT_MAPPED).then_some(Window { gva, offset, len })
    }
}

/// The directory's entry number `step` from `base` on.
fn place(directory: Gpa, base: Gva, step: u64) -> Gpa {
    let index = (base.0 - KERNEL_IMAGE_BASE.0) / PAGE_SIZE_2M + step;
    directory.wrapping_add(index * size_of::<u64>() as u64)
}
