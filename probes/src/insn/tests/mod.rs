//! Tests of instruction analysis. Most of them execute: an instruction runs on this CPU in its
//! place and displaced, and everything it did is compared.

mod boundary;
mod cases;
mod emulation;
mod equivalence;

mod kernel_text;
pub(crate) mod machine;
mod properties;
mod refusals;
mod signals;
mod slots;

use exoprobe_guest::Gva;

use super::{Assurances, Displaced, Refusal};

/// As [`super::analyze`], in a guest where all is assured.
fn analyze(bytes: &[u8], at: Gva) -> Result<Displaced, Refusal> {
    super::analyze(bytes, at, Assurances::ALL)
}

/// Bytes from hexadecimal text, spaces between them.
fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("hex byte")).collect()
}
