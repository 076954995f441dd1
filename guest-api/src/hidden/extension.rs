//! Extensions of hidden memory: parts of the region that unused entries of the directory map that
//! maps the kernel's image.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{HiddenError, HiddenMemory, NOT_MAPPED, Window, directory_entry, is_entry, load};
use crate::addr::{Gpa, Gva};
use crate::layout::{KERNEL_IMAGE_BASE, MORE_END};
use crate::memory::GuestRam;
use crate::paging::{
    PAGE_SIZE_2M, PTE_ACCESSED, PTE_DIRTY, PTE_LARGE, PTE_NO_EXECUTE, PTE_PRESENT, PTE_WRITE,
    PagingMode,
};

/// A part of the region: code, then data, each a multiple of 2 MiB.
pub(super) struct Extension<'a> {
    /// Offset of the code in the region.
    pub(super) offset: u64,
    /// Bytes of code.
    pub(super) code: u64,
    /// Bytes of data.
    pub(super) data: u64,
    /// Guest-virtual base once mapped; [`NOT_MAPPED`] before.
    pub(super) base: &'a AtomicU64,
}

impl Extension<'_> {
    /// Number of page-directory entries.
    fn entries(&self) -> u64 {
        (self.code + self.data) / PAGE_SIZE_2M
    }

    /// So many bytes from `start` on, once mapped.
    pub(super) fn window(&self, start: u64, len: u64) -> Option<Window> {
        let base = self.base.load(Ordering::Acquire);
        let (gva, offset) = (Gva(base).wrapping_add(start), self.offset + start);
        (base != NOT_MAPPED).then_some(Window { gva, offset, len })
    }
}

impl HiddenMemory {
    /// Maps an extension by the highest entries in a row below [`MORE_END`] that are unused. Later
    /// calls check that the guest has not changed them. It can be called once the kernel has
    /// booted. Its content is an earlier guest's, or zero.
    pub(super) fn map_extension(
        &self,
        extension: &Extension<'_>,
        ram: &GuestRam,
        mode: PagingMode,
    ) -> Result<(), HiddenError> {
        let directory = directory_entry(ram, mode, KERNEL_IMAGE_BASE)?;
        let first_other = |base, accept: fn(u64) -> bool| {
            self.first_other(extension, (ram, directory), base, accept)
        };
        let mapped = Gva(extension.base.load(Ordering::Acquire));
        if mapped != Gva(NOT_MAPPED) {
            return match first_other(mapped, |_| false)? {
                Some((gva, now)) => Err(HiddenError::Overwritten { gva, now }),
                None => Ok(()),
            };
        }
        let entries = extension.entries();
        let mut base = Gva(MORE_END.0 - entries * PAGE_SIZE_2M);
        while first_other(base, |now| now == 0)?.is_some() {
            if base <= KERNEL_IMAGE_BASE {
                return Err(HiddenError::NoRoom { entries });
            }
            base = Gva(base.0 - PAGE_SIZE_2M);
        }
        for step in 0..entries {
            ram.store_u64(place(directory, base, step), self.entry_of(extension, step))?;
        }
        extension.base.store(base.0, Ordering::Release);
        Ok(())
    }

    /// The first address from `base` on whose entry is neither the extension's nor accepted, and
    /// the entry.
    fn first_other(
        &self,
        extension: &Extension<'_>,
        (ram, directory): (&GuestRam, Gpa),
        base: Gva,
        accept: impl Fn(u64) -> bool,
    ) -> Result<Option<(Gva, u64)>, HiddenError> {
        for step in 0..extension.entries() {
            let now = load(ram, place(directory, base, step))?;
            if !accept(now) && !is_entry(now, self.entry_of(extension, step)) {
                return Ok(Some((base.wrapping_add(step * PAGE_SIZE_2M), now)));
            }
        }
        Ok(None)
    }

    /// Entry number `step`: code, then data.
    fn entry_of(&self, extension: &Extension<'_>, step: u64) -> u64 {
        let is_data = step * PAGE_SIZE_2M >= extension.code;
        let kind = if is_data { PTE_WRITE | PTE_NO_EXECUTE | PTE_DIRTY } else { 0 };
        let gpa = self.0.gpa.0 + extension.offset + step * PAGE_SIZE_2M;
        gpa | PTE_PRESENT | PTE_ACCESSED | PTE_LARGE | super::PTE_GLOBAL | kind
    }
}

/// The directory's entry number `step` from `base` on.
fn place(directory: Gpa, base: Gva, step: u64) -> Gpa {
    let index = (base.0 - KERNEL_IMAGE_BASE.0) / PAGE_SIZE_2M + step;
    directory.wrapping_add(index * size_of::<u64>() as u64)
}
