//! Arguments: names, and types.

use std::str::FromStr;

use super::body::parse_body;
use super::token::Token;
use crate::definition::names::{ARG_NAME_MAX, is_event_name, is_reserved};
use crate::definition::number::parse_number;
use crate::definition::value::{ARRAY_MAX, NoSuchType, ValueType};
use crate::definition::{Fetch, FetchArg, NESTING_MAX, Named, ParseError};

/// Longest body and type of an argument, in characters.
pub(crate) const BODY_MAX: usize = 63;

/// Parses one argument by itself.
fn parse_arg(text: &str) -> Result<FetchArg, ParseError> {
    parse_arg_token(&Token { text, at: 0 })
}

pub(super) fn parse_arg_token(token: &Token<'_>) -> Result<FetchArg, ParseError> {
    if token.text == "$arg*" {
        return Ok(FetchArg { name: None, body: Fetch::AllParameters, kind: None, count: None });
    }
    let is_text = |at: usize| token.text[..at].contains('"');
    let (name, rest) = match token.text.find('=').filter(|at| !is_text(*at)) {
        Some(at) => (Some(token.split_at(at).0), token.split_at(at + 1).1),
        None => (None, *token),
    };
    name.as_ref().map_or(Ok(()), check_name)?;
    if rest.text.is_empty() {
        return rest.fail(0, "NO_ARG_BODY", "nothing after `=`: write `NAME=%di`");
    }
    if rest.text.chars().count() > BODY_MAX {
        let message = format!("an argument has at most {BODY_MAX} characters after its name");
        return rest.fail(0, "ARG_TOO_LONG", message);
    }
    let (body, kind) = split_type(&rest);
    let fetch = parse_body(&body)?;
    let name_text = |name: Token<'_>| name.text.to_owned();
    if let Some(what) = kind.and_then(|kind| Named::ALL.iter().find(|it| it.suffix() == kind.text))
    {
        let body = name_of(*what, fetch, &body)?;
        return Ok(FetchArg { name: name.map(name_text), body, kind: None, count: None });
    }
    let (kind, count) = match kind {
        Some(kind) => parse_type(&kind, &fetch)?,
        None => (None, None),
    };
    Ok(FetchArg { name: name.map(name_text), body: fetch, kind, count })
}

/// `BODY:%pd`, `BODY:%pD`.
fn name_of(what: Named, base: Fetch, body: &Token<'_>) -> Result<Fetch, ParseError> {
    if base.is_known_text() {
        let message = format!("`{base}` is text, and no address");
        return body.fail(0, "COMM_CANT_DEREF", message);
    }
    let found = Fetch::NameOf { what, base: Box::new(base) };
    if found.depth() > NESTING_MAX {
        let message = format!("more than {NESTING_MAX} dereferences in one another");
        return body.fail(0, "TOO_MANY_OPS", message);
    }
    Ok(found)
}

fn check_name(name: &Token<'_>) -> Result<(), ParseError> {
    if name.text.is_empty() {
        return name.fail(0, "NO_ARG_NAME", "the argument's name is empty");
    }
    if name.text.chars().count() > ARG_NAME_MAX {
        let message = format!("an argument's name has at most {ARG_NAME_MAX} characters");
        return name.fail(0, "ARG_NAME_TOO_LONG", message);
    }
    if !is_event_name(name.text) {
        let message = format!("`{}` is no name: letters, digits and _ only", name.text);
        return name.fail(0, "BAD_ARG_NAME", message);
    }
    if is_reserved(name.text) {
        let message = format!("every event has a field `{}`: choose another name", name.text);
        return name.fail(0, "USED_ARG_NAME", message);
    }
    Ok(())
}

/// The body, and the part after the `:`. A constant text may contain a `:` itself.
fn split_type<'a>(rest: &Token<'a>) -> (Token<'a>, Option<Token<'a>>) {
    let after_text = rest.strip_prefix("\\\"").and_then(|text| Some(text.text.find('"')? + 3));
    let from = after_text.unwrap_or_default();
    match rest.text[from..].find(':') {
        Some(at) => (rest.split_at(from + at).0, Some(rest.split_at(from + at + 1).1)),
        None => (*rest, None),
    }
}

type TypeAndCount = (Option<ValueType>, Option<u8>);

fn parse_type(kind: &Token<'_>, body: &Fetch) -> Result<TypeAndCount, ParseError> {
    let (name, count) = match kind.text.find('[') {
        Some(at) => (kind.split_at(at).0, Some(parse_count(kind, &kind.split_at(at + 1).1)?)),
        None => (*kind, None),
    };
    let found = match name.text.parse::<ValueType>() {
        Ok(found) => found,
        Err(error) => {
            let id = match error {
                NoSuchType::Unknown | NoSuchType::Container => "BAD_TYPE",
                NoSuchType::BitField => "BAD_BITFIELD",
            };
            return kind.fail(0, id, format!("`{}` is {error}", name.text));
        }
    };
    check_type(kind, found, count, body)?;
    Ok((Some(found), count))
}

/// Parses the text after the `[`.
fn parse_count(kind: &Token<'_>, rest: &Token<'_>) -> Result<u8, ParseError> {
    let Some(close) = rest.text.find(']') else {
        let message = "the `]` is missing: write `x8[16]`";
        return kind.fail(kind.text.len(), "ARRAY_NO_CLOSE", message);
    };
    let (number, after) = rest.split_at(close);
    if after.text.len() > 1 {
        return after.fail(1, "BAD_ARRAY_SUFFIX", "nothing can be after the `]`");
    }
    match parse_number(number.text) {
        Some(count @ 1..) => match u8::try_from(count) {
            Ok(count) if count <= ARRAY_MAX => Ok(count),
            _ => {
                number.fail(0, "ARRAY_TOO_BIG", format!("an array has at most {ARRAY_MAX} values"))
            }
        },
        _ => number.fail(0, "BAD_ARRAY_NUM", format!("write 1 to {ARRAY_MAX} between `[` and `]`")),
    }
}

/// Checks that a value can have its type.
fn check_type(
    kind: &Token<'_>,
    found: ValueType,
    count: Option<u8>,
    body: &Fetch,
) -> Result<(), ParseError> {
    if body.is_known_text() {
        return match (found, count) {
            (ValueType::Text, None) => Ok(()),
            _ => {
                kind.fail(0, "NEED_STRING_TYPE", format!("`{body}` is text: its type is `string`"))
            }
        };
    }
    let is_place = matches!(
        body,
        Fetch::Memory(_) | Fetch::Symbol { .. } | Fetch::Deref { .. } | Fetch::Member { .. }
    );
    if count.is_some() && !is_place {
        let message = format!("an array is in memory: write `+0({body}):{found}[N]`");
        return kind.fail(0, "BAD_STRING", message);
    }
    if found.is_text() && !is_place && !matches!(body, Fetch::Parameter(_)) {
        let message = format!("text is in memory: write `+0({body}):{found}`");
        return kind.fail(0, "BAD_STRING", message);
    }
    let of_user = matches!(body, Fetch::Constant(_) | Fetch::Deref { user: true, .. });
    if found == ValueType::SymbolText && of_user {
        let message =
            "`symstr` is of an address of the kernel: give a register, or memory of the kernel";
        return kind.fail(0, "BAD_SYMSTRING", message);
    }
    Ok(())
}

impl FromStr for FetchArg {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        parse_arg(text)
    }
}
