//! Errors of a script, each with its place.

use std::fmt;
use std::sync::Arc;

use unicode_width::UnicodeWidthStr;

use crate::nearest::nearest;

/// A part of a script's text, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// Its first byte.
    pub start: usize,
    /// The byte after its last.
    pub end: usize,
}

impl Span {
    /// From the start of this to the end of `last`.
    #[must_use]
    pub fn to(self, last: Self) -> Self {
        Self { start: self.start, end: last.end.max(self.start) }
    }
}

/// An error at a place of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Where.
    pub span: Span,
    /// The error.
    pub message: String,
    /// The correction.
    pub help: Option<String>,
}

impl Diagnostic {
    /// An error without help.
    pub fn new(span: Span, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), help: None }
    }

    /// Adds what would be right.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds the name among `known` that is nearest to `wrong`, if one is near.
    #[must_use]
    pub fn near<'a>(self, wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        match nearest(wrong, known) {
            Some(near) => self.help(format!("did you mean `{near}`?")),
            None => self,
        }
    }
}

/// The errors of a script. Its text shows each with its line and a mark below its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics {
    source: Arc<str>,
    /// In the order of their places; at least one.
    pub errors: Vec<Diagnostic>,
}

impl Diagnostics {
    pub(crate) fn new(source: &Arc<str>, mut errors: Vec<Diagnostic>) -> Self {
        errors.sort_by_key(|error| error.span.start);
        Self { source: Arc::clone(source), errors }
    }

    /// Line and column of a byte, both from 1.
    #[must_use]
    pub fn position(&self, at: usize) -> (usize, usize) {
        let before = self.source.get(..at).unwrap_or(&self.source);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    fn write_place(&self, span: Span, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = span.start.min(self.source.len());
        let before = &self.source[..start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let rest = &self.source[line_start..];
        let line = rest.lines().next().unwrap_or_default().replace('\t', " ");
        /// Longest part of a line that is shown, in characters.
        const SHOWN_MAX: usize = 200;
        let column = before[line_start..].chars().count();
        let skipped = column.saturating_sub(SHOWN_MAX / 2);
        let shown: String = line.chars().skip(skipped).take(SHOWN_MAX).collect();
        let lead: String = line.chars().skip(skipped).take(column - skipped).collect();
        let marked = self.source.get(start..span.end).unwrap_or_default();
        let first_line = marked.lines().next().unwrap_or_default();
        let room = shown.width().saturating_sub(lead.width()).max(1);
        let marks = first_line.width().clamp(1, room);
        writeln!(f, "{shown}")?;
        write!(f, "{}{}", " ".repeat(lead.width()), "^".repeat(marks))
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            let (line, column) = self.position(error.span.start);
            let break_before = if index == 0 { "" } else { "\n" };
            writeln!(f, "{break_before}{line}:{column}: error: {}", error.message)?;
            self.write_place(error.span, f)?;
            if let Some(help) = &error.help {
                write!(f, "\nhelp: {help}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}
