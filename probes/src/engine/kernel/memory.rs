//! Guest memory from within a hit: bounded walks of the guest's own page tables, nothing cached.

use exoprobe_guest::paging::{self, PagingError, PagingMode};
use exoprobe_guest::{GuestRam, Gva, LoggedWord, SregsSource};
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

impl<'a> HitMemory<'a> {
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

    /// The aligned word at `at`, looked up once; `None` if it is not aligned or not mapped.
    #[inline]
    pub(crate) fn slot(&self, at: Gva) -> Option<LoggedWord<'a>> {
        let view = self.view;
        // Nearly all are on kernel stacks: the rest costs a hit nothing here.
        if at.0 & KERNEL_HALF != 0
            && let Some(gpa) = paging::locate(&view.ram, view.mode, at)
        {
            return view.ram.logged_word(gpa);
        }
        self.seldom_slot(at)
    }

    #[cold]
    fn seldom_slot(&self, at: Gva) -> Option<LoggedWord<'a>> {
        let translate = |memory: &VirtualMemory<'_, KernelView>| {
            let found = memory.translate(at);
            found.map_err(|source| VirtualReadError::Unmapped { gva: at, source })
        };
        self.view.ram.logged_word(self.with(at, translate).ok()?.gpa)
    }
}

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
