//! Sets of pages of RAM.

use crate::addr::{Gpa, to_usize};
use crate::memory::GuestRam;
use crate::paging::PAGE_SIZE;

/// Pages in a word of a set.
pub const WORD_PAGES: u64 = 64;
/// Most words in a run: 256 MiB of RAM.
const RUN_WORDS: usize = 1024;
const BITS: usize = u64::BITS as usize;

/// Words of a chunk: 16 MiB of RAM.
const CHUNK_WORDS: usize = 64;

/// Pages of a guest's RAM: for each of its ranges a bitmap, as KVM's dirty log has it. A few pages
/// among those of a large guest cost a look at their own chunks.
#[derive(Debug, Default)]
pub struct PageSet {
    ranges: Vec<Range>,
}

#[derive(Debug)]
struct Range {
    start: Gpa,
    pages: u64,
    words: Vec<u64>,
    /// A bit for each chunk of `words`: without it, the chunk has no page.
    chunks: Vec<u64>,
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
            let chunks = vec![word; words.len().div_ceil(CHUNK_WORDS * BITS)];
            Range { start: range.start, pages, words, chunks }
        };
        Self { ranges: ram.ranges().into_iter().map(range).collect() }
    }

    /// Adds the page of an address. Does nothing if it is not RAM.
    pub fn insert(&mut self, at: Gpa) {
        if let Some((range, word, bit)) = self.place(at) {
            let range = &mut self.ranges[range];
            range.words[word] |= bit;
            range.mark(word / CHUNK_WORDS);
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
        if is_x86_feature_detected!("avx2") {
            // SAFETY: this CPU has AVX2.
            unsafe { found.add_all_by_avx2(bitmap) }
        } else {
            found.add_all(bitmap);
        }
    }

    /// Number of its pages.
    #[must_use]
    pub fn count(&self) -> usize {
        let words = self.ranges.iter().flat_map(|range| {
            let chunks = bits(&range.chunks);
            chunks.filter_map(|at| range.words.chunks(CHUNK_WORDS).nth(at)).flatten()
        });
        words.map(|word| word.count_ones() as usize).sum()
    }

    /// Takes up to `most` pages out that lie near each other; `None` if the set is empty.
    pub fn take_run(&mut self, most: usize) -> Option<PageRun> {
        let (index, range, word) =
            self.ranges.iter_mut().enumerate().find_map(|(index, range)| {
                let word = range.first()?;
                Some((index, range, word))
            })?;
        let mut left = most;
        let mut words = Vec::new();
        let end = range.end_of_chunks(word).min(word + RUN_WORDS);
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
        Some(PageRun { range: index, first, left: range.pages - first, start, words })
    }
}

impl Range {
    /// Adds the pages of a bitmap. Bits beyond the end of the range are ignored.
    #[inline(always)]
    fn add_all(&mut self, bitmap: &[u64]) {
        let len = self.words.len().min(bitmap.len());
        // Chunks of a known length are looked at without a loop.
        let (chunks, rest) = bitmap[..len].as_chunks::<CHUNK_WORDS>();
        for (chunk, more) in chunks.iter().enumerate() {
            if more.iter().fold(0, |all, word| all | word) != 0 {
                self.add(chunk, more);
            }
        }
        if rest.iter().any(|word| *word != 0) {
            self.add(chunks.len(), rest);
        }
    }

    /// As [`Self::add_all`], four words at once: a stop looks at a bit of each page of a guest.
    #[target_feature(enable = "avx2")]
    fn add_all_by_avx2(&mut self, bitmap: &[u64]) {
        self.add_all(bitmap);
    }

    /// Adds the pages of a bitmap from the first of a chunk on.
    #[cold]
    fn add(&mut self, chunk: usize, bitmap: &[u64]) {
        let words = &mut self.words[chunk * CHUNK_WORDS..];
        words.iter_mut().zip(bitmap).for_each(|(word, more)| *word |= more);
        self.mark(chunk);
    }

    fn mark(&mut self, chunk: usize) {
        self.chunks[chunk / BITS] |= 1 << (chunk % BITS);
    }

    /// The first word with a page. Chunks before it are empty from now on.
    fn first(&mut self) -> Option<usize> {
        loop {
            let chunk = bits(&self.chunks).next()?;
            let mut words = self.words.iter().skip(chunk * CHUNK_WORDS).take(CHUNK_WORDS);
            if let Some(at) = words.position(|word| *word != 0) {
                return Some(chunk * CHUNK_WORDS + at);
            }
            self.chunks[chunk / BITS] &= !(1 << (chunk % BITS));
        }
    }

    /// The end of the chunks that follow this word's without one between that is empty.
    fn end_of_chunks(&self, word: usize) -> usize {
        let first = word / CHUNK_WORDS;
        let is_used = |chunk: &usize| self.chunks[chunk / BITS] >> (chunk % BITS) & 1 == 1;
        let all = self.words.len().div_ceil(CHUNK_WORDS);
        let end = (first + 1..all).find(|chunk| !is_used(chunk)).unwrap_or(all);
        self.words.len().min(end * CHUNK_WORDS)
    }
}

/// Numbers of the bits that are set.
fn bits(words: &[u64]) -> impl Iterator<Item = usize> {
    words.iter().enumerate().flat_map(|(index, word)| {
        let mut rest = *word;
        std::iter::from_fn(move || {
            let bit = rest.checked_ilog2().map(|_| rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(index * BITS + bit)
        })
    })
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
        bits(&self.words).map(|page| self.start.wrapping_add(page as u64 * PAGE_SIZE))
    }

    /// Number of its pages.
    #[must_use]
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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

    /// Both ranges have several chunks; pages come by address and by bitmap, and are taken in
    /// parts.
    #[test]
    fn a_set_of_many_chunks_is_as_a_plain_set() {
        const PAGES: [u64; 2] = [5 * CHUNK_PAGES + 3, CHUNK_PAGES * BITS as u64 + 70];
        const CHUNK_PAGES: u64 = CHUNK_WORDS as u64 * WORD_PAGES;
        let starts = [0, HIGH];
        let ranges = [0, 1].map(|at| (starts[at], PAGES[at] * PAGE_SIZE));
        let ranges = ranges.map(|(start, len)| RamRange { start: Gpa(start), len });
        let ram = GuestRam::anonymous(&ranges).unwrap();
        let (mut set, mut plain) = (PageSet::empty(&ram), BTreeSet::new());
        let mut random = 1u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (random >> 33) % below
        };
        for round in 0..600 {
            let range = round % 2;
            let page = next(PAGES[range]);
            match round % 3 {
                0 => set.insert(Gpa(starts[range] + page * PAGE_SIZE)),
                _ => {
                    let mut bitmap = vec![0; to_usize(page / WORD_PAGES + 1)];
                    bitmap[to_usize(page / WORD_PAGES)] = 1 << (page % WORD_PAGES);
                    set.add(range, &bitmap);
                }
            }
            plain.insert(starts[range] + page * PAGE_SIZE);
            assert_eq!(set.count(), plain.len());
            if round % 7 == 0 {
                let run = set.take_run(to_usize(next(4)) + 1).unwrap();
                for at in run.pages() {
                    assert_eq!(plain.pop_first(), Some(at.0), "the first comes first");
                }
            }
        }
        assert_eq!(drained(&mut set, usize::MAX), plain.into_iter().collect::<Vec<_>>());
    }
}
