//! Faults of definitions, with their columns.

/// A line that is not a definition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ParseError {
    /// The fault, and its remedy.
    pub message: String,
    /// Column of the fault, from 0, in bytes.
    pub position: usize,
    /// The tracer's identifier of the fault (error_log).
    pub id: &'static str,
}

/// A fault at a column; `id` is the tracer's identifier.
pub(crate) fn fault(id: &'static str, position: usize, message: impl Into<String>) -> ParseError {
    ParseError { message: message.into(), position, id }
}

impl ParseError {
    /// The errno of a write of the command.
    #[must_use]
    pub fn errno(&self) -> &'static str {
        match self.id {
            "ARG_TOO_LONG" | "EVENT_TOO_BIG" | "TOO_MANY_ARGS" | "TOO_MANY_OPS" => "E2BIG",
            "TOO_MANY_SAVE_ACTIONS" => "EEXIST",
            _ => "EINVAL",
        }
    }

    /// Returns true if the tracer logs it in error_log: it logs nothing for a line that is not a
    /// command.
    #[must_use]
    pub fn is_logged(&self) -> bool {
        !matches!(self.id, "NO_EVENT_INFO" | "BAD_PROBE_TYPE")
    }
}
