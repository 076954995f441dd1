//! Guest memory from within a hit: bounded walks of the guest's own page tables, nothing cached.

use exoprobe_guest::paging::{PagingError, PagingMode, ReadPhys};
use exoprobe_guest::{Gpa, GuestRam, Gva, OutsideMemory, SregsSource};
use exoprobe_introspect::{ReadError, VirtualMemory, VirtualReadError};

use crate::engine::kernel::tasks::Tasks;
use crate::engine::kernel::view::KernelView;

/// Kernel addresses have this bit, user addresses do not (Documentation/arch/x86/x86_64/mm.rst).
pub(crate) const KERNEL_HALF: u64 = 1 << 63;

/// Memory as a hit sees it.
#[derive(Clone, Copy)]
pub(crate) struct HitMemory<'a> {
    pub(crate) view: &'a KernelView,
    /// Used for user addresses only: it costs a system call.
    pub(crate) sregs: &'a dyn SregsSource,
    /// The location of the kernel's tasks, if it is known.
    pub(crate) tasks: Option<&'a Tasks>,
}

impl HitMemory<'_> {
    /// Tries `access` under the tables that `at` belongs to.
    pub(crate) fn with<T>(
        &self,
        at: Gva,
        mut access: impl FnMut(&VirtualMemory<'_, KernelView>) -> Result<T, VirtualReadError>,
    ) -> Result<T, VirtualReadError> {
        if at.0 & KERNEL_HALF == 0 {
            let mode = self
                .user_mode()
                .map_err(|source| VirtualReadError::Unmapped { gva: at, source })?;
            return access(&VirtualMemory::with_mode(self.view, mode));
        }
        let result = access(&VirtualMemory::with_mode(self.view, self.view.mode));
        match (result, self.view.early) {
            (Err(_), Some(early)) => access(&VirtualMemory::with_mode(self.view, early)),
            (result, _) => result,
        }
    }

    fn user_mode(&self) -> Result<PagingMode, PagingError> {
        let s = self.sregs.sregs().map_err(|_| PagingError::NotLongMode)?;
        PagingMode::of(&s)
    }

    /// The word at `at`. Calls no fault handler.
    pub(crate) fn word(&self, at: Gva) -> Option<u64> {
        self.with(at, |memory| memory.read_u64(at)).ok()
    }

    /// The aligned word at `at`, translated once; `None` if it is not aligned or not mapped.
    pub(crate) fn slot(&self, at: Gva) -> Option<StackSlot> {
        if !at.0.is_multiple_of(size_of::<u64>() as u64) {
            return None;
        }
        let translate = |memory: &VirtualMemory<'_, KernelView>| {
            let found = memory.translate(at);
            found.map_err(|source| VirtualReadError::Unmapped { gva: at, source })
        };
        Some(StackSlot(self.with(at, translate).ok()?.gpa))
    }

    /// The word in a slot; `None` outside RAM.
    pub(crate) fn load(&self, slot: StackSlot) -> Option<u64> {
        ReadPhys::read_u64(&self.view.ram, slot.0)
    }

    /// Replaces the word in a slot in one store.
    pub(crate) fn store(&self, slot: StackSlot, word: u64) -> Result<(), OutsideMemory> {
        self.view.ram.store_u64(slot.0, word)
    }
}

/// The place of a return address, as translated for one hit.
#[derive(Clone, Copy)]
pub(crate) struct StackSlot(Gpa);

/// Writes `data` at `at`, across pages. Writes nothing if any of it is not mapped.
pub(crate) fn write(
    ram: &GuestRam,
    memory: &VirtualMemory<'_, KernelView>,
    at: Gva,
    data: &[u8],
) -> Result<(), VirtualReadError> {
    // Readable memory is writable: RAM has no protection on this path.
    memory.read(at, &mut vec![0; data.len()])?;
    memory.for_each_piece(at, data.len(), |gpa, piece| {
        let len = piece.len();
        ram.write(gpa, &data[piece]).map_err(|_| ReadError::OutsideMemory { gpa, len })
    })
}
