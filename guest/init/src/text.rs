//! A bounded text buffer for one answer line.

use core::fmt;

/// Room for the longest answer, `counters`, with all numbers at 20 digits.
const CAPACITY: usize = 1024;

/// Text built with `write!` and sent with one system call. What does not fit is cut off.
#[derive(Debug)]
pub struct Text {
    bytes: [u8; CAPACITY],
    len: usize,
}

impl Default for Text {
    fn default() -> Self {
        Self::new()
    }
}

impl Text {
    /// No text.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; CAPACITY], len: 0 }
    }

    /// The bytes written so far.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..).unwrap_or_default();
        for (slot, byte) in room.iter_mut().zip(text.bytes()) {
            *slot = byte;
            self.len += 1;
        }
        Ok(())
    }
}

/// Input bytes as shown in an answer: at most 32, the unprintable ones as `?`.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a>(pub &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for &byte in self.0.iter().take(32) {
            f.write_char(if byte.is_ascii_graphic() { char::from(byte) } else { '?' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fmt::Write;

    #[test]
    fn cuts_off_what_does_not_fit() {
        let mut text = Text::new();
        for _ in 0..200 {
            write!(text, "0123456789").unwrap();
        }
        assert_eq!(text.as_bytes().len(), CAPACITY);
        assert!(text.as_bytes().starts_with(b"01234567890123"));
    }

    #[test]
    fn shows_bounded_printable_text() {
        assert_eq!(Shown(b"a\x1b[b").to_string(), "a?[b");
        assert_eq!(Shown(&[b'x'; 99]).to_string().len(), 32);
    }
}
