//! Cuts the byte stream of ttyS1 into lines, in bounded memory.

/// Longest accepted line, without its line end.
pub const MAX_LINE: usize = 255;

/// One line of input.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A complete line without its line end (LF or CR LF).
    Text(&'a [u8]),
    /// The first [`MAX_LINE`] bytes of a longer line; the others were dropped.
    TooLong(&'a [u8]),
}

/// Collects bytes until a line is complete.
#[derive(Debug)]
pub struct LineBuffer {
    bytes: [u8; MAX_LINE],
    len: usize,
    overflowed: bool,
}

impl Default for LineBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl LineBuffer {
    /// An empty buffer.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; MAX_LINE], len: 0, overflowed: false }
    }

    /// Adds one byte; returns the line it completes, if it does.
    pub fn push(&mut self, byte: u8) -> Option<Line<'_>> {
        if byte == b'\n' {
            return Some(self.finish());
        }
        match self.bytes.get_mut(self.len) {
            Some(slot) => {
                *slot = byte;
                self.len += 1;
            }
            None => self.overflowed = true,
        }
        None
    }

    fn finish(&mut self) -> Line<'_> {
        let line = self.bytes.get(..self.len).unwrap_or_default();
        self.len = 0;
        if core::mem::take(&mut self.overflowed) {
            return Line::TooLong(line);
        }
        Line::Text(line.strip_suffix(b"\r").unwrap_or(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(input: &[u8]) -> Vec<Option<Vec<u8>>> {
        let mut buffer = LineBuffer::new();
        let mut out = Vec::new();
        for &byte in input {
            match buffer.push(byte) {
                Some(Line::Text(text)) => out.push(Some(text.to_vec())),
                Some(Line::TooLong(start)) => {
                    assert_eq!(start.len(), MAX_LINE);
                    out.push(None);
                }
                None => {}
            }
        }
        out
    }

    #[test]
    fn splits_at_lf_and_crlf_and_keeps_empty_lines() {
        let got = lines(b"ping\r\n\nopen / 1\nrest");
        assert_eq!(got, [Some(b"ping".to_vec()), Some(vec![]), Some(b"open / 1".to_vec())]);
    }

    #[test]
    fn reports_a_long_line_once_and_recovers() {
        let mut input = vec![b'x'; 5 * MAX_LINE];
        input.extend_from_slice(b"\nping\n");
        assert_eq!(lines(&input), [None, Some(b"ping".to_vec())]);
    }

    #[test]
    fn accepts_a_line_of_exactly_the_limit() {
        let mut input = vec![b'x'; MAX_LINE];
        input.push(b'\n');
        assert_eq!(lines(&input), [Some(vec![b'x'; MAX_LINE])]);
    }
}
