//! A filter as its user wrote it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::ParseError;
use super::field_kind::FieldKinds;
use super::filter::Filter;
use super::filter_fault::FilterError;
use super::filter_text;

/// A filter, and its text, which is shown in place of it.
#[derive(Clone, Debug)]
pub struct WrittenFilter {
    text: Box<str>,
    expression: Filter,
}

impl WrittenFilter {
    /// Its meaning.
    #[must_use]
    pub fn expression(&self) -> &Filter {
        &self.expression
    }

    /// Parses a filter over these fields, and keeps the blanks before it.
    ///
    /// # Errors
    /// [`FilterError`]: the first fault that the kernel's tracer finds.
    pub fn parse(text: &str, fields: &FieldKinds) -> Result<Self, FilterError> {
        Ok(Self::written(text.trim_ascii_end(), filter_text::parse(text, fields)?))
    }

    fn written(text: &str, expression: Filter) -> Self {
        // The tracer's files have a line for each filter.
        match text.contains(char::is_control) {
            true => expression.into(),
            false => Self { text: text.into(), expression },
        }
    }
}

impl FromStr for WrittenFilter {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Ok(Self::written(text.trim(), text.parse()?))
    }
}

impl From<Filter> for WrittenFilter {
    fn from(expression: Filter) -> Self {
        Self { text: expression.to_string().trim_end().into(), expression }
    }
}

impl fmt::Display for WrittenFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Filters are the same if their texts are, as for the kernel.
impl PartialEq for WrittenFilter {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for WrittenFilter {}

impl Serialize for WrittenFilter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WrittenFilter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_shown_as_it_was_written() {
        for (text, shown) in [
            (" (a == 10) ", "(a == 10)"),
            ("a==010||!(b<-1)", "a==010||!(b<-1)"),
            ("a == 10\n&& b == 1", "a == 0xa && b == 0x1"),
        ] {
            let filter: WrittenFilter = text.parse().unwrap();
            assert_eq!(filter.to_string(), shown);
            let again: WrittenFilter = shown.parse().unwrap();
            assert_eq!(again.expression(), filter.expression(), "{text}");
        }
    }
}
