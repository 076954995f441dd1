//! The interface to a guest: memory and paging registers.

use exoprobe_guest::Gpa;
use exoprobe_guest::paging::{PagingError, PagingMode};

/// Reasons why guest-physical memory cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Some byte of the range is not guest memory.
    #[error("{len} bytes at guest-physical {gpa} are not all guest memory")]
    OutsideMemory {
        /// First byte asked for.
        gpa: Gpa,
        /// Bytes asked for.
        len: usize,
    },
}

/// A guest, as far as its memory can be interpreted: its physical memory and the registers that
/// define how virtual addresses map to it.
pub trait GuestView {
    /// Fills `buf` from guest-physical memory at `gpa`: all of it or, on an error, nothing that
    /// the caller may use.
    ///
    /// # Errors
    /// [`ReadError::OutsideMemory`] where any byte of the range is not guest memory.
    fn read_phys(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), ReadError>;

    /// The little-endian 64-bit word at `gpa`, a multiple of 8; `None` where the guest has no
    /// memory. Walks of page tables read their entries by it.
    fn read_word(&self, gpa: Gpa) -> Option<u64> {
        let mut word = [0; size_of::<u64>()];
        self.read_phys(gpa, &mut word).ok()?;
        Some(u64::from_le_bytes(word))
    }

    /// How the guest translates addresses now (CR3 and the depth of its tables).
    ///
    /// # Errors
    /// [`PagingError::NotLongMode`] while the guest does not run with 64-bit tables.
    fn paging(&self) -> Result<PagingMode, PagingError>;
}
