//! A guest's memory as its kernel maps it.

use exoprobe_guest::paging::{PAGE_SIZE, PagingError, PagingMode, ReadPhys};
use exoprobe_guest::{Gpa, GuestRam};
use exoprobe_introspect::{GuestView, ReadError};

/// Under page-table isolation the user's root follows the kernel's (PTI_PGTABLE_SWITCH_BIT).
pub(crate) const USER_TABLES: u64 = PAGE_SIZE;

/// A guest's memory under the kernel's page tables.
#[derive(Clone)]
pub(crate) struct KernelView {
    pub(crate) ram: GuestRam,
    /// The kernel's own tables, which stay while it runs.
    pub(crate) mode: PagingMode,
    /// The tables on which it started, until its own are complete.
    pub(crate) early: Option<PagingMode>,
}

impl GuestView for KernelView {
    fn read_phys(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), ReadError> {
        let len = buf.len();
        self.ram.read(gpa, buf).map_err(|_| ReadError::OutsideMemory { gpa, len })
    }

    fn read_word(&self, gpa: Gpa) -> Option<u64> {
        ReadPhys::read_u64(&self.ram, gpa)
    }

    fn paging(&self) -> Result<PagingMode, PagingError> {
        Ok(self.mode)
    }
}
