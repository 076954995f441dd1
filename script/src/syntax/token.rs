//! Tokens: names, numbers, texts, marks; and what stands between them.

use std::sync::Arc;

use winnow::combinator::{alt, not, opt, preceded, repeat, terminated};
use winnow::error::{ErrMode, ParserError};
use winnow::prelude::*;
use winnow::stream::{LocatingSlice, Location, Stateful};
use winnow::token::{any, one_of, rest, take_till, take_until, take_while};

use super::ast::{Expr, Name, Statement};
use crate::diagnostic::{Diagnostic, Span};

/// The script's text from the place on that the parser has reached.
pub(super) type Input<'a> = Stateful<LocatingSlice<&'a str>, State>;
pub(super) type Parsed<T> = Result<T, ErrMode<Fault>>;

/// Most levels that statements and expressions may be in one another.
pub(super) const DEPTH_MAX: usize = 96;

/// Statements, and the value that the last one leaves.
pub(super) type Block = (Vec<Statement>, Option<Expr>);

/// The state of the parser.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// Levels that it is in.
    depth: usize,
    /// Parses a block: expressions and statements are parts of one another.
    pub(super) block: fn(&mut Input<'_>) -> Parsed<Block>,
}

/// Begins to parse `text`, whose blocks `block` parses.
pub(super) fn input(text: &str, block: fn(&mut Input<'_>) -> Parsed<Block>) -> Input<'_> {
    Input { input: LocatingSlice::new(text), state: State { depth: 0, block } }
}

/// Returns true for a text that is one name.
pub(super) fn is_name(text: &str) -> bool {
    let no_block = |input: &mut Input<'_>| expected(input, "a name");
    let mut input = input(text, no_block);
    blanks(&mut input).is_ok() && word(&mut input).is_ok_and(|word| word.len() == text.len())
}

/// An error of the grammar.
#[derive(Debug)]
pub(super) struct Fault(pub(super) Diagnostic);

impl ParserError<Input<'_>> for Fault {
    type Inner = Self;

    fn from_input(input: &Input<'_>) -> Self {
        let at = input.current_token_start();
        Self(Diagnostic::new(Span { start: at, end: at + 1 }, "syntax error"))
    }

    fn into_inner(self) -> Result<Self::Inner, Self> {
        Ok(self)
    }
}

/// Makes an error that no other way of parsing can mend.
pub(super) fn fault<T>(span: Span, message: impl Into<String>) -> Parsed<T> {
    Err(ErrMode::Cut(Fault(Diagnostic::new(span, message))))
}

/// As [`fault`], with what would be right.
pub(super) fn fault_with<T>(diagnostic: Diagnostic) -> Parsed<T> {
    Err(ErrMode::Cut(Fault(diagnostic)))
}

/// Runs `parse` one level deeper.
pub(super) fn deeper<'a, T>(
    input: &mut Input<'a>,
    parse: impl FnOnce(&mut Input<'a>) -> Parsed<T>,
) -> Parsed<T> {
    if input.state.depth >= DEPTH_MAX {
        let start = here(input)?;
        let message = format!("nested too deeply: at most {DEPTH_MAX} levels");
        return fault(Span { start, end: start + 1 }, message);
    }
    input.state.depth += 1;
    let parsed = parse(input);
    input.state.depth -= 1;
    parsed
}

/// Skips blanks and comments.
pub(super) fn blanks(input: &mut Input<'_>) -> Parsed<()> {
    let line = ("//", take_till(0.., '\n')).void();
    let block = ("/*", alt(((take_until(0.., "*/"), "*/").void(), rest.void()))).void();
    let space = take_while(1.., char::is_whitespace).void();
    repeat::<_, _, (), _, _>(0.., alt((space, line, block))).parse_next(input)
}

/// The place of the next token.
pub(super) fn here(input: &mut Input<'_>) -> Parsed<usize> {
    blanks(input)?;
    Ok(input.current_token_start())
}

/// From `start` to the end of the last token.
pub(super) fn since(input: &Input<'_>, start: usize) -> Span {
    Span { start, end: input.current_token_start() }
}

/// The rest of the text from the next token on.
pub(super) fn ahead<'a>(input: &mut Input<'a>) -> Parsed<&'a str> {
    blanks(input)?;
    Ok(input.input.as_ref())
}

/// Takes a mark if it is next.
pub(super) fn take(input: &mut Input<'_>, mark: &'static str) -> Parsed<bool> {
    blanks(input)?;
    Ok(opt(mark).parse_next(input)?.is_some())
}

/// Takes a mark.
pub(super) fn expect(input: &mut Input<'_>, mark: &'static str) -> Parsed<()> {
    if take(input, mark)? {
        return Ok(());
    }
    expected(input, &format!("`{mark}`"))
}

/// The error that something else was expected than what is next.
pub(super) fn expected<T>(input: &mut Input<'_>, wanted: &str) -> Parsed<T> {
    let start = here(input)?;
    let found = next_token(input);
    let end = start + found.len().max(1);
    let found = if found.is_empty() { "the end".to_owned() } else { format!("`{found}`") };
    fault(Span { start, end }, format!("expected {wanted}, found {found}"))
}

/// The next token, as text for an error.
fn next_token<'a>(input: &Input<'a>) -> &'a str {
    let text: &'a str = input.input.as_ref();
    let is_word = |char: char| char.is_alphanumeric() || "_$@".contains(char);
    let word = text.find(|char| !is_word(char)).unwrap_or(text.len());
    let len = if word > 0 { word } else { text.chars().next().map_or(0, char::len_utf8) };
    const SHOWN_MAX: usize = 40;
    let end = text.char_indices().map(|(at, _)| at).take_while(|at| *at <= SHOWN_MAX).last();
    &text[..len.min(end.unwrap_or(0).max(text.chars().next().map_or(0, char::len_utf8)))]
}

/// The characters of a name.
pub(super) fn word<'a>(input: &mut Input<'a>) -> Parsed<&'a str> {
    let first = one_of(('a'..='z', 'A'..='Z', '_'));
    let more = take_while(0.., ('a'..='z', 'A'..='Z', '0'..='9', '_'));
    (first, more).take().parse_next(input)
}

/// Takes a name if one is next.
pub(super) fn name(input: &mut Input<'_>) -> Parsed<Option<Name>> {
    let start = here(input)?;
    let text = opt(word).parse_next(input)?;
    Ok(text.map(|text| Name { text: Arc::from(text), span: since(input, start) }))
}

/// Takes a name.
pub(super) fn expect_name(input: &mut Input<'_>, wanted: &str) -> Parsed<Name> {
    match name(input)? {
        Some(name) => Ok(name),
        None => expected(input, wanted),
    }
}

/// Takes a word of the language if it is next.
pub(super) fn keyword(input: &mut Input<'_>, wanted: &'static str) -> Parsed<bool> {
    blanks(input)?;
    let more = one_of(('a'..='z', 'A'..='Z', '0'..='9', '_'));
    Ok(opt(terminated(wanted, not(more))).parse_next(input)?.is_some())
}

/// Reads a number: its value, and whether it has no sign by itself.
pub(super) fn number(input: &mut Input<'_>) -> Parsed<(u64, bool)> {
    let start = here(input)?;
    let text = take_while(1.., ('0'..='9', 'a'..='z', 'A'..='Z', '_')).parse_next(input)?;
    let span = since(input, start);
    match parse_number(text) {
        Some(number) => Ok(number),
        None => fault_with(
            Diagnostic::new(span, format!("not a number of 64 bits: `{text}`"))
                .help("write digits, 0x and digits, 0 and octal digits, or 1e6"),
        ),
    }
}

/// Nanoseconds of the units of durations.
const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Parses a number of the language: all of `text`.
pub(crate) fn parse_number(text: &str) -> Option<(u64, bool)> {
    let text = text.replace('_', "");
    let wide = |number: u64| Some((number, i64::try_from(number).is_err()));
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return wide(u64::from_str_radix(strip_suffix(hex), 16).ok()?);
    }
    let plain = strip_suffix(&text);
    if plain.len() > 1 && plain.starts_with('0') && plain.bytes().all(|byte| byte.is_ascii_digit())
    {
        return wide(u64::from_str_radix(&plain[1..], 8).ok()?);
    }
    if let Some((mantissa, exponent)) = plain.split_once(['e', 'E']) {
        let power = 10u64.checked_pow(exponent.parse().ok()?)?;
        return wide(mantissa.parse::<u64>().ok()?.checked_mul(power)?);
    }
    if let Ok(number) = plain.parse() {
        return wide(number);
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
    wide(number.parse::<u64>().ok()?.checked_mul(*factor)?)
}

/// Strips a suffix of C: `ULL` and the like.
fn strip_suffix(text: &str) -> &str {
    text.trim_end_matches(['u', 'U', 'l', 'L'])
}

/// Reads a text in double quotes.
pub(super) fn text(input: &mut Input<'_>) -> Parsed<Arc<[u8]>> {
    let start = here(input)?;
    expect(input, "\"")?;
    let mut bytes = Vec::new();
    loop {
        match opt(any).parse_next(input)? {
            Some('"') => return Ok(bytes.into()),
            Some('\\') => escape(input, &mut bytes)?,
            None | Some('\n') => {
                return fault(since(input, start), "text without its closing `\"`");
            }
            Some(char) => bytes.extend(char.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
}

/// Reads a character in single quotes, as its number.
pub(super) fn character(input: &mut Input<'_>) -> Parsed<u64> {
    let start = here(input)?;
    expect(input, "'")?;
    let mut bytes = Vec::new();
    match opt(any).parse_next(input)? {
        Some('\\') => escape(input, &mut bytes)?,
        Some(char) => bytes.extend(char.encode_utf8(&mut [0; 4]).bytes()),
        None => {}
    }
    let is_closed = opt('\'').parse_next(input)?.is_some();
    match bytes[..] {
        [byte] if is_closed => Ok(byte.into()),
        _ => fault(since(input, start), "expected one character in single quotes"),
    }
}

/// Reads what follows a backslash.
fn escape(input: &mut Input<'_>, bytes: &mut Vec<u8>) -> Parsed<()> {
    let start = input.current_token_start() - 1;
    let hex = preceded('x', take_while(1..=2, |char: char| char.is_ascii_hexdigit()));
    let hex = hex.verify_map(|digits: &str| u8::from_str_radix(digits, 16).ok());
    let octal = take_while(1..=3, '0'..='7');
    let octal = octal.verify_map(|digits: &str| u8::from_str_radix(digits, 8).ok());
    if let Some(byte) = opt(alt((hex, octal))).parse_next(input)? {
        bytes.push(byte);
        return Ok(());
    }
    bytes.push(match opt(any).parse_next(input)? {
        Some('n') => b'\n',
        Some('t') => b'\t',
        Some('r') => b'\r',
        Some('e') => 0x1b,
        Some(char @ ('"' | '\\' | '\'')) => char as u8,
        other => {
            let shown = other.map(String::from).unwrap_or_default();
            let message = format!("unknown escape `\\{shown}`");
            let error = Diagnostic::new(since(input, start), message);
            return fault_with(error.help(r#"known are \n \t \r \e \\ \" \nnn and \xnn"#));
        }
    });
    Ok(())
}
