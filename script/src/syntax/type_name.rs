//! Names of types: in casts, `sizeof`, `let`, and structs of the script.

use std::sync::Arc;

use winnow::stream::Stream;

use super::ast::TypeName;
use super::token::{
    Input, Parsed, ahead, expect, expected, here, keyword, name, number, since, take,
};

/// The language's own types.
const OWN: [&str; 14] = [
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "void", "bool",
    "string", "buffer", "inet", "int",
];

/// Words of C that make up names of numbers.
const WORDS: [&str; 9] =
    ["unsigned", "signed", "char", "short", "int", "long", "_Bool", "bool", "__int128"];

/// A cast's type in its parentheses, if one is next.
pub(super) fn cast_type(input: &mut Input<'_>) -> Parsed<Option<TypeName>> {
    if !ahead(input)?.starts_with('(') {
        return Ok(None);
    }
    let checkpoint = input.checkpoint();
    expect(input, "(")?;
    if let Some(found) = any_type_name(input)?
        && take(input, ")")?
    {
        let (ty, is_certain) = found;
        // `(pid) + 1` is no cast: a name alone is a type if a value follows.
        let after = ahead(input)?.chars().next();
        let has_value =
            after.is_some_and(|char| char.is_alphanumeric() || "_$@\"'(".contains(char));
        if is_certain || has_value {
            return Ok(Some(ty));
        }
    }
    input.reset(&checkpoint);
    Ok(None)
}

/// A type that is certainly one: not a name alone.
pub(super) fn type_name(input: &mut Input<'_>) -> Parsed<Option<TypeName>> {
    let checkpoint = input.checkpoint();
    match any_type_name(input)? {
        Some((ty, true)) => Ok(Some(ty)),
        _ => {
            input.reset(&checkpoint);
            Ok(None)
        }
    }
}

/// A type, wherever only a type can be.
pub(super) fn expect_type_name(input: &mut Input<'_>) -> Parsed<TypeName> {
    match any_type_name(input)? {
        Some((ty, _)) => Ok(ty),
        None => expected(input, "a type"),
    }
}

/// A type, and whether it is certainly one.
fn any_type_name(input: &mut Input<'_>) -> Parsed<Option<(TypeName, bool)>> {
    let start = here(input)?;
    let Some((base, mut is_certain)) = base_name(input)? else { return Ok(None) };
    let pointers = stars(input)?;
    let lengths = lengths(input)?;
    is_certain |= pointers > 0;
    let ty = TypeName { name: base, pointers, lengths, span: since(input, start) };
    Ok(Some((ty, is_certain)))
}

/// The stars of a pointer.
pub(super) fn stars(input: &mut Input<'_>) -> Parsed<usize> {
    let mut stars = 0;
    while take(input, "*")? {
        stars += 1;
        while keyword(input, "const")? || keyword(input, "volatile")? {}
    }
    Ok(stars)
}

/// The lengths of an array.
pub(super) fn lengths(input: &mut Input<'_>) -> Parsed<Vec<Option<u32>>> {
    let mut lengths = Vec::new();
    loop {
        let checkpoint = input.checkpoint();
        if !take(input, "[")? {
            return Ok(lengths);
        }
        if take(input, "]")? {
            lengths.push(None);
            continue;
        }
        let is_number = ahead(input)?.starts_with(|char: char| char.is_ascii_digit());
        let length = if is_number { u32::try_from(number(input)?.0).ok() } else { None };
        if length.is_none() || !take(input, "]")? {
            input.reset(&checkpoint);
            return Ok(lengths);
        }
        lengths.push(length);
    }
}

/// The name before stars and lengths, and whether it is certainly a type's.
pub(super) fn base_name(input: &mut Input<'_>) -> Parsed<Option<(Arc<str>, bool)>> {
    while keyword(input, "const")? || keyword(input, "volatile")? {}
    for tag in ["struct", "union", "enum"] {
        if keyword(input, tag)? {
            let Some(name) = name(input)? else {
                return expected(input, &format!("the name of a {tag}"));
            };
            return Ok(Some((format!("{tag} {}", name.text).into(), true)));
        }
    }
    let mut words = Vec::new();
    loop {
        let checkpoint = input.checkpoint();
        match name(input)? {
            Some(word) if WORDS.contains(&&*word.text) => words.push(word.text),
            Some(_) if matches!(words.last().map(|word| &**word), Some("const")) => {}
            Some(word) if words.is_empty() => {
                let is_own = OWN.contains(&&*word.text);
                return Ok(Some((word.text, is_own)));
            }
            _ => {
                input.reset(&checkpoint);
                break;
            }
        }
    }
    Ok(c_number(&words).map(|name| (name.into(), true)))
}

/// The language's name of a number of C.
fn c_number(words: &[Arc<str>]) -> Option<&'static str> {
    let has = |wanted: &str| words.iter().any(|word| **word == *wanted);
    let unsigned = has("unsigned");
    let pick = |signed, without| if unsigned { without } else { signed };
    Some(match words {
        [] => return None,
        _ if has("bool") || has("_Bool") => "bool",
        _ if has("char") && !has("signed") => pick("char", "uint8"),
        _ if has("char") => "int8",
        _ if has("short") => pick("int16", "uint16"),
        _ if has("long") => pick("int64", "uint64"),
        _ => pick("int32", "uint32"),
    })
}
