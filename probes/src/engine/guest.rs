//! A guest's memory under its kernel's page tables.

pub use exoprobe_guest::Guest;
use exoprobe_guest::paging::{PagingError, PagingMode};
use exoprobe_guest::{Gpa, GuestRam};
use exoprobe_introspect::{GuestView, ReadError};

/// A guest's memory under the kernel's page tables.
#[derive(Clone)]
pub(crate) struct KernelView {
    pub(crate) ram: GuestRam,
    /// The kernel's own tables, which stay for as long as it runs.
    pub(crate) mode: PagingMode,
    /// The tables it started on, until its own are complete.
    pub(crate) early: Option<PagingMode>,
}

impl GuestView for KernelView {
    fn read_phys(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), ReadError> {
        let len = buf.len();
        self.ram.read(gpa, buf).map_err(|_| ReadError::OutsideMemory { gpa, len })
    }

    fn paging(&self) -> Result<PagingMode, PagingError> {
        Ok(self.mode)
    }
}
