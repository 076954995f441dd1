//! Context of client commands.

use std::io::{self, Write};

use serde::de::DeserializeOwned;

use super::error::CliError;
use super::format::printable_json;
use crate::client::{Client, ClientError};

/// The service that a client command speaks to, and its output.
pub(super) struct Context<'a> {
    pub(super) client: &'a Client,
    pub(super) json: bool,
    pub(super) out: &'a mut dyn Write,
}

impl Context<'_> {
    /// Reads an answer. If JSON is requested, prints it and returns `None`.
    pub(super) fn read<T: DeserializeOwned>(
        &mut self,
        answer: &[u8],
    ) -> Result<Option<T>, CliError> {
        if self.json {
            self.print_json(&String::from_utf8_lossy(answer))?;
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(answer).map_err(ClientError::from)?))
    }

    /// Prints a JSON document and a line feed. The guest's text in it cannot steer the terminal.
    pub(super) fn print_json(&mut self, document: &str) -> io::Result<()> {
        writeln!(self.out, "{}", printable_json(document.trim_ascii_end()))
    }
}
