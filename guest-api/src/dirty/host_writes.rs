//! A log of the pages that the host itself writes by [`crate::GuestRam`].

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use crate::addr::{Gpa, to_usize};
use crate::paging::PAGE_SIZE;

/// Pages in a word of the log.
const WORD_PAGES: u64 = 64;
/// Words of a part of the log: 128 MiB of addresses.
const PART_WORDS: usize = 512;
const PART_PAGES: u64 = PART_WORDS as u64 * WORD_PAGES;

type Part = Box<[AtomicU64]>;

/// Pages that were written while the log was on. Has memory for those parts alone that were
/// written.
#[derive(Debug)]
pub(crate) struct HostWrites {
    is_on: AtomicBool,
    parts: Box<[OnceLock<Part>]>,
}

impl HostWrites {
    /// A log for all addresses below `end`.
    pub(crate) fn below(end: Gpa) -> Self {
        let parts = to_usize(end.0.div_ceil(PAGE_SIZE * PART_PAGES));
        Self { is_on: AtomicBool::new(false), parts: (0..parts).map(|_| OnceLock::new()).collect() }
    }

    /// Records that the host has written `len` bytes, after it has. Waits for no other thread that
    /// does more than to allocate 4 KiB.
    #[inline]
    pub(crate) fn mark(&self, at: Gpa, len: usize) {
        // The store is in RAM before the switch is read: what the log misses was written before it
        // was switched on.
        fence(Ordering::SeqCst);
        if self.is_on.load(Ordering::SeqCst) && len > 0 {
            self.log(at, len);
        }
    }

    #[cold]
    fn log(&self, at: Gpa, len: usize) {
        let last = at.0.saturating_add(len as u64 - 1) / PAGE_SIZE;
        for page in at.0 / PAGE_SIZE..=last {
            let Some(part) = self.parts.get(to_usize(page / PART_PAGES)) else { return };
            let part = part.get_or_init(|| (0..PART_WORDS).map(|_| AtomicU64::new(0)).collect());
            let word = &part[to_usize(page % PART_PAGES / WORD_PAGES)];
            word.fetch_or(1 << (page % WORD_PAGES), Ordering::SeqCst);
        }
    }

    fn take(&self, mut found: impl FnMut(Gpa)) {
        for (part, number) in self.parts.iter().zip(0u64..) {
            let words = part.get().into_iter().flatten();
            for (word, index) in words.zip(0u64..) {
                if word.load(Ordering::SeqCst) == 0 {
                    continue;
                }
                let mut rest = word.swap(0, Ordering::SeqCst);
                while rest != 0 {
                    let page = number * PART_PAGES + index * WORD_PAGES;
                    found(Gpa((page + u64::from(rest.trailing_zeros())) * PAGE_SIZE));
                    rest &= rest - 1;
                }
            }
        }
    }
}

/// The log of the host's writes, on until it is dropped.
#[derive(Debug)]
pub struct LoggedHostWrites<'a>(&'a HostWrites);

impl<'a> LoggedHostWrites<'a> {
    pub(crate) fn start(log: &'a HostWrites) -> Self {
        log.is_on.store(true, Ordering::SeqCst);
        Self(log)
    }

    /// Calls `found` with each page that was written since the last call.
    pub fn take(&mut self, found: impl FnMut(Gpa)) {
        self.0.take(found);
    }
}

impl Drop for LoggedHostWrites<'_> {
    fn drop(&mut self) {
        self.0.is_on.store(false, Ordering::SeqCst);
        self.0.take(|_| ());
    }
}

#[cfg(test)]
mod tests {
    use crate::memory::{GuestRam, ram_ranges};

    use super::*;

    #[test]
    fn each_kind_of_store_is_logged_while_the_log_is_on() {
        let ram = GuestRam::anonymous(&ram_ranges(1)).unwrap();
        ram.write(Gpa(0), &[1]).unwrap();
        let logged = |log: &mut LoggedHostWrites<'_>| {
            let mut pages = Vec::new();
            log.take(|at| pages.push(at));
            pages
        };
        let mut log = ram.log_host_writes();
        assert_eq!(logged(&mut log), [], "it was off");
        ram.write(Gpa(0x1ffe), &[1; 3]).unwrap();
        ram.store_byte(Gpa(0x4008), 1).unwrap();
        ram.store_u64(Gpa(0x6000), 1).unwrap();
        ram.exchange_byte(Gpa(0xf_ffff), 0, 1).unwrap();
        ram.write(Gpa(0x8000), &[]).unwrap();
        let pages = [0x1000, 0x2000, 0x4000, 0x6000, 0xf_f000].map(Gpa);
        assert_eq!(logged(&mut log), pages);
        assert_eq!(logged(&mut log), [], "once");
        ram.store_u64(Gpa(0x6000), 2).unwrap();
        drop(log);
        ram.store_u64(Gpa(0x7000), 2).unwrap();
        assert_eq!(logged(&mut ram.log_host_writes()), [], "a new log is empty");
    }
}
