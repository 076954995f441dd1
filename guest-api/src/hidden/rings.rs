//! The memory of the rings: larger ones for several vCPUs where the guest's tables have room, else
//! those that all vCPUs share.

use std::sync::atomic::Ordering;

use super::extension::Extension;
use super::{HiddenError, HiddenMemory, PTE_GLOBAL, REGION, RING_PAGES, Window};
use super::{directory_entry, is_entry, load};
use crate::addr::{Gva, to_usize};
use crate::layout::{HIDDEN_GVA, HIDDEN_SIZE, RINGS_SIZE};
use crate::memory::GuestRam;
use crate::paging::{
    PAGE_SIZE, PAGE_SIZE_2M, PTE_ACCESSED, PTE_DIRTY, PTE_LARGE, PTE_NO_EXECUTE, PTE_PRESENT,
    PTE_WRITE, PagingMode,
};

/// The rings that each guest has, once mapped.
pub const RINGS: Window = {
    let offset = RING_PAGES.start * PAGE_SIZE;
    let gva = Gva(HIDDEN_GVA.0 + offset);
    Window { gva, offset, len: HIDDEN_SIZE - offset + RINGS_SIZE }
};

impl HiddenMemory {
    fn more_rings(&self) -> Extension<'_> {
        let (code, data) = (0, self.0.more_rings_len);
        Extension { offset: REGION, code, data, base: &self.0.more_rings }
    }

    /// Maps the rings: for several vCPUs by unused entries of the directory that maps the kernel's
    /// image, if it has enough in a row; else by more entries of the last GiB's. Later calls check
    /// that the guest has not changed them. [`Self::map`] must be called before, and the kernel
    /// have booted. The code that lays rings out must empty them: their content is an earlier
    /// guest's, or a snapshot's.
    ///
    /// # Errors
    /// [`HiddenError`]; nothing was written to the guest in that case.
    pub fn map_rings(&self, ram: &GuestRam, mode: PagingMode) -> Result<Window, HiddenError> {
        let more = self.more_rings();
        if more.data > 0 && !self.0.has_rings.load(Ordering::Acquire) {
            match self.map_extension(&more, ram, mode) {
                Ok(()) | Err(HiddenError::NoRoom { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        match more.window(0, more.data) {
            Some(window) => Ok(window),
            None => self.map_shared_rings(ram, mode),
        }
    }

    fn map_shared_rings(&self, ram: &GuestRam, mode: PagingMode) -> Result<Window, HiddenError> {
        let steps = (0..RINGS_SIZE).step_by(to_usize(PAGE_SIZE_2M));
        let flags = PTE_PRESENT | PTE_ACCESSED | PTE_WRITE | PTE_DIRTY;
        let entry = |step| {
            let gpa = self.0.gpa.0 + HIDDEN_SIZE + step;
            gpa | flags | PTE_LARGE | PTE_NO_EXECUTE | PTE_GLOBAL
        };
        let mut missing = Vec::new();
        for step in steps {
            let gva = HIDDEN_GVA.wrapping_add(HIDDEN_SIZE + step);
            let at = directory_entry(ram, mode, gva)?;
            match load(ram, at)? {
                0 => missing.push((at, entry(step))),
                now if is_entry(now, entry(step)) => {}
                now => return Err(HiddenError::Taken { gva, now }),
            }
        }
        for (at, entry) in missing {
            ram.store_u64(at, entry)?;
        }
        self.0.has_rings.store(true, Ordering::Release);
        Ok(RINGS)
    }

    /// The rings of records, once mapped.
    #[must_use]
    pub fn rings_window(&self) -> Option<Window> {
        let more = self.more_rings();
        let is_shared = self.0.has_rings.load(Ordering::Acquire);
        more.window(0, more.data).or_else(|| is_shared.then_some(RINGS))
    }
}
