//! Liveness: finds the addresses that registers of vCPUs or words of the guest's memory refer to.
//!
//! An interrupted task has its RIP on a stack, and stacks are in RAM. Their place is internal to
//! the kernel, so all words of RAM are scanned. A word that only resembles an address delays a jmp
//! and has no other effect. The look at all RAM at once is here, while the vCPUs stand still;
//! `search` does most of it while they run.

#![cfg_attr(
    not(feature = "testing"),
    allow(unreachable_pub, reason = "public with the feature `testing`")
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use exoprobe_guest::paging::PAGE_SIZE;
use exoprobe_guest::{Gpa, GuestRam, Gva, Registers};

/// Words of a page.
const PAGE_WORDS: usize = 512;
const _: () = assert!((PAGE_WORDS * size_of::<u64>()) as u64 == PAGE_SIZE);

/// Numbered ranges of addresses that do not overlap.
#[derive(Default)]
pub struct Addresses {
    /// By start: the end, and the number.
    ranges: BTreeMap<u64, (u64, usize)>,
    /// The first address, and the end of the last range.
    span: (u64, u64),
}

impl Addresses {
    /// Adds a range.
    pub fn add(&mut self, start: Gva, end: Gva, number: usize) {
        if self.ranges.is_empty() {
            self.span = (start.0, end.0);
        }
        self.span = (self.span.0.min(start.0), self.span.1.max(end.0));
        self.ranges.insert(start.0, (end.0, number));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    fn find(&self, word: u64) -> Option<usize> {
        let (_, (end, number)) = self.ranges.range(..=word).next_back()?;
        (word < *end).then_some(*number)
    }

    /// Calls `found` with the numbers of the ranges that these words point into.
    pub(crate) fn scan(&self, words: &[AtomicU64], mut found: impl FnMut(usize)) {
        let (first, _) = self.span;
        let mut scan = |word: &AtomicU64| {
            let word = word.load(Ordering::Relaxed);
            // Few words are addresses of the kernel's image or after it.
            if word >= first {
                self.scan_high(word, &mut found);
            }
        };
        // Rounds of four words: the loop itself takes as much as a comparison.
        let (fours, rest) = words.as_chunks::<4>();
        fours.iter().for_each(|[a, b, c, d]| [a, b, c, d].into_iter().for_each(&mut scan));
        rest.iter().for_each(scan);
    }

    /// The rare part of [`Self::scan`], which the compiler keeps out of its loop.
    #[cold]
    fn scan_high(&self, word: u64, found: &mut impl FnMut(usize)) {
        if word < self.span.1
            && let Some(number) = self.find(word)
        {
            found(number);
        }
    }

    /// Adds the numbers of the ranges that a register points into.
    pub(crate) fn scan_registers(&self, registers: &[Registers], found: &mut BTreeSet<usize>) {
        for Registers { regs: r, .. } in registers {
            let all = [
                r.rip, r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10,
                r.r11, r.r12, r.r13, r.r14, r.r15,
            ];
            found.extend(all.into_iter().filter_map(|word| self.find(word)));
        }
    }
}

/// The words of a page of RAM.
pub(crate) fn page_words(ram: &GuestRam, page: Gpa) -> &[AtomicU64] {
    ram.words(page, PAGE_WORDS).unwrap_or_default()
}

/// Returns the numbers of the ranges that a register or an aligned word of RAM points into.
pub(crate) fn scan_references(
    ram: &GuestRam,
    registers: &[Registers],
    among: &Addresses,
) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    if among.is_empty() {
        return found;
    }
    among.scan_registers(registers, &mut found);
    for range in ram.ranges() {
        for at in (0..range.len).step_by(PAGE_WORDS * size_of::<u64>()) {
            let words = page_words(ram, range.start.wrapping_add(at));
            among.scan(words, |number| _ = found.insert(number));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use exoprobe_guest::memory::ram_ranges;

    use super::*;

    #[test]
    fn words_of_ram_and_registers_are_found_and_nothing_else() {
        let ram = GuestRam::anonymous(&ram_ranges(1)).unwrap();
        let mut among = Addresses::default();
        for (number, start) in [(0, 0x1000), (1, 0x2000), (2, 0x3000), (3, 0x4000)] {
            among.add(Gva(start), Gva(start + 0x10), number);
        }
        assert_eq!(scan_references(&ram, &[], &among), BTreeSet::new());
        ram.write(Gpa((1 << 20) - 8), &0x200f_u64.to_le_bytes()).unwrap();
        ram.write(Gpa(0x100), &0x3010_u64.to_le_bytes()).unwrap();
        ram.write(Gpa(0x204), &0x1000_u64.to_le_bytes()).unwrap();
        let mut registers = Registers::default();
        (registers.regs.rip, registers.regs.rax) = (0x4000, 0x5000);
        assert_eq!(scan_references(&ram, &[registers], &among), BTreeSet::from([1, 3]));
    }
}
