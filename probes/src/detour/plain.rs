//! Words in plain memory, for tests and fuzz targets.

use std::cell::RefCell;

use super::ring::Words;

/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// Words of this thread alone.
pub struct PlainWords(RefCell<Vec<u64>>);

impl PlainWords {
    /// So many bytes, all zero.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self(RefCell::new(vec![0; index(bytes)]))
    }
}

/// Index of the word at an offset.
fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("an offset in memory") / WORD
}

impl Words for PlainWords {
    fn load(&self, offset: u64) -> u64 {
        self.0.borrow()[index(offset)]
    }

    fn store(&self, offset: u64, word: u64) {
        self.0.borrow_mut()[index(offset)] = word;
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<(), u64> {
        let now = self.load(offset);
        if now != current {
            return Err(now);
        }
        self.store(offset, new);
        Ok(())
    }
}
