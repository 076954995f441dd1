//! Symbols of a `System.map`: the sorted output of `nm`, one `address type name` a line.

use super::SymbolTable;
use super::listing::{Listing, ListingError};

/// Faults of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineProblem {
    /// Not three fields.
    #[error("expected `address type name`")]
    Fields,
    /// The first field is not a hexadecimal number of at most 16 digits.
    #[error("the address is not a 64-bit hexadecimal number")]
    Address,
    /// The second field is not one of `nm`'s single characters.
    #[error("the type is not a single letter")]
    Type,
}

/// Reasons why a `System.map` has no usable symbol table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SystemMapError {
    /// A line is malformed.
    #[error("line {line}: {problem}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// The fault.
        problem: LineProblem,
    },
    /// The placeholder that newer Debian releases install as `/boot/System.map-*`: one line of
    /// prose.
    #[error(
        "this is Debian's placeholder; the real System.map is in the linux-image-...-dbg package"
    )]
    Placeholder,
    /// Its lines make no table.
    #[error(transparent)]
    Listing(#[from] ListingError),
}

/// The text in Debian's placeholder in place of a name, after an address and a type.
const PLACEHOLDER: &str = "The real System.map";

struct Line<'a> {
    address: u64,
    kind: u8,
    name: &'a str,
}

pub(super) fn parse(text: &str) -> Result<SymbolTable, SystemMapError> {
    if text.lines().next().is_some_and(|line| line.contains(PLACEHOLDER)) {
        return Err(SystemMapError::Placeholder);
    }
    // A line takes 19 bytes beside its name, and an average one 45.
    let mut listing = Listing::new(text.len() / 40, text.len() / 2);
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let at = |problem| SystemMapError::Line { line: number + 1, problem };
        let line = parse_line(line).map_err(at)?;
        listing.push(line.address, line.kind, line.name)?;
    }
    Ok(listing.finish()?)
}

fn parse_line(line: &str) -> Result<Line<'_>, LineProblem> {
    let mut fields = line.split_ascii_whitespace();
    let (Some(address), Some(kind), Some(name), None) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(LineProblem::Fields);
    };
    // from_str_radix would take a sign.
    if !address.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(LineProblem::Address);
    }
    let address = u64::from_str_radix(address, 16).map_err(|_| LineProblem::Address)?;
    match kind.as_bytes() {
        &[kind] if kind.is_ascii_alphabetic() || kind == b'-' || kind == b'?' => {
            Ok(Line { address, kind, name })
        }
        _ => Err(LineProblem::Type),
    }
}
