//! Limits of a script, each with its name.

use thiserror::Error;

/// Limits of a running script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of one map (`map_entries`).
    pub map_entries: usize,
    /// Bytes of all maps of a script together (`map_bytes`).
    pub map_bytes: usize,
    /// Bytes of one text (`text_bytes`).
    pub text_bytes: usize,
    /// Rounds of all loops in one run of a body (`loop_rounds`).
    pub loop_rounds: u64,
    /// Bytes of output of one run of a body (`output_bytes`).
    pub output_bytes: usize,
    /// Bytes of one value: tuples, buffers, memory (`value_bytes`).
    pub value_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            map_entries: 65_536,
            map_bytes: 32 << 20,
            text_bytes: 65_536,
            loop_rounds: 1_000_000,
            output_bytes: 1 << 24,
            value_bytes: 1 << 20,
        }
    }
}

/// A limit that a script reached. The run of the body ends there; the script may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("limit `{name}` of {limit} reached")]
pub struct LimitError {
    /// The limit's name, as in [`Limits`].
    pub name: &'static str,
    /// Its value.
    pub limit: u64,
}

/// The error of a limit that was reached.
pub(crate) fn limit(name: &'static str, limit: usize) -> LimitError {
    LimitError { name, limit: limit as u64 }
}
