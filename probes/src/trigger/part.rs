//! Parts of a command, and the fields in them.

use super::field::{HistField, Modifier};
use crate::definition::{ParseError, fault, parse_number};

/// A part of a text, and where it begins.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
}

impl<'a> Part<'a> {
    pub(super) fn whole(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The part from byte `from` on.
    pub(super) fn from(self, from: usize) -> Self {
        Self { text: &self.text[from..], at: self.at + from }
    }

    pub(super) fn to(self, to: usize) -> Self {
        Self { text: &self.text[..to], at: self.at }
    }

    pub(super) fn trim(self) -> Self {
        let start = self.text.len() - self.text.trim_start().len();
        let text = self.text.trim();
        Self { text, at: self.at + start }
    }

    /// Splits at the first `separator`.
    pub(super) fn cut(self, separator: &str) -> (Self, Option<Self>) {
        match self.text.find(separator) {
            Some(at) => (self.to(at), Some(self.from(at + separator.len()))),
            None => (self, None),
        }
    }

    pub(super) fn split(self, separator: &'static str) -> impl Iterator<Item = Self> {
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let (first, after) = rest?.cut(separator);
            rest = after;
            Some(first)
        })
    }
}

pub(super) fn field(part: Part<'_>) -> Result<HistField, ParseError> {
    let (name, modifier) = part.cut(".");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_number = name.text.starts_with(|c: char| c.is_ascii_digit());
    if name.text.is_empty() || is_number || !name.text.chars().all(is_name) {
        return Err(fault("FIELD_NOT_FOUND", name.at, "a field's name belongs here"));
    }
    let Some(modifier) = modifier else {
        return Ok(HistField { name: name.text.to_owned(), modifier: Modifier::None });
    };
    let modifier = modifier_of(modifier)?;
    Ok(HistField { name: name.text.to_owned(), modifier })
}

pub(super) fn modifier_of(part: Part<'_>) -> Result<Modifier, ParseError> {
    Ok(match part.text {
        "hex" => Modifier::Hex,
        "sym" => Modifier::Sym,
        "sym-offset" => Modifier::SymOffset,
        "execname" => Modifier::Execname,
        "log2" => Modifier::Log2,
        "usecs" => Modifier::Usecs,
        "syscall" => Modifier::Syscall,
        "percent" => Modifier::Percent,
        "graph" => Modifier::Graph,
        "stacktrace" => Modifier::Stacktrace,
        _ => match part.cut("=") {
            (Part { text: "buckets", .. }, Some(size)) => {
                let found = parse_number(size.text).filter(|size| *size > 0);
                let message = "the size of buckets is a number, 1 or more";
                let found = found.ok_or_else(|| fault("BAD_FIELD_MODIFIER", size.at, message));
                Modifier::Buckets(found?)
            }
            _ => {
                let message = "write .hex, .sym, .sym-offset, .execname, .syscall, .log2, .buckets=N, .usecs or \
                               .stacktrace, of a value also .percent or .graph";
                return Err(fault("BAD_FIELD_MODIFIER", part.at, message));
            }
        },
    })
}
