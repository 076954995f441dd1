//! Code and counters of more optimized probes.

use super::extension::Extension;
use super::{HiddenError, HiddenMemory, Window};
use crate::layout::{HIDDEN_SIZE, MORE_CODE_SIZE, MORE_DATA_SIZE, RINGS_SIZE};
use crate::memory::GuestRam;
use crate::paging::PagingMode;

/// Offset in the region.
const OFFSET: u64 = HIDDEN_SIZE + RINGS_SIZE;

impl HiddenMemory {
    fn more(&self) -> Extension<'_> {
        let (code, data) = (MORE_CODE_SIZE, MORE_DATA_SIZE);
        Extension { offset: OFFSET, code, data, base: &self.0.more }
    }

    /// Maps the memory for more optimized probes by unused entries of the directory that maps the
    /// kernel's image, the highest below [`MORE_END`](crate::layout::MORE_END). Later calls check
    /// that the guest has not changed them. It can be called once the kernel has booted. Its
    /// content is an earlier guest's, or zero.
    ///
    /// # Errors
    /// [`HiddenError`]; nothing was written to the guest in that case.
    pub fn map_more(&self, ram: &GuestRam, mode: PagingMode) -> Result<(), HiddenError> {
        self.map_extension(&self.more(), ram, mode)
    }

    /// More code of optimized probes, once [`Self::map_more`] succeeded.
    #[must_use]
    pub fn more_code_window(&self) -> Option<Window> {
        self.more().window(0, MORE_CODE_SIZE)
    }

    /// More memory that this code writes, once [`Self::map_more`] succeeded.
    #[must_use]
    pub fn more_data_window(&self) -> Option<Window> {
        self.more().window(MORE_CODE_SIZE, MORE_DATA_SIZE)
    }
}
