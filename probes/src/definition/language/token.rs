//! Words of a command, and their columns.

use winnow::combinator::{opt, preceded};
use winnow::prelude::*;
use winnow::stream::{LocatingSlice, Location};
use winnow::token::{take_till, take_while};

use crate::definition::error::ParseError;

/// A piece of a command, and its column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
}

impl<'a> Token<'a> {
    /// An error `skip` bytes after the piece's begin.
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

    /// The rest after `prefix`.
    pub(super) fn behind(&self, prefix: &str) -> Option<Self> {
        self.text.starts_with(prefix).then(|| self.split_at(prefix.len()).1)
    }
}

/// The words of a command, with the columns where they begin.
pub fn words(command: &str) -> impl Iterator<Item = (usize, &str)> {
    tokens(without_comment(command)).into_iter().map(|token| (token.at, token.text))
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

/// A command as error_log shows it, with one blank between words, and the position of a column in
/// it.
#[must_use]
pub fn normalised(command: &str, position: usize) -> (String, usize) {
    let (mut text, mut column) = (String::new(), None);
    for token in tokens(command) {
        if !text.is_empty() {
            text.push(' ');
        }
        // A position between two words is shown at the end of the first.
        if column.is_none() && position < token.at {
            column = Some(text.len().saturating_sub(1));
        }
        if column.is_none() && position <= token.at + token.text.len() {
            column = Some(text.len() + (position - token.at));
        }
        text.push_str(token.text);
    }
    let column = column.unwrap_or(text.len());
    (text, column)
}

/// A command without its comment, which begins with `#`.
#[must_use]
pub fn without_comment(line: &str) -> &str {
    line.split_once('#').map_or(line, |(command, _)| command)
}
