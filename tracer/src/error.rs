//! Why a file is not read or written.

use exoprobe_probes::ProbeError;
use exoprobe_probes::definition::ParseError;

/// A fault, with the errno of the kernel's own file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TracerError {
    /// Name of the errno.
    pub errno: &'static str,
    /// The fault, and its remedy.
    pub message: String,
    /// The line of a text that is at fault, from 1.
    pub line: Option<usize>,
    /// Column of the fault in that line, from 0.
    pub position: Option<usize>,
    /// The tracer's identifier for it (error_log).
    pub id: Option<&'static str>,
}

impl TracerError {
    pub(crate) fn new(errno: &'static str, message: impl Into<String>) -> Self {
        Self { errno, message: message.into(), line: None, position: None, id: None }
    }
}

impl From<ParseError> for TracerError {
    fn from(error: ParseError) -> Self {
        let (position, id) = (Some(error.position), Some(error.id));
        Self { position, id, ..Self::new(error.errno(), error.message) }
    }
}

impl From<ProbeError> for TracerError {
    fn from(error: ProbeError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
