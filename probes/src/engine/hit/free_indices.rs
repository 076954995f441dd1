//! Indices of which some are free: a bitmap that hits take from without a lock.

use std::sync::atomic::Ordering;

use crate::shared::Word;

/// Indices in a word of the bitmap.
const PER_WORD: usize = u64::BITS as usize;

/// The free ones of a number of indices. They are taken in turns, so that each rests for as long as
/// possible.
pub(crate) struct FreeIndices<W> {
    /// A bit for each index: set while it is free.
    words: Box<[W]>,
    /// The index after the one that was taken last, and where the next search begins. If two vCPUs
    /// take indices at once, they may search from the same one.
    next: W,
    taken: W,
}

impl<W: Word> FreeIndices<W> {
    /// `count` indices, all free.
    pub(crate) fn new(count: usize) -> Self {
        let word = |first: usize| {
            let left = count - first;
            W::new(if left < PER_WORD { (1 << left) - 1 } else { u64::MAX })
        };
        let words = (0..count).step_by(PER_WORD).map(word).collect();
        Self { words, next: W::new(0), taken: W::new(0) }
    }

    /// Number of those that are not free.
    pub(crate) fn taken(&self) -> usize {
        usize::try_from(self.taken.load(Ordering::Acquire)).expect("at most all of them")
    }

    /// Takes a free index; `None` if there is none. Searches each word of the bitmap once, and the
    /// first a second time for the indices before that where the search begins.
    #[inline]
    pub(crate) fn take(&self) -> Option<usize> {
        let next = usize::try_from(self.next.load(Ordering::Relaxed)).expect("an index");
        let (first, bit) = (next / PER_WORD, next % PER_WORD);
        let from_next = u64::MAX << bit;
        self.take_of(first, from_next).or_else(|| {
            let all = (first + 1..self.words.len()).chain(0..first).map(|word| (word, u64::MAX));
            let mut rest = all.chain([(first, !from_next)]);
            rest.find_map(|(word, bits)| self.take_of(word, bits))
        })
    }

    /// Takes an index with one of these bits of a word.
    #[inline]
    fn take_of(&self, word: usize, bits: u64) -> Option<usize> {
        let place = self.words.get(word)?;
        loop {
            let free = place.load(Ordering::Relaxed);
            let bit = (free & bits).trailing_zeros();
            if bit == u64::BITS {
                return None;
            }
            // What the vCPU that freed it had stored before is seen after this.
            if place.replace(free, free & !(1 << bit), Ordering::AcqRel) {
                let index = word * PER_WORD + usize::try_from(bit).expect("below 64");
                self.next.store(index as u64 + 1, Ordering::Relaxed);
                self.taken.fetch_add(1, Ordering::AcqRel);
                return Some(index);
            }
        }
    }

    /// Frees an index that was taken.
    #[inline]
    pub(crate) fn give_back(&self, index: usize) {
        self.words[index / PER_WORD].fetch_or(1 << (index % PER_WORD), Ordering::AcqRel);
        self.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn indices_are_taken_in_turns_and_each_once() {
        for count in [1, 63, 64, 65, 200] {
            let free = FreeIndices::<AtomicU64>::new(count);
            let all: Vec<usize> = std::iter::from_fn(|| free.take()).collect();
            assert!(all.iter().copied().eq(0..count), "{count}: {all:?}");
            assert_eq!((free.taken(), free.take()), (count, None));
            (0..count).rev().for_each(|index| free.give_back(index));
            let turns: Vec<usize> = (0..2 * count)
                .map(|_| {
                    let index = free.take().unwrap();
                    free.give_back(index);
                    index
                })
                .collect();
            assert!(turns.iter().copied().eq((0..count).chain(0..count)), "{count}: {turns:?}");
            assert_eq!(free.taken(), 0);
        }
    }

    #[test]
    fn the_only_free_index_is_found_wherever_the_search_begins() {
        let free = FreeIndices::<AtomicU64>::new(130);
        while free.take().is_some() {}
        for index in [0, 129, 64, 63, 128, 1, 127, 65] {
            free.give_back(index);
            assert_eq!((free.take(), free.take()), (Some(index), None));
        }
    }
}
