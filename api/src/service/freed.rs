//! Memory that was freed goes back to the host: the C library keeps it for later, which after a
//! burst of probes or events may be most of what the service has (malloc_trim(3)).

/// Free memory that is not looked after, in bytes: the next request takes it again.
const MUCH: usize = 8 << 20;

/// Gives freed memory back, when there is much more of it than the last time.
#[derive(Default)]
pub(super) struct Freed {
    /// Free bytes after the last time that memory was given back, or fewer. The C library counts
    /// them whether the host has their pages or not.
    left: usize,
}

impl Freed {
    /// Looks how much there is, and gives it back if that is much. Other threads wait for their
    /// memory meanwhile.
    pub(super) fn give_back(&mut self) {
        if !self.is_much(free_bytes()) {
            return;
        }
        // SAFETY: it only returns pages that no allocation has.
        #[cfg(target_env = "gnu")]
        unsafe {
            libc::malloc_trim(0);
        }
        self.left = free_bytes();
    }

    fn is_much(&mut self, free: usize) -> bool {
        self.left = self.left.min(free);
        free - self.left >= MUCH
    }
}

/// Free bytes in all arenas. Other C libraries do not count them, and musl keeps few.
fn free_bytes() -> usize {
    // SAFETY: it reads counts, each arena's under its lock.
    #[cfg(target_env = "gnu")]
    let free = unsafe { libc::mallinfo2() }.fordblks;
    #[cfg(not(target_env = "gnu"))]
    let free = 0;
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_when_much_was_freed_since() {
        let mut freed = Freed::default();
        assert!(freed.is_much(MUCH) && !freed.is_much(MUCH - 1));
        freed.left = 3 * MUCH;
        assert!(!freed.is_much(4 * MUCH - 1) && freed.is_much(4 * MUCH));
        // It was used meanwhile, and freed again.
        assert!(!freed.is_much(MUCH) && freed.is_much(2 * MUCH));
    }
}
