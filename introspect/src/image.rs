//! A saved piece of guest memory, for tests, fuzzing and memory dumps.

#[doc(hidden)]
#[cfg(any(test, feature = "testing"))]
pub mod sample;

use exoprobe_guest::Gpa;
use exoprobe_guest::paging::{PagingError, PagingMode};

use crate::view::{GuestView, ReadError};

/// Contiguous guest-physical memory held in a plain vector, with the paging registers it was
/// saved with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryImage {
    base: Gpa,
    bytes: Vec<u8>,
    paging: PagingMode,
}

impl MemoryImage {
    /// An image whose first byte is guest-physical `base`, translated by `paging`.
    #[must_use]
    pub fn new(base: Gpa, bytes: Vec<u8>, paging: PagingMode) -> Self {
        Self { base, bytes, paging }
    }
}

impl GuestView for MemoryImage {
    fn read_phys(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), ReadError> {
        let outside = ReadError::OutsideMemory { gpa, len: buf.len() };
        let source = gpa
            .0
            .checked_sub(self.base.0)
            .and_then(|offset| usize::try_from(offset).ok())
            .and_then(|start| self.bytes.get(start..start.checked_add(buf.len())?))
            .ok_or(outside)?;
        buf.copy_from_slice(source);
        Ok(())
    }

    fn paging(&self) -> Result<PagingMode, PagingError> {
        Ok(self.paging)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_all_or_nothing() {
        let paging = PagingMode { cr3: 0, levels: 4 };
        let image = MemoryImage::new(Gpa(0x1000), vec![1, 2, 3, 4], paging);
        let mut buf = [0; 2];
        image.read_phys(Gpa(0x1002), &mut buf).unwrap();
        assert_eq!(buf, [3, 4]);
        for gpa in [Gpa(0xfff), Gpa(0x1003), Gpa(0x1005), Gpa(0), Gpa(u64::MAX)] {
            let refused = image.read_phys(gpa, &mut buf);
            assert_eq!(refused, Err(ReadError::OutsideMemory { gpa, len: 2 }));
            assert_eq!(buf, [3, 4], "untouched");
        }
        assert_eq!(image.paging(), Ok(paging));
    }
}
