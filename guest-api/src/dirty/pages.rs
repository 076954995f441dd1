//! Sets of pages of RAM.

use crate::addr::{Gpa, to_usize};
use crate::memory::GuestRam;
use crate::paging::PAGE_SIZE;

/// Pages in a word of a set.
pub const WORD_PAGES: u64 = 64;
/// Most words in a run: 256 MiB of RAM.
const RUN_WORDS: usize = 1024;

/// Pages of a guest's RAM: for each of its ranges a bitmap, as KVM's dirty log has it.
#[derive(Debug, Default)]
pub struct PageSet {
    ranges: Vec<Range>,
    /// No page is in the words before this one of this range.
    next: (usize, usize),
}

#[derive(Debug)]
struct Range {
    start: Gpa,
    pages: u64,
    words: Vec<u64>,
}

/// Pages that lie near each other in one range of RAM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// Index of the range, as in [`GuestRam::ranges`].
    pub range: usize,
    /// Number of the first word's first page in the range: a multiple of [`WORD_PAGES`].
    pub first: u64,
    /// Pages from `first` to the end of the range.
    pub left: u64,
    /// Address of page `first`.
    pub start: Gpa,
    /// A bit for each page, the lowest first.
    pub words: Vec<u64>,
}

impl PageSet {
    /// A set for this RAM, with no page in it.
    #[must_use]
    pub fn empty(ram: &GuestRam) -> Self {
        Self::filled(ram, 0)
    }

    /// All pages of this RAM.
    #[must_use]
    pub fn all(ram: &GuestRam) -> Self {
        Self::filled(ram, u64::MAX)
    }

    fn filled(ram: &GuestRam, word: u64) -> Self {
        let range = |range: crate::memory::RamRange| {
            let pages = range.len / PAGE_SIZE;
            let mut words = vec![word; to_usize(pages.div_ceil(WORD_PAGES))];
            let rest = pages % WORD_PAGES;
            if let Some(last) = words.last_mut()
                && rest != 0
            {
                *last &= (1 << rest) - 1;
            }
            Range { start: range.start, pages, words }
        };
        Self { ranges: ram.ranges().into_iter().map(range).collect(), next: (0, 0) }
    }

    /// Adds the page of an address. Does nothing if it is not RAM.
    pub fn insert(&mut self, at: Gpa) {
        if let Some((range, word, bit)) = self.place(at) {
            self.ranges[range].words[word] |= bit;
            self.next = self.next.min((range, word));
        }
    }

    /// Returns true if the page of an address is in the set.
    #[must_use]
    pub fn contains(&self, at: Gpa) -> bool {
        self.place(at).is_some_and(|(range, word, bit)| self.ranges[range].words[word] & bit != 0)
    }

    /// The range, the word and the bit of an address's page; `None` if it is not RAM.
    fn place(&self, at: Gpa) -> Option<(usize, usize, u64)> {
        self.ranges.iter().enumerate().find_map(|(index, range)| {
            let page = at.0.checked_sub(range.start.0)? / PAGE_SIZE;
            let place = (index, to_usize(page / WORD_PAGES), 1 << (page % WORD_PAGES));
            (page < range.pages).then_some(place)
        })
    }

    /// Adds the pages of a bitmap to the range with this index. Bits beyond its end are ignored.
    pub fn add(&mut self, range: usize, bitmap: &[u64]) {
        let Some(found) = self.ranges.get_mut(range) else { return };
        for (word, more) in found.words.iter_mut().zip(bitmap) {
            *word |= more;
        }
        self.next = self.next.min((range, 0));
    }

    /// Number of its pages.
    #[must_use]
    pub fn count(&self) -> usize {
        let (range, word) = self.next;
        let rest = self.ranges.get(range).map_or(&[][..], |of| &of.words[word..]);
        let others = self.ranges.iter().skip(range + 1).flat_map(|of| &of.words);
        rest.iter().chain(others).map(|word| word.count_ones() as usize).sum()
    }

    /// Takes up to `most` pages out that lie near each other; `None` if the set is empty.
    pub fn take_run(&mut self, most: usize) -> Option<PageRun> {
        loop {
            let (index, word) = self.next;
            let range = self.ranges.get_mut(index)?;
            let Some(skipped) = range.words[word..].iter().position(|word| *word != 0) else {
                self.next = (index + 1, 0);
                continue;
            };
            let word = word + skipped;
            self.next = (index, word);
            let end = range.words.len().min(word + RUN_WORDS);
            let mut left = most;
            let mut words = Vec::new();
            for from in &mut range.words[word..end] {
                if left == 0 {
                    break;
                }
                words.push(take_bits(from, &mut left));
            }
            while words.last() == Some(&0) {
                words.pop();
            }
            if words.is_empty() {
                return None;
            }
            let first = word as u64 * WORD_PAGES;
            let start = range.start.wrapping_add(first * PAGE_SIZE);
            return Some(PageRun { range: index, first, left: range.pages - first, start, words });
        }
    }
}

/// Moves up to `left` bits out of a word.
fn take_bits(from: &mut u64, left: &mut usize) -> u64 {
    let mut taken = *from;
    while taken.count_ones() as usize > *left {
        taken ^= 1 << taken.ilog2();
    }
    *from ^= taken;
    *left -= taken.count_ones() as usize;
    taken
}

impl PageRun {
    /// Addresses of its pages.
    pub fn pages(&self) -> impl Iterator<Item = Gpa> {
        self.words.iter().zip(0u64..).flat_map(move |(word, index)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = rest.checked_ilog2().map(|_| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(self.start.wrapping_add((index * WORD_PAGES + u64::from(bit)) * PAGE_SIZE))
            })
        })
    }

    /// Number of its pages.
    #[must_use]
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use crate::memory::RamRange;

    use super::*;

    const HIGH: u64 = 4 << 30;

    fn ram() -> GuestRam {
        let ranges = [(0, 70 * PAGE_SIZE), (HIGH, 3 * PAGE_SIZE)];
        GuestRam::anonymous(&ranges.map(|(start, len)| RamRange { start: Gpa(start), len }))
            .unwrap()
    }

    fn drained(set: &mut PageSet, most: usize) -> Vec<u64> {
        let runs = std::iter::from_fn(|| set.take_run(most));
        runs.flat_map(|run| run.pages().map(|page| page.0).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn a_set_has_the_pages_of_ram_and_no_others() {
        let ram = ram();
        let mut all = PageSet::all(&ram);
        assert_eq!(all.count(), 73);
        let low = (0..70).map(|page| page * PAGE_SIZE);
        let pages: Vec<u64> = low.chain((0..3).map(|page| HIGH + page * PAGE_SIZE)).collect();
        assert_eq!(drained(&mut all, 1000), pages);
        assert_eq!((all.count(), all.take_run(1)), (0, None));
        let mut some = PageSet::empty(&ram);
        for at in [HIGH + 0x2fff, 69 * PAGE_SIZE, 5, 70 * PAGE_SIZE, HIGH + 0x3000, HIGH - 1] {
            some.insert(Gpa(at));
        }
        assert_eq!(drained(&mut some, 1000), [0, 69 * PAGE_SIZE, HIGH + 0x2000]);
    }

    #[test]
    fn pages_are_taken_in_parts_and_come_back() {
        let ram = ram();
        let mut set = PageSet::all(&ram);
        let run = set.take_run(5).unwrap();
        assert_eq!((run.range, run.first, run.left, run.count()), (0, 0, 70, 5));
        assert_eq!((run.words, set.count()), (vec![0b1_1111], 68));
        let run = set.take_run(64).unwrap();
        assert_eq!((run.count(), set.count()), (64, 4), "those of two words");
        set.add(0, &[0b10]);
        assert_eq!(set.count(), 5);
        assert_eq!(set.take_run(1).unwrap().pages().collect::<Vec<_>>(), [Gpa(PAGE_SIZE)]);
        assert_eq!(drained(&mut set, 2).len(), 4);
        set.add(7, &[1]);
        assert_eq!(set.take_run(1), None, "there is no such range");
    }
}
