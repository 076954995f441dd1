//! How a script's output is shown.

use serde_json::Value as Json;

use crate::host::Host;

/// The form of a script's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Text.
    #[default]
    Text,
    /// A JSON object a line (`-f json`).
    Json,
}

/// Shows values, with symbols and names that the host knows.
#[derive(Clone, Copy)]
pub(crate) struct Printer<'a> {
    pub(crate) host: &'a dyn Host,
    pub(crate) format: Format,
}

/// A line: the kind of the data, and the data.
pub(super) fn line(kind: &str, data: &str) -> Vec<u8> {
    format!("{{\"type\": \"{kind}\", \"data\": {data}}}\n").into_bytes()
}

/// A text of JSON.
pub(super) fn quoted(text: &str) -> String {
    Json::from(text).to_string()
}
