//! The compressed names: how many, where each begins, and the markers that say so again.
//!
//! Before the tokens lie, one after the other and aligned: the number of symbols, their names, and
//! a marker for each 256th name with its offset. A name is its length (a byte, or two with the
//! first one's top bit set, from Linux 6.1 on) and so many token numbers. The number is found by
//! trying: it must be followed by so many names, and those by their markers.

use exoprobe_guest::Gva;

use super::error::KallsymsError;
use super::tokens::Tokens;
use super::window::Window;
use crate::symbols::MAX_SYMBOLS;

/// A kernel has at least so many symbols.
const LEAST: u32 = 256;
/// Names between two markers.
const MARKER_STEP: usize = 256;
/// Bytes of names and what belongs to them for each symbol: less, or more, there never are.
const BYTES_EACH: std::ops::Range<usize> = 2..64;
/// Names that are looked at in all tries together.
const STEPS_MAX: usize = 32 << 20;

/// Where the names are.
#[derive(Debug)]
pub(super) struct Names<'a> {
    /// How many.
    pub(super) count: usize,
    /// Address of that number.
    pub(super) number_at: Gva,
    /// The names, and the bytes after them.
    bytes: &'a [u8],
}

impl<'a> Names<'a> {
    /// Finds them before the tokens, in the window that has both.
    pub(super) fn find(window: &'a Window, tokens: &Tokens) -> Result<Self, KallsymsError> {
        let end = window.offset(tokens.start).ok_or(KallsymsError::NoNames)?;
        let mut steps = STEPS_MAX;
        // From the tokens down: between them and the number are names, whose words hardly look like
        // a number.
        for align in [8_u64, 4] {
            let step = usize::try_from(align).expect("8 or 4");
            let mut at = window.aligned(end, align).checked_sub(2 * step);
            while let Some(offset) = at {
                if let Some(names) = Self::at(window, offset, end, step, &mut steps) {
                    return Ok(names);
                }
                at = offset.checked_sub(step);
                if steps == 0 || (end - offset) / BYTES_EACH.end > MAX_SYMBOLS {
                    break;
                }
            }
        }
        Err(KallsymsError::NoNames)
    }

    fn at(
        window: &'a Window,
        offset: usize,
        end: usize,
        align: usize,
        steps: &mut usize,
    ) -> Option<Self> {
        let number = window.u32(offset).filter(|number| *number >= LEAST)?;
        let count = usize::try_from(number).ok().filter(|count| *count <= MAX_SYMBOLS)?;
        // With 8, the rest of the word is padding.
        if align == 8 && window.u32(offset + 4) != Some(0) {
            return None;
        }
        let first = offset + align;
        let space = end.checked_sub(first)?;
        if !(count * BYTES_EACH.start..count * BYTES_EACH.end).contains(&space) {
            return None;
        }
        let bytes = window.bytes.get(first..end)?;
        let mut walk = Walk { bytes, at: 0 };
        let mut marks = Vec::with_capacity(count / MARKER_STEP + 1);
        for index in 0..count {
            *steps = steps.checked_sub(1)?;
            if index % MARKER_STEP == 0 {
                marks.push(walk.at);
            }
            walk.next()?;
        }
        let markers = window.aligned(first + walk.at, align as u64);
        let narrow = |index: usize| window.u32(markers + index * 4).map(u64::from);
        let wide = |index: usize| window.u64(markers + index * 8);
        let agree = |marker: &dyn Fn(usize) -> Option<u64>| {
            marks.iter().enumerate().all(|(index, at)| marker(index) == Some(*at as u64))
        };
        let found = agree(&narrow) || agree(&wide);
        found.then_some(Self { count, number_at: window.address(offset), bytes })
    }

    /// All names, expanded one after the other into a buffer: `take` is given the number, the
    /// type's letter and the name's bytes.
    pub(super) fn for_each<E>(
        &self,
        tokens: &Tokens,
        mut take: impl FnMut(usize, u8, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut walk = Walk { bytes: self.bytes, at: 0 };
        let mut text = Vec::new();
        for index in 0..self.count {
            let Some(numbers) = walk.next() else { break };
            text.clear();
            for number in numbers.iter().take(NAME_TOKENS_MAX) {
                text.extend_from_slice(tokens.text(*number));
            }
            if let Some((kind, name)) = text.split_first() {
                take(index, *kind, name)?;
            }
        }
        Ok(())
    }
}

/// From name to name.
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Walk<'a> {
    /// The next name's token numbers.
    fn next(&mut self) -> Option<&'a [u8]> {
        let first = *self.bytes.get(self.at)?;
        let (len, head) = if first < 0x80 {
            (usize::from(first), 1)
        } else {
            let second = *self.bytes.get(self.at + 1)?;
            (usize::from(first & 0x7f) | usize::from(second) << 7, 2)
        };
        let start = self.at + head;
        let numbers = self.bytes.get(start..start.checked_add(len)?).filter(|n| !n.is_empty())?;
        self.at = start + len;
        Some(numbers)
    }
}

/// Most tokens of a name that are looked at: twice the letters of the longest that Linux keeps
/// (KSYM_NAME_LEN, 512).
const NAME_TOKENS_MAX: usize = 1024;
