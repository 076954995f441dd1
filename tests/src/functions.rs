//! Addresses and sizes of the guest's functions.

use exoprobe_guest::Gva;

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
