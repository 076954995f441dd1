//! Quotes and parentheses of a filter, which the kernel's tracer checks before all else.

use super::filter_fault::{FilterError, FilterFault};

/// Checks that quotes and parentheses are closed, and that there is something else.
///
/// # Errors
/// [`FilterError`]: the first `)` that closes nothing; else the open quote; else the last open `(`.
pub(super) fn check_balance(text: &str) -> Result<(), FilterError> {
    let (mut open, mut quote, mut has_other) = (Vec::new(), None, false);
    for (at, byte) in text.bytes().enumerate() {
        match (byte, quote) {
            (_, Some((mark, _))) if byte == mark => quote = None,
            (_, Some(_)) => {}
            (b'"' | b'\'', None) => (quote, has_other) = (Some((byte, at)), true),
            (b'(', None) => open.push(at),
            (b')', None) if open.pop().is_none() => return fail(FilterFault::NoParenthesis, at),
            (b')', None) => {}
            (_, None) => has_other |= !byte.is_ascii_whitespace(),
        }
    }
    match (quote, open.last()) {
        (Some((_, at)), _) => fail(FilterFault::OpenQuote, at),
        (None, Some(at)) => fail(FilterFault::OpenParenthesis, *at),
        (None, None) if !has_other => fail(FilterFault::Empty, 0),
        (None, None) => Ok(()),
    }
}

/// A fault whose caret is at it.
fn fail(fault: FilterFault, at: usize) -> Result<(), FilterError> {
    Err(FilterError { fault, position: at, caret: at })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_the_kernels_is_found() {
        for (text, expected) in [
            ("a == 1", None),
            ("(a == ')')", None),
            ("!", None),
            ("", Some((FilterFault::Empty, 0))),
            (" (( ) )", Some((FilterFault::Empty, 0))),
            ("a) == \"x", Some((FilterFault::NoParenthesis, 1))),
            ("(a == \"x", Some((FilterFault::OpenQuote, 6))),
            ("a == 'x' '", Some((FilterFault::OpenQuote, 9))),
            ("(a) && ((b)", Some((FilterFault::OpenParenthesis, 7))),
            ("((a == '(')", Some((FilterFault::OpenParenthesis, 0))),
        ] {
            let found = check_balance(text).map_err(|error| (error.fault, error.caret));
            assert_eq!(found.err(), expected, "{text}");
        }
    }
}
