//! Places to probe.

use exoprobe_guest::Gva;

use super::token::Token;
use crate::definition::number::parse_number;
use crate::definition::{ParseError, ProbeDefinition, ProbeKind};

/// Parses a place by itself: `SYMBOL[+OFFS]` or `0xADDR`.
///
/// # Errors
/// [`ParseError`] with the column at fault.
pub(crate) fn parse_place(text: &str) -> Result<ProbeDefinition, ParseError> {
    parse_place_token(&Token { text, at: 0 })
}

/// A whole text that is a number.
pub(super) fn parse_address(text: &str) -> Option<Gva> {
    parse_number(text).map(Gva)
}

pub(super) fn parse_place_token(place: &Token<'_>) -> Result<ProbeDefinition, ParseError> {
    if let Some(addr) = parse_address(place.text) {
        return Ok(ProbeDefinition { addr: Some(addr), ..ProbeDefinition::default() });
    }
    let (place, kind) = match place.split('%') {
        None => (*place, ProbeKind::Kprobe),
        Some((symbol, Token { text: "return", .. })) => (symbol, ProbeKind::Kretprobe),
        Some((symbol, suffix)) => {
            let message = format!("`%{}` is no suffix: only `%return` is", suffix.text);
            return place.fail(symbol.text.len(), "BAD_ADDR_SUFFIX", message);
        }
    };
    let (symbol, offset) = match place.split('+') {
        None => (place, 0),
        Some((symbol, offset)) => match parse_number(offset.text) {
            Some(number) => (symbol, number),
            None => {
                let message = format!("`{}` is no offset: write SYMBOL+0x10", offset.text);
                return place.fail(0, "BAD_PROBE_ADDR", message);
            }
        },
    };
    if symbol.text.is_empty() {
        return place.fail(0, "BAD_PROBE_ADDR", "the symbol name is empty");
    }
    if symbol.text.contains('/') && symbol.text.contains(':') {
        // As the place of a uprobe, which has no entry in error_log here.
        let message = "a path is the place of a uprobe: only the kernel can be probed";
        return place.fail(0, "BAD_PROBE_TYPE", message);
    }
    if parse_number(symbol.text).is_some() {
        let message = "an offset goes with a symbol: add it to the address yourself";
        return place.fail(0, "BAD_PROBE_ADDR", message);
    }
    let symbol_name = Some(symbol.text.to_owned());
    Ok(ProbeDefinition { kind, symbol_name, offset, ..ProbeDefinition::default() })
}
