//! The tokens that names are made of: 256 texts that end in NUL, and where each begins.
//!
//! A name is a row of token numbers. Characters that no token has replaced stand for themselves, so
//! that tokens 0x30 to 0x39 are the digits in nearly every kernel: that is how the table is found.
//! That it is one, its index says: it must agree with all 256 texts.

use exoprobe_guest::Gva;
use memchr::memmem;

use super::error::KallsymsError;
use super::window::Window;

/// The digits' tokens.
const DIGITS: &[u8] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00";
const FIRST_DIGIT: usize = b'0' as usize;
const TOKENS: usize = 256;
/// Bytes of a token that are looked at: the longest that scripts/kallsyms.c can make are far
/// shorter.
const TOKEN_MAX: usize = 512;
/// Bytes of the index.
const INDEX: usize = TOKENS * 2;
/// Places that look like the digits and are tried.
const TRIES_MAX: usize = 4096;

/// The table and its index.
#[derive(Debug)]
pub(super) struct Tokens {
    texts: Vec<u8>,
    index: Vec<u16>,
    /// The table's first address.
    pub(super) start: Gva,
    /// First address after the index.
    pub(super) end: Gva,
}

impl Tokens {
    /// Finds them in one of the windows.
    pub(super) fn find(windows: &[Window]) -> Result<Self, KallsymsError> {
        let mut tries = 0;
        for window in windows {
            for at in memmem::find_iter(&window.bytes, DIGITS) {
                tries += 1;
                if tries > TRIES_MAX {
                    return Err(KallsymsError::NoTokens);
                }
                if let Some(found) = Self::at(window, at) {
                    return Ok(found);
                }
            }
        }
        Err(KallsymsError::NoTokens)
    }

    /// The table whose token of the digit 0 is at offset `zero`.
    fn at(window: &Window, zero: usize) -> Option<Self> {
        let mut end = zero;
        for _ in FIRST_DIGIT..TOKENS {
            let rest = window.bytes.get(end..)?;
            let len = memchr::memchr(0, &rest[..rest.len().min(TOKEN_MAX)])?;
            end += len + 1;
        }
        // The assembler aligns each table; to what is a matter of the kernel's age.
        [8, 4].into_iter().find_map(|align| {
            let index_at = window.aligned(end, align);
            let index: Vec<u16> = window
                .bytes
                .get(index_at..index_at + INDEX)?
                .as_chunks()
                .0
                .iter()
                .map(|half| u16::from_le_bytes(*half))
                .collect();
            let start = zero.checked_sub(usize::from(*index.get(FIRST_DIGIT)?))?;
            let texts = window.bytes.get(start..end)?;
            agrees(texts, &index).then(|| Self {
                texts: texts.to_vec(),
                index,
                start: window.address(start),
                end: window.address(index_at + INDEX),
            })
        })
    }

    /// A token's text.
    pub(super) fn text(&self, number: u8) -> &[u8] {
        let start = usize::from(self.index[usize::from(number)]);
        let rest = self.texts.get(start..).unwrap_or_default();
        &rest[..memchr::memchr(0, rest).unwrap_or(rest.len())]
    }
}

/// Returns true if the index has the start of each text.
fn agrees(texts: &[u8], index: &[u16]) -> bool {
    let mut at = 0;
    for start in index {
        if usize::from(*start) != at {
            return false;
        }
        let Some(len) = texts.get(at..).and_then(|rest| memchr::memchr(0, rest)) else {
            return false;
        };
        at += len + 1;
    }
    at == texts.len()
}
