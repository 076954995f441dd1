//! Whole commands, and their first words.

use super::argument::parse_arg_token;
use super::place::parse_place_token;
use super::token::{Token, tokens, without_comment, words};
use crate::definition::number::parse_number;
use crate::definition::{
    ARGS_MAX, Fetch, FetchArg, MAXACTIVE_MAX, NAME_MAX, ParseError, ProbeDefinition, ProbeKind,
    RECORD_MAX, is_event_name,
};

/// One line of kprobe_events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A new event.
    Define(Box<ProbeDefinition>),
    /// Deletes events.
    Delete(Deletion),
}

/// The events to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// Their group; [`DEFAULT_GROUP`](super::super::DEFAULT_GROUP) if none is given.
    pub group: Option<String>,
    /// Their name; all events if none is given.
    pub event: Option<String>,
    /// Only events whose listing continues with these words: a place, and the first arguments.
    pub words: Vec<String>,
}

/// The lines of a text that are commands, with their numbers from 1. Blank lines and comments (`#`
/// first) are skipped.
pub fn definition_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).filter(|(_, line)| {
        let line = line.trim_start();
        !line.is_empty() && !line.starts_with('#')
    })
}

/// Parses one command. A `#` begins a comment.
///
/// # Errors
/// [`ParseError`] with the column at fault.
pub fn parse_command(line: &str) -> Result<Command, ParseError> {
    let tokens = tokens(without_comment(line));
    match tokens.split_first() {
        Some((first, words)) if first.text.starts_with('-') => {
            let (group, event) = parse_deletion(first)?;
            let words = words.iter().map(|token| token.text.to_owned()).collect();
            Ok(Command::Delete(Deletion { group, event, words }))
        }
        _ => Ok(Command::Define(Box::new(define(&tokens)?))),
    }
}

/// Parses one definition. A `#` begins a comment.
///
/// ```
/// use exoprobe_probes::parse_line;
///
/// let definition = parse_line("p:mygroup/open do_sys_open dfd=%di # the calls")?;
/// assert_eq!(definition.group(), "mygroup");
/// assert_eq!(definition.symbol_name.as_deref(), Some("do_sys_open"));
/// assert_eq!(definition.args[0].name.as_deref(), Some("dfd"));
/// let error = parse_line("p:open do_sys_open dfd=%nope").unwrap_err();
/// assert_eq!(error.errno(), "EINVAL");
/// # Ok::<(), exoprobe_probes::definition::ParseError>(())
/// ```
///
/// # Errors
/// [`ParseError`] with the column at fault.
pub fn parse_line(line: &str) -> Result<ProbeDefinition, ParseError> {
    define(&tokens(without_comment(line)))
}

/// Parses one definition, to which a filter may be added: `DEFINITION if FILTER`. This word is
/// exoprobe's, not kprobe_events'. A `#` outside quotation marks begins a comment.
///
/// # Errors
/// [`ParseError`] with the column at fault.
pub fn parse_conditional(line: &str) -> Result<ProbeDefinition, ParseError> {
    let (definition, condition) = split_condition(line);
    let mut definition = parse_line(definition)?;
    if let Some((at, filter)) = condition {
        let shifted = |error: ParseError| ParseError { position: at + error.position, ..error };
        definition.filter = Some(filter.parse().map_err(shifted)?);
    }
    Ok(definition)
}

/// A line's definition, and the filter after its word `if` with the column of its beginning. The
/// word comes after the place, so that a function may be called `if`.
#[must_use]
pub fn split_condition(line: &str) -> (&str, Option<(usize, &str)>) {
    let Some((at, word)) = words(line).skip(2).find(|(_, word)| *word == "if") else {
        return (line, None);
    };
    let begin = at + word.len();
    let filter = &line[begin..];
    let mut is_quoted = false;
    let comment = filter.find(|c| {
        is_quoted ^= c == '"';
        c == '#' && !is_quoted
    });
    (&line[..at], Some((begin, &filter[..comment.unwrap_or(filter.len())])))
}

fn define(tokens: &[Token<'_>]) -> Result<ProbeDefinition, ParseError> {
    let Some((command, rest)) = tokens.split_first() else {
        let message = "the definition is empty: write `p:EVENT SYMBOL[+OFFSET] [%REG ...]`";
        return Token { text: "", at: 0 }.fail(0, "NO_EVENT_INFO", message);
    };
    let First { kind, maxactive, group, event } = parse_first(command)?;
    let Some((place, args)) = rest.split_first() else {
        let message = "no place to probe: write `SYMBOL[+OFFSET]` or `0xADDRESS` after the event";
        return command.fail(command.text.len(), "NO_EVENT_INFO", message);
    };
    let mut definition = parse_place_token(place)?;
    if command.text.contains('*') && !definition.is_pattern() {
        let event = command.text.rfind([':', '/', '.']).map_or(0, |at| at + 1);
        let message = "a `*` in the event's name stands for the function of a pattern as `vfs_*`";
        return command.fail(event, "BAD_EVENT_NAME", message);
    }
    (definition.group, definition.event, definition.maxactive) = (group, event, maxactive);
    if kind == ProbeKind::Kretprobe {
        definition.kind = kind;
    }
    for token in args {
        if definition.args.len() == ARGS_MAX {
            let message = format!("more than {ARGS_MAX} arguments");
            return args[0].fail(0, "TOO_MANY_ARGS", message);
        }
        let arg = parse_arg_token(token)?;
        check_arg(&definition, &arg, token)?;
        definition.args.push(arg);
    }
    Ok(definition)
}

/// Checks that an argument fits the probe, and those before it.
fn check_arg(
    definition: &ProbeDefinition,
    arg: &FetchArg,
    token: &Token<'_>,
) -> Result<(), ParseError> {
    if arg.body.is_of_return() && definition.kind == ProbeKind::Kprobe {
        let skip = token.text.find('$').unwrap_or_default();
        let message =
            "`$retval` is what a function returned: give a return probe (`r`), or `SYMBOL%return`";
        return token.fail(skip, "RETVAL_ON_PROBE", message);
    }
    if arg.body == Fetch::AllParameters {
        return match definition.args.iter().any(|other| other.body == Fetch::AllParameters) {
            true => {
                token.fail(0, "DOUBLE_ARGS", "`$arg*` stands for all parameters: write it once")
            }
            false => Ok(()),
        };
    }
    let index = definition.args.len();
    let name = arg.name_at(index);
    if (0..index).any(|other| definition.arg_name(other) == name) {
        let message = format!("two arguments are called `{name}`: write `OTHER={}`", arg.body);
        return token.fail(0, "USED_ARG_NAME", message);
    }
    let before = definition.args.iter().map(FetchArg::least_record_bytes).sum::<usize>();
    if before + arg.least_record_bytes() > RECORD_MAX {
        let body = arg.name.as_ref().map_or(0, |name| name.len() + "=".len());
        let message = format!("the values of one event have more than {RECORD_MAX} bytes");
        return token.fail(body, "EVENT_TOO_BIG", message);
    }
    Ok(())
}

/// The parsed first word.
struct First {
    kind: ProbeKind,
    maxactive: Option<u32>,
    group: Option<String>,
    event: Option<String>,
}

fn parse_first(command: &Token<'_>) -> Result<First, ParseError> {
    let (kind, name) = match command.split(':') {
        Some((kind, name)) => (kind, Some(name)),
        None => (*command, None),
    };
    let (kind, maxactive) = parse_kind(&kind)?;
    let (group, event) = name.map_or(Ok((None, None)), |name| parse_name(&name, Stars::Allowed))?;
    Ok(First { kind, maxactive, group, event })
}

fn parse_deletion(first: &Token<'_>) -> Result<GroupAndEvent, ParseError> {
    match first.strip_prefix("-:") {
        Some(name) => parse_name(&name, Stars::Refused),
        None => {
            let message = "write `-:EVENT`, `-:GROUP/EVENT`, or `-:GROUP/` for all of a group";
            first.fail(0, "BAD_PROBE_TYPE", message)
        }
    }
}

fn parse_kind(kind: &Token<'_>) -> Result<(ProbeKind, Option<u32>), ParseError> {
    if kind.text == "p" {
        return Ok((ProbeKind::Kprobe, None));
    }
    if kind.text.starts_with('p') {
        let message = "maxactive belongs to return probes: write `p`, or `r10`";
        return kind.fail(1, "BAD_MAXACT_TYPE", message);
    }
    let Some(number) = kind.text.strip_prefix('r') else {
        let message = format!(
            "`{}` is no command: `p` is a kprobe, `r` a return probe, `-` deletes",
            kind.text
        );
        return kind.fail(0, "BAD_PROBE_TYPE", message);
    };
    if number.is_empty() {
        return Ok((ProbeKind::Kretprobe, None));
    }
    match parse_number(number).and_then(|n| u32::try_from(n).ok()) {
        Some(maxactive @ 1..=MAXACTIVE_MAX) => Ok((ProbeKind::Kretprobe, Some(maxactive))),
        Some(1..) => {
            let message = format!("maxactive is at most {MAXACTIVE_MAX}");
            kind.fail(1, "MAXACT_TOO_BIG", message)
        }
        _ => kind.fail(1, "BAD_MAXACT", format!("`{number}` is no maxactive: write `r10`")),
    }
}

type GroupAndEvent = (Option<String>, Option<String>);

/// Selects whether an event's name may have `*`, which stands for a function's name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stars {
    Allowed,
    Refused,
}

fn parse_name(name: &Token<'_>, stars: Stars) -> Result<GroupAndEvent, ParseError> {
    let (group, event) = match name.split('/').or_else(|| name.split('.')) {
        Some((group, event)) => (Some(group), event),
        None => (None, *name),
    };
    if let Some(group) = &group {
        check_name(group, ["NO_GROUP_NAME", "GROUP_TOO_LONG", "BAD_GROUP_NAME"], "group")?;
        if event.text.is_empty() {
            return Ok((Some(group.text.to_owned()), None));
        }
    }
    let written_out = match stars {
        Stars::Allowed => event.text.replace('*', "_"),
        Stars::Refused => event.text.to_owned(),
    };
    let checked = Token { text: &written_out, at: event.at };
    check_name(&checked, ["NO_EVENT_NAME", "EVENT_TOO_LONG", "BAD_EVENT_NAME"], "event")?;
    Ok((group.map(|g| g.text.to_owned()), Some(event.text.to_owned())))
}

fn check_name(name: &Token<'_>, ids: [&'static str; 3], what: &str) -> Result<(), ParseError> {
    if name.text.is_empty() {
        return name.fail(0, ids[0], format!("the {what} name is empty"));
    }
    if name.text.chars().count() > NAME_MAX {
        let message = format!("the {what} name has more than {NAME_MAX} characters");
        return name.fail(0, ids[1], message);
    }
    if !is_event_name(name.text) {
        let message = format!("`{}` is no {what} name: letters, digits and _ only", name.text);
        return name.fail(0, ids[2], message);
    }
    Ok(())
}
