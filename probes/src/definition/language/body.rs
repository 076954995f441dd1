//! Bodies of arguments: the sources of their values.

use std::str::FromStr;

use super::token::Token;
use crate::definition::names::{STACK_WORDS, is_identifier};
use crate::definition::number::{parse_number, parse_offset, parse_signed};
use crate::definition::{Fetch, NESTING_MAX, ParseError, Segment};

/// Longest name of a parameter, in bytes.
const PARAMETER_MAX: usize = 128;
/// Largest N of `$argN`.
const ARGUMENTS_MAX: u64 = 2048;

/// Parses the body of an argument by itself.
fn parse_fetch(text: &str) -> Result<Fetch, ParseError> {
    parse_body(&Token { text, at: 0 })
}

pub(super) fn parse_body(body: &Token<'_>) -> Result<Fetch, ParseError> {
    nested(body, NESTING_MAX)
}

/// `nesting`: number of dereferences that are still permitted.
fn nested(body: &Token<'_>, nesting: usize) -> Result<Fetch, ParseError> {
    match body.text.as_bytes().first() {
        Some(b'%') => register(body),
        Some(b'$') => variable(body),
        Some(b'@') => memory(body),
        Some(b'\\') => constant(&body.split_at(1).1),
        Some(b'+' | b'-') => dereference(body, nesting),
        Some(b'_' | b'a'..=b'z' | b'A'..=b'Z') => parameter(body),
        _ => {
            let message = format!(
                "`{}` is no value: write `%di`, `$stack0`, `$arg1`, `@SYMBOL`, `+8(%di)` or a parameter's name",
                body.text
            );
            body.fail(0, "BAD_FETCH_ARG", message)
        }
    }
}

fn register(body: &Token<'_>) -> Result<Fetch, ParseError> {
    let name = &body.text[1..];
    if name == "orig_ax" {
        return Ok(Fetch::OrigAx);
    }
    if let Some(segment) = Segment::ALL.iter().find(|segment| segment.name() == name) {
        return Ok(Fetch::Segment(*segment));
    }
    match name.parse() {
        Ok(register) => Ok(Fetch::Register(register)),
        Err(error) => body.fail(0, "BAD_REG_NAME", format!("{error} cs ss orig_ax")),
    }
}

fn variable(body: &Token<'_>) -> Result<Fetch, ParseError> {
    let name = &body.text[1..];
    match name {
        "stack" => return Ok(Fetch::StackPointer),
        "comm" | "COMM" => return Ok(Fetch::Comm),
        "current" => return Ok(Fetch::CurrentTask),
        "retval" => return Ok(Fetch::ReturnValue),
        _ => {}
    }
    if name.starts_with("retval->") || name.starts_with("retval.") {
        return member(body, &body.split_at("$retval".len()), Fetch::ReturnValue);
    }
    let number = |text: &str, max: u64| parse_number(text).filter(|n| *n < max);
    if let Some(n) = name.strip_prefix("stack") {
        return match number(n, STACK_WORDS.into()).map(u16::try_from) {
            Some(Ok(n)) => Ok(Fetch::Stack(n)),
            _ => {
                let message = format!("`{n}` is no stack entry: 0 to {}", STACK_WORDS - 1);
                body.fail(0, number_fault(n, "BAD_STACK_NUM"), message)
            }
        };
    }
    if let Some(n) = name.strip_prefix("arg").filter(|n| *n != "*") {
        return match number(n, ARGUMENTS_MAX).filter(|n| *n > 0).map(u16::try_from) {
            Some(Ok(n)) => Ok(Fetch::Argument(n)),
            _ => {
                let message = format!("`{n}` is no argument's number: they begin with `$arg1`");
                body.fail(0, number_fault(n, "BAD_ARG_NUM"), message)
            }
        };
    }
    let message = format!(
        "`${name}` is not known: `$argN`, `$retval`, `$stack`, `$stackN`, `$comm` and `$current` are, and `$arg*` by itself"
    );
    body.fail(0, "BAD_VAR", message)
}

/// The identifier of a wrong `$argN` or `$stackN`: to the kernel, one without a number is another
/// variable.
fn number_fault(text: &str, of_number: &'static str) -> &'static str {
    if parse_number(text).is_some() { of_number } else { "BAD_VAR" }
}

/// `@ADDR`, `@SYM[+-OFFS]`.
fn memory(body: &Token<'_>) -> Result<Fetch, ParseError> {
    let place = &body.text[1..];
    if place.starts_with('+') {
        let message = "`@+OFFS` is a place in a file, which only uprobes have";
        return body.fail(0, "FILE_ON_KPROBE", message);
    }
    if place.starts_with(|c: char| c.is_ascii_digit()) {
        return match super::place::parse_address(place) {
            Some(addr) => Ok(Fetch::Memory(addr)),
            None => {
                body.fail(0, "BAD_MEM_ADDR", format!("`{place}` is no address: write `@0x...`"))
            }
        };
    }
    let (name, offset) = place.split_at(place.find(['+', '-']).unwrap_or(place.len()));
    let offset = if offset.is_empty() { Some(0) } else { parse_offset(offset) };
    match offset {
        Some(offset) if !name.is_empty() => Ok(Fetch::Symbol { name: name.to_owned(), offset }),
        _ => {
            let message = format!("`{place}` is no place: write `@0x...` or `@SYMBOL+8`");
            body.fail(0, "BAD_MEM_ADDR", message)
        }
    }
}

/// Parses the text after the backslash.
fn constant(value: &Token<'_>) -> Result<Fetch, ParseError> {
    if let Some(text) = value.strip_prefix("\"") {
        return match text.text.strip_suffix('"').filter(|text| !text.contains('"')) {
            Some(text) => Ok(Fetch::ConstantText(text.to_owned())),
            None => value.fail(
                value.text.len(),
                "IMMSTR_NO_CLOSE",
                "a text ends with `\"`, and has no other: write `\\\"text\"`",
            ),
        };
    }
    let number =
        value.text.strip_prefix('+').map_or_else(|| parse_signed(value.text), parse_number);
    match number {
        Some(number) => Ok(Fetch::Constant(number)),
        None => {
            let message = format!("`{}` is no constant: write `\\5` or `\\\"text\"`", value.text);
            value.fail(0, "BAD_IMM", message)
        }
    }
}

/// `+[u]OFFS(BODY)` or `-[u]OFFS(BODY)`.
fn dereference(body: &Token<'_>, nesting: usize) -> Result<Fetch, ParseError> {
    let Some((offset, inner)) = body.split('(') else {
        let message = "an offset needs what it is added to: write `+8(%di)`";
        return body.fail(0, "DEREF_NEED_BRACE", message);
    };
    let (sign, digits) = offset.split_at(1);
    let user = digits.text.starts_with('u');
    let digits = digits.text.strip_prefix('u').unwrap_or(digits.text);
    let Some(number) = parse_offset(&format!("{}{digits}", sign.text)) else {
        let message = format!("`{}` is no offset: write `+8(...)` or `-0x10(...)`", offset.text);
        return offset.fail(0, "BAD_DEREF_OFFS", message);
    };
    if !inner.text.ends_with(')') {
        let message = "the `)` at the end is missing";
        return inner.fail(inner.text.len(), "DEREF_OPEN_BRACE", message);
    }
    let inner = inner.split_at(inner.text.len() - 1).0;
    let Some(nesting) = nesting.checked_sub(1) else {
        let message = format!("more than {NESTING_MAX} dereferences in one another");
        return inner.fail(0, "TOO_MANY_OPS", message);
    };
    let base = nested(&inner, nesting)?;
    if base.is_known_text() {
        let message = format!("`{base}` is text, and no address");
        return inner.fail(0, "COMM_CANT_DEREF", message);
    }
    Ok(Fetch::Deref { offset: number, base: Box::new(base), user })
}

/// `NAME`, `NAME->MEMBER...`.
fn parameter(body: &Token<'_>) -> Result<Fetch, ParseError> {
    let end = body.text.find(['-', '.']).unwrap_or(body.text.len());
    let (name, rest) = body.split_at(end);
    if !is_identifier(name.text) || name.text.len() > PARAMETER_MAX {
        let message = format!("`{}` is no parameter's name", name.text);
        return body.fail(0, "BAD_FETCH_ARG", message);
    }
    let base = Fetch::Parameter(name.text.to_owned());
    if rest.text.is_empty() { Ok(base) } else { member(body, &(name, rest), base) }
}

/// A body whose first part is followed by members.
fn member(
    body: &Token<'_>,
    (first, rest): &(Token<'_>, Token<'_>),
    base: Fetch,
) -> Result<Fetch, ParseError> {
    if rest.text.starts_with('.') {
        let message = format!("`{}` is no struct, but may point to one: write `->`", first.text);
        return rest.fail(1, "NOSUP_DAT_ARG", message);
    }
    if let Some(hyphen) = lone_hyphen(rest.text) {
        return rest.fail(hyphen, "BAD_HYPHEN", "a member is after `->` or `.`");
    }
    let path = rest.split_at("->".len()).1;
    let mut names = path.text.split("->").flat_map(|part| part.split('.'));
    if !names.all(|name| is_identifier(name) && name.len() <= PARAMETER_MAX) {
        let message = format!("`{}` is no way to a member: write `->a.b->c`", path.text);
        return path.fail(0, "NO_BTF_FIELD", message);
    }
    if path.text.matches("->").count() >= NESTING_MAX {
        let message = format!("more than {NESTING_MAX} dereferences in one another");
        return body.fail(0, "TOO_MANY_OPS", message);
    }
    Ok(Fetch::Member { base: Box::new(base), path: path.text.to_owned() })
}

/// Position of a `-` that no `>` follows.
fn lone_hyphen(text: &str) -> Option<usize> {
    text.match_indices('-').map(|(at, _)| at).find(|at| !text[at + 1..].starts_with('>'))
}

impl FromStr for Fetch {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        parse_fetch(text)
    }
}
