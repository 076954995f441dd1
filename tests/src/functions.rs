//! What tests say of the guest's functions, and of probes, in a word.

use exoprobe_guest::Gva;
use exoprobe_probes::{ProbeDefinition, parse_line};

use crate::kernel_symbols;

/// Where a function of the tiny kernel is.
///
/// # Panics
/// When the kernel has no function of that name, or several.
#[must_use]
pub fn address(function: &str) -> Gva {
    kernel_symbols().lookup_function(function).unwrap_or_else(|e| panic!("{e}")).address
}

/// Its size in bytes.
///
/// # Panics
/// As [`address`].
#[must_use]
pub fn function_size(function: &str) -> u64 {
    let symbols = kernel_symbols();
    let bounds = symbols.function_at(address(function)).expect("it is a function");
    bounds.end.0 - bounds.start.0
}

/// A line of kprobe_events as a definition.
///
/// # Panics
/// When it is none.
#[must_use]
pub fn definition(line: &str) -> ProbeDefinition {
    parse_line(line).unwrap_or_else(|e| panic!("{line}: {e}"))
}
