//! Reads commands of the file `synthetic_events`: `NAME TYPE FIELD[; TYPE FIELD...]`, and
//! `!NAME` to delete an event.

use super::definition::{SyntheticDefinition, SyntheticField, SyntheticType, TypeName};
use crate::definition::{NAME_MAX, ParseError, fault, is_event_name, words};

/// The group of synthetic events.
pub const SYNTHETIC_GROUP: &str = "synthetic";
/// Most fields of an event (SYNTH_FIELDS_MAX).
const FIELDS_MAX: usize = 64;
/// Most bytes of a text, its end included (STR_VAR_LEN_MAX).
pub const SYNTHETIC_TEXT_MAX: u16 = 256;

/// A command of the file `synthetic_events`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyntheticCommand {
    /// Defines an event.
    Define(SyntheticDefinition),
    /// Deletes the event of this name.
    Delete(String),
}

/// Reads a command, a line of the file. Positions are columns of the text, from 0.
///
/// # Errors
/// [`ParseError`], with the tracer's identifier.
pub fn parse_synthetic(line: &str) -> Result<SyntheticCommand, ParseError> {
    let mut found = words(line);
    let (at, name) = found.next().unwrap_or((0, ""));
    if let Some(name) = name.strip_prefix('!') {
        // As in the kernel, the fields do not count.
        return Ok(SyntheticCommand::Delete(name.trim_end_matches(';').to_owned()));
    }
    let rest = line.get(at + name.len()..).unwrap_or_default();
    let fields = fields(rest, at + name.len())?;
    if fields.is_empty() {
        return Err(incomplete(at));
    }
    check_name(name, at)?;
    Ok(SyntheticCommand::Define(SyntheticDefinition { name: name.to_owned(), fields }))
}

fn incomplete(at: usize) -> ParseError {
    fault("INVALID_CMD", at, "write `NAME TYPE FIELD[; TYPE FIELD...]`")
}

fn check_name(name: &str, at: usize) -> Result<(), ParseError> {
    match is_event_name(name) {
        true => Ok(()),
        false => {
            let message =
                format!("a name has letters, digits and `_`, {NAME_MAX} at most, no digit first");
            Err(fault("BAD_NAME", at, message))
        }
    }
}

/// Reads the fields in a text that begins at a column. As in the kernel, a blank does as well
/// between them as a `;`.
fn fields(text: &str, from: usize) -> Result<Vec<SyntheticField>, ParseError> {
    let (mut all, mut at) = (Vec::new(), from);
    for part in text.split(';') {
        let of_part: Vec<(usize, &str)> =
            words(part).map(|(word, text)| (at + word, text)).collect();
        let mut rest = of_part.as_slice();
        while let Some((first, _)) = rest.first() {
            if all.len() == FIELDS_MAX {
                let message = format!("an event has at most {FIELDS_MAX} fields");
                return Err(fault("TOO_MANY_FIELDS", *first, message));
            }
            let (field, after) = field(rest, all.is_empty())?;
            all.push(field);
            rest = after;
        }
        at += part.len() + 1;
    }
    Ok(all)
}

type Words<'a> = [(usize, &'a str)];

/// Reads a field at the begin of some words.
fn field<'a, 'b>(
    words: &'b Words<'a>,
    is_first: bool,
) -> Result<(SyntheticField, &'b Words<'a>), ParseError> {
    let (kind_at, mut kind) =
        words.first().map_or((0, String::new()), |(at, w)| (*at, (*w).to_owned()));
    let mut rest = words.get(1..).unwrap_or_default();
    if kind == "unsigned" {
        let [(_, second), _, ..] = rest else {
            return Err(fault("INCOMPLETE_TYPE", kind_at, "a type belongs after `unsigned`"));
        };
        kind = format!("unsigned {second}");
        rest = &rest[1..];
    }
    let [(name_at, name), after @ ..] = rest else {
        return Err(match is_first {
            true => incomplete(0),
            false => fault("INVALID_FIELD", kind_at, "a field is `TYPE NAME`"),
        });
    };
    let (name, array) = match name.find('[') {
        Some(at) => (&name[..at], &name[at..]),
        None => (*name, ""),
    };
    check_name(name, *name_at)?;
    let kind = kind_of(&format!("{kind}{array}"), (kind_at, *name_at), array)?;
    Ok((SyntheticField { name: name.to_owned(), kind }, after))
}

/// The type of a field; `array` is the part of it that was written after the field's name.
fn kind_of(
    text: &str,
    (at, array_at): (usize, usize),
    array: &str,
) -> Result<SyntheticType, ParseError> {
    if let Some(found) = TypeName::named(text) {
        return Ok(SyntheticType::Number(found));
    }
    if let Some(found) = SyntheticType::stack(text) {
        return Ok(found);
    }
    let Some(size) = text.strip_prefix("char[") else {
        let message = "write u8 to u64, s8 to s64, char, int, long (also unsigned), bool, pid_t or gfp_t, of a text \
                       char[N] or char[], of a back-trace unsigned long[]";
        return Err(fault("INVALID_TYPE", at, message));
    };
    let size = size.strip_suffix(']').unwrap_or("x");
    if size.is_empty() {
        return Ok(SyntheticType::Text(None));
    }
    match size.parse::<u16>() {
        Ok(size) if (1..=SYNTHETIC_TEXT_MAX).contains(&size) => Ok(SyntheticType::Text(Some(size))),
        _ => {
            let message = format!("a text has 1 to {SYNTHETIC_TEXT_MAX} bytes: `char[N]`");
            let at = if array.is_empty() { at } else { array_at };
            Err(fault("INVALID_ARRAY_SPEC", at, message))
        }
    }
}
