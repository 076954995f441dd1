//! Faults of definitions, with their columns.

/// A line that is no definition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ParseError {
    /// What is wrong, and what would be right.
    pub message: String,
    /// Column of the fault, from 0, in bytes.
    pub position: usize,
    /// The tracer's identifier for it (error_log).
    pub id: &'static str,
}

impl ParseError {
    /// The errno that a write of the command gives.
    #[must_use]
    pub fn errno(&self) -> &'static str {
        match self.id {
            "ARG_TOO_LONG" | "EVENT_TOO_BIG" | "TOO_MANY_ARGS" | "TOO_MANY_OPS" => "E2BIG",
            _ => "EINVAL",
        }
    }

    /// Whether the tracer has an entry for it in error_log: of what is no command at all it has none.
    #[must_use]
    pub fn is_logged(&self) -> bool {
        !matches!(self.id, "NO_EVENT_INFO" | "BAD_PROBE_TYPE")
    }
}
