//! Words, and numbers.

use winnow::combinator::{opt, preceded};
use winnow::prelude::*;
use winnow::stream::{LocatingSlice, Location};
use winnow::token::{take_till, take_while};

use super::ParseError;

/// A piece of a command, and the column where it begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
}

impl<'a> Token<'a> {
    /// An error `skip` bytes behind the piece's begin.
    pub(super) fn fail<T>(
        &self,
        skip: usize,
        id: &'static str,
        message: impl Into<String>,
    ) -> Result<T, ParseError> {
        Err(ParseError { message: message.into(), position: self.at + skip, id })
    }

    /// The pieces before and from byte `at` on.
    pub(super) fn split_at(&self, at: usize) -> (Self, Self) {
        let (head, tail) = self.text.split_at(at);
        (Self { text: head, at: self.at }, Self { text: tail, at: self.at + at })
    }

    /// Splits at the first `separator`, which neither has.
    pub(super) fn split(&self, separator: char) -> Option<(Self, Self)> {
        let at = self.text.find(separator)?;
        let (head, tail) = self.split_at(at);
        Some((head, tail.split_at(separator.len_utf8()).1))
    }

    /// What follows `prefix`.
    pub(super) fn behind(&self, prefix: &str) -> Option<Self> {
        self.text.starts_with(prefix).then(|| self.split_at(prefix.len()).1)
    }
}

/// The words of a command, with the columns where they begin.
pub fn words(command: &str) -> impl Iterator<Item = (usize, &str)> {
    tokens(super::without_comment(command)).into_iter().map(|token| (token.at, token.text))
}

/// The words of a text.
pub(super) fn tokens<'a>(line: &'a str) -> Vec<Token<'a>> {
    let mut input = LocatingSlice::new(line);
    let word = |input: &mut LocatingSlice<&'a str>| -> winnow::ModalResult<Token<'a>> {
        let at = input.current_token_start();
        let text = take_till(1.., char::is_whitespace).parse_next(input)?;
        Ok(Token { text, at })
    };
    let mut found = Vec::new();
    let mut next = opt(preceded(take_while(0.., char::is_whitespace), word));
    while let Ok(Some(token)) = next.parse_next(&mut input) {
        found.push(token);
    }
    found
}

/// A number without a sign: hexadecimal behind 0x, octal behind another 0, else decimal.
pub(crate) fn parse_number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None => match text.strip_prefix('0') {
            Some(octal) if !octal.is_empty() => (octal, 8),
            _ => (text, 10),
        },
    };
    // from_str_radix alone would take a sign.
    digits.chars().all(|c| c.is_digit(radix)).then_some(())?;
    u64::from_str_radix(digits, radix).ok()
}

/// A number of 64 bits; a negative one in two's complement.
pub(crate) fn parse_signed(text: &str) -> Option<u64> {
    match text.strip_prefix('-') {
        None => parse_number(text),
        Some(digits) => parse_number(digits).filter(|n| *n <= 1 << 63).map(u64::wrapping_neg),
    }
}

/// A number behind `+` or `-`.
pub(super) fn parse_offset(text: &str) -> Option<i64> {
    let number = |digits| i64::try_from(parse_number(digits)?).ok();
    match text.strip_prefix('-') {
        Some(digits) => number(digits).map(|n| -n),
        None => number(text.strip_prefix('+')?),
    }
}
