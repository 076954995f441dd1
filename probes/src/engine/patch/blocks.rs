//! An allocator of pieces of hidden memory.

use std::ops::Range;

use exoprobe_guest::hidden::Window;
use exoprobe_guest::{Gva, HiddenMemory};

/// Unit of allocation in bytes.
const CELL_LEN: usize = 64;
const CELL: u64 = CELL_LEN as u64;

/// A window of hidden memory, divided into cells.
pub(crate) struct BlockAllocator {
    window: fn(&HiddenMemory) -> Option<Window>,
    /// A snapshot has the window's content.
    is_kept: bool,
    /// Whether each cell is in use; empty until the window is known.
    used: Vec<bool>,
    /// Index at which a search begins.
    next: usize,
    /// Fewest adjacent cells that were not found since the last were freed.
    failed: usize,
}

/// Adjacent cells, allocated together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    cells: Range<usize>,
    pub(crate) gva: Gva,
    /// Offset in hidden memory.
    pub(crate) offset: u64,
}

impl Allocation {
    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.cells.len() * CELL_LEN
    }
}

impl BlockAllocator {
    pub(crate) fn of(window: fn(&HiddenMemory) -> Option<Window>) -> Self {
        Self { window, is_kept: true, used: Vec::new(), next: 0, failed: usize::MAX }
    }

    /// An allocator of a window that no snapshot has: whatever is in it is not in use.
    pub(crate) fn of_unkept(window: fn(&HiddenMemory) -> Option<Window>) -> Self {
        Self { is_kept: false, ..Self::of(window) }
    }

    /// The window; `None` until hidden memory is mapped.
    pub(crate) fn window(&self, hidden: &HiddenMemory) -> Option<Window> {
        (self.window)(hidden)
    }

    /// Allocates `len` bytes; `None` if no room is left or hidden memory is not mapped.
    pub(crate) fn take(&mut self, hidden: &HiddenMemory, len: u64) -> Option<Allocation> {
        let window = self.window(hidden)?;
        if self.used.is_empty() {
            let len = usize::try_from(window.len).expect("a part of hidden memory");
            self.used = match self.is_kept {
                // In a guest from a snapshot, tasks may still use what was allocated before.
                true => {
                    let mut found = vec![0; len];
                    hidden.read(window.offset, &mut found);
                    let cells = found.chunks_exact(CELL_LEN);
                    cells.map(|cell| cell.iter().any(|byte| *byte != 0)).collect()
                }
                false => vec![false; len / CELL_LEN],
            };
        }
        let count = usize::try_from(len.div_ceil(CELL)).ok()?.max(1);
        let Some(first) = self.find(count) else {
            self.failed = self.failed.min(count);
            return None;
        };
        self.used[first..first + count].fill(true);
        self.next = first + count;
        let offset = first as u64 * CELL;
        let (gva, offset) = (window.gva.wrapping_add(offset), window.offset + offset);
        Some(Allocation { cells: first..first + count, gva, offset })
    }

    /// Returns true if `len` bytes are free, in pieces, or the window is not known yet.
    pub(crate) fn has_left(&self, len: u64) -> bool {
        let free = self.used.iter().filter(|used| !**used).count();
        self.used.is_empty() || free as u64 * CELL >= len
    }

    fn find(&self, count: usize) -> Option<usize> {
        if count >= self.failed {
            return None;
        }
        let free = |from: &usize| {
            self.used.get(*from..from + count).is_some_and(|range| range.iter().all(|used| !used))
        };
        (self.next..self.used.len()).chain(0..self.next).find(free)
    }

    /// Frees an allocation.
    pub(crate) fn free(&mut self, hidden: &HiddenMemory, piece: Allocation) {
        hidden.write(piece.offset, &vec![0; piece.len()]);
        self.failed = usize::MAX;
        if let Some(used) = self.used.get_mut(piece.cells) {
            used.fill(false);
        }
    }
}
