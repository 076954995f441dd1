//! Definitions of probes.

use exoprobe_probes::{ProbeDefinition, parse_line};

/// A line of kprobe_events as a definition.
///
/// # Panics
/// When it is none.
#[must_use]
pub fn definition(line: &str) -> ProbeDefinition {
    parse_line(line).unwrap_or_else(|e| panic!("{line}: {e}"))
}
