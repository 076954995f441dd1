//! Liveness: finds the addresses that registers of vCPUs or words of the guest's memory refer to.
//!
//! An interrupted task has its RIP on a stack, and stacks are in RAM. Their place is internal to
//! the kernel, so all words of RAM are scanned while the vCPUs stand still. A word that only
//! resembles an address delays a jmp and has no other effect.

use std::collections::{BTreeMap, BTreeSet};

use exoprobe_guest::{GuestRam, Gva, Registers};

/// Bytes of RAM that are scanned at a time.
const CHUNK: usize = 64 << 10;

/// Numbered ranges of addresses that do not overlap.
#[derive(Default)]
pub(crate) struct Addresses {
    /// By start: the end, and the number.
    ranges: BTreeMap<u64, (u64, usize)>,
}

impl Addresses {
    pub(crate) fn add(&mut self, start: Gva, end: Gva, number: usize) {
        self.ranges.insert(start.0, (end.0, number));
    }

    fn find(&self, word: u64) -> Option<usize> {
        let (_, (end, number)) = self.ranges.range(..=word).next_back()?;
        (word < *end).then_some(*number)
    }

    /// The first address, and the end of the last range.
    fn span(&self) -> Option<(u64, u64)> {
        let (first, _) = self.ranges.first_key_value()?;
        let last = self.ranges.values().map(|(end, _)| *end).max()?;
        Some((*first, last))
    }
}

/// Returns the numbers of the ranges that a register or an aligned word of RAM points into.
pub(crate) fn scan_references(
    ram: &GuestRam,
    registers: &[Registers],
    among: &Addresses,
) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let Some((first, end)) = among.span() else { return found };
    let mut look = |word: u64| {
        if (first..end).contains(&word) {
            found.extend(among.find(word));
        }
    };
    for Registers { regs: r, .. } in registers {
        let all = [
            r.rip, r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10,
            r.r11, r.r12, r.r13, r.r14, r.r15,
        ];
        all.into_iter().for_each(&mut look);
    }
    let mut chunk = vec![0; CHUNK];
    for range in ram.ranges() {
        let mut at = 0;
        while at < range.len {
            let len = usize::try_from(range.len - at).unwrap_or(CHUNK).min(CHUNK);
            // The range is in the RAM's own list, so the read succeeds.
            if ram.read(range.start.wrapping_add(at), &mut chunk[..len]).is_ok() {
                let (words, _) = chunk[..len].as_chunks();
                words.iter().map(|word| u64::from_le_bytes(*word)).for_each(&mut look);
            }
            at += CHUNK as u64;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use exoprobe_guest::Gpa;
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
