//! Lines of kprobe_events: `p[:[GRP/]EVENT] SYMBOL[+OFFS]|ADDR [[NAME=]%REG ...]`.
//!
//! Positions are columns of the command as given, so that a caret can be put under them.

use exoprobe_vmm::Gva;
use winnow::ascii::{space0, space1};
use winnow::combinator::{opt, preceded};
use winnow::prelude::*;
use winnow::stream::{LocatingSlice, Location};
use winnow::token::take_till;

use super::{ARG_NAME_MAX, ARGS_MAX, FetchArg, ProbeDefinition, ProbeKind, is_event_name};

/// A line that is no definition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ParseError {
    /// What is wrong, and what would be right.
    pub message: String,
    /// Column of the fault, from 0.
    pub position: usize,
    /// The tracer's identifier for it (error_log).
    pub id: &'static str,
}

struct Token<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Token<'a> {
    fn fail<T>(&self, skip: usize, id: &'static str, message: String) -> Result<T, ParseError> {
        Err(ParseError { message, position: self.at + skip, id })
    }

    /// Splits at the first `separator`; positions stay true.
    fn split(&self, separator: char) -> Option<(Token<'a>, Token<'a>)> {
        let (head, tail) = self.text.split_once(separator)?;
        let behind = self.at + head.len() + separator.len_utf8();
        Some((Token { text: head, at: self.at }, Token { text: tail, at: behind }))
    }
}

fn tokens<'a>(line: &'a str) -> Vec<Token<'a>> {
    let mut input = LocatingSlice::new(line);
    let word = |input: &mut LocatingSlice<&'a str>| -> winnow::ModalResult<Token<'a>> {
        let at = input.current_token_start();
        let text = take_till(1.., char::is_whitespace).parse_next(input)?;
        Ok(Token { text, at })
    };
    let blank: winnow::ModalResult<&str> = space0(&mut input);
    let mut found = Vec::new();
    let mut next = blank.and_then(|_| opt(word).parse_next(&mut input));
    while let Ok(Some(token)) = next {
        found.push(token);
        next = opt(preceded(space1, word)).parse_next(&mut input);
    }
    found
}

/// Parses one definition.
///
/// # Errors
/// [`ParseError`] with the column at fault.
pub fn parse_line(line: &str) -> Result<ProbeDefinition, ParseError> {
    let mut tokens = tokens(line).into_iter();
    let Some(command) = tokens.next() else {
        let message = "the definition is empty: write `p:EVENT SYMBOL[+OFFSET] [%REG ...]`";
        return Err(ParseError { message: message.to_owned(), position: 0, id: "NO_EVENT_INFO" });
    };
    let (group, event) = parse_command(&command)?;
    let Some(place) = tokens.next() else {
        let message = "no place to probe: write `SYMBOL[+OFFSET]` or `0xADDRESS` behind the event";
        return command.fail(command.text.len(), "BAD_PROBE_ADDR", message.to_owned());
    };
    let mut definition = parse_place(&place)?;
    (definition.group, definition.event) = (group, event);
    for token in tokens {
        if definition.args.len() == ARGS_MAX {
            let message = format!("more than {ARGS_MAX} arguments");
            return token.fail(0, "TOO_MANY_ARGS", message);
        }
        definition.args.push(parse_arg_token(&token)?);
    }
    Ok(definition)
}

type GroupAndEvent = (Option<String>, Option<String>);

fn parse_command(command: &Token<'_>) -> Result<GroupAndEvent, ParseError> {
    let (kind, name) = match command.split(':') {
        Some((kind, name)) => (kind, Some(name)),
        None => (Token { text: command.text, at: command.at }, None),
    };
    match kind.text {
        "p" => {}
        text if text.starts_with('r') => {
            let message = "return probes (`r`) are not supported yet: only `p` is";
            return kind.fail(0, "BAD_MAXACT_TYPE", message.to_owned());
        }
        text if text.starts_with('p') => {
            let message = "maxactive belongs to return probes: write `p`";
            return kind.fail(1, "BAD_MAXACT_TYPE", message.to_owned());
        }
        other => {
            let message = format!("`{other}` is no probe type: write `p` for a kprobe");
            return kind.fail(0, "BAD_PROBE_TYPE", message);
        }
    }
    let Some(name) = name else { return Ok((None, None)) };
    let (group, event) = match name.split('/').or_else(|| name.split('.')) {
        Some((group, event)) => (Some(group), event),
        None => (None, name),
    };
    if let Some(group) = &group {
        check_name(group, ["NO_GROUP_NAME", "GROUP_TOO_LONG", "BAD_GROUP_NAME"], "group")?;
        if event.text.is_empty() {
            return Ok((Some(group.text.to_owned()), None));
        }
    }
    check_name(&event, ["NO_EVENT_NAME", "EVENT_TOO_LONG", "BAD_EVENT_NAME"], "event")?;
    Ok((group.map(|g| g.text.to_owned()), Some(event.text.to_owned())))
}

fn check_name(name: &Token<'_>, ids: [&'static str; 3], what: &str) -> Result<(), ParseError> {
    if name.text.is_empty() {
        return name.fail(0, ids[0], format!("the {what} name is empty"));
    }
    if name.text.chars().count() > super::NAME_MAX {
        let message = format!("the {what} name has more than {} characters", super::NAME_MAX);
        return name.fail(0, ids[1], message);
    }
    if !is_event_name(name.text) {
        let message = format!("`{}` is no {what} name: letters, digits and _ only", name.text);
        return name.fail(0, ids[2], message);
    }
    Ok(())
}

fn parse_place(place: &Token<'_>) -> Result<ProbeDefinition, ParseError> {
    let kind = ProbeKind::Kprobe;
    if let Some(addr) = parse_address(place.text) {
        return Ok(ProbeDefinition { kind, addr: Some(addr), ..ProbeDefinition::default() });
    }
    if let Some((_, suffix)) = place.split('%') {
        let message = "`%return` and other suffixes are not supported yet";
        return suffix
            .fail(0, "BAD_ADDR_SUFFIX", message.to_owned())
            .map_err(|e: ParseError| ParseError { position: e.position - 1, ..e });
    }
    let (symbol, offset) = match place.split('+') {
        None => (Token { text: place.text, at: place.at }, 0),
        Some((symbol, offset)) => match parse_number(offset.text) {
            Some(number) => (symbol, number),
            None => {
                let message = format!("`{}` is no offset: write SYMBOL+0x10", offset.text);
                return place.fail(0, "BAD_PROBE_ADDR", message);
            }
        },
    };
    if symbol.text.is_empty() {
        return place.fail(0, "BAD_PROBE_ADDR", "the symbol name is empty".to_owned());
    }
    if parse_number(symbol.text).is_some() {
        let message = "an offset goes with a symbol: add it to the address yourself";
        return place.fail(0, "BAD_PROBE_ADDR", message.to_owned());
    }
    let symbol_name = Some(symbol.text.to_owned());
    Ok(ProbeDefinition { kind, symbol_name, offset, ..ProbeDefinition::default() })
}

/// Parses one argument by itself.
pub(super) fn parse_arg(text: &str) -> Result<FetchArg, ParseError> {
    parse_arg_token(&Token { text, at: 0 })
}

fn parse_arg_token(token: &Token<'_>) -> Result<FetchArg, ParseError> {
    let (name, body) = match token.split('=') {
        Some((name, body)) => (Some(name), body),
        None => (None, Token { text: token.text, at: token.at }),
    };
    if let Some(name) = &name {
        if name.text.is_empty() {
            return name.fail(0, "NO_ARG_NAME", "the argument's name is empty".to_owned());
        }
        if name.text.chars().count() > ARG_NAME_MAX {
            let message = format!("an argument's name has at most {ARG_NAME_MAX} characters");
            return name.fail(0, "ARG_NAME_TOO_LONG", message);
        }
        if !is_event_name(name.text) {
            let message = format!("`{}` is no name: letters, digits and _ only", name.text);
            return name.fail(0, "BAD_ARG_NAME", message);
        }
    }
    let Some(register) = body.text.strip_prefix('%') else {
        let (id, message) = match body.text {
            "" => ("NO_ARG_BODY", "nothing behind `=`: write `NAME=%di`".to_owned()),
            text => ("BAD_FETCH_ARG", format!("`{text}` is no register: write `%di` or the like")),
        };
        return body.fail(0, id, message);
    };
    match register.parse() {
        Ok(register) => Ok(FetchArg { name: name.map(|n| n.text.to_owned()), register }),
        Err(error) => body.fail(0, "BAD_REG_NAME", format!("{error}")),
    }
}

/// A whole text that is a number, hexadecimal with 0x or decimal.
pub(super) fn parse_address(text: &str) -> Option<Gva> {
    parse_number(text).map(Gva)
}

fn parse_number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None => (text, 10),
    };
    // from_str_radix alone would take a sign.
    digits.chars().all(|c| c.is_digit(radix)).then_some(())?;
    u64::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Register;
    use proptest::prelude::*;

    #[test]
    fn the_demo_line() {
        let probe = parse_line("p:getpid __x64_sys_getpid").unwrap();
        assert_eq!(probe.event.as_deref(), Some("getpid"));
        assert_eq!(probe.symbol_name.as_deref(), Some("__x64_sys_getpid"));
        let full = parse_line("p:my/ev vfs_read+0x10 file=%di %si").unwrap();
        assert_eq!((full.group(), full.offset), ("my", 16));
        assert_eq!(full.args[0].name.as_deref(), Some("file"));
        assert_eq!(full.args[1].register, Register::Si);
        assert_eq!(full.to_string(), "p:my/ev vfs_read+16 file=%di arg2=%si");
        assert_eq!(
            parse_line("p 0xffffffff81000000").unwrap().addr,
            Some(Gva(0xffff_ffff_8100_0000))
        );
    }

    #[test]
    fn each_fault_has_its_identifier_and_column() {
        let cases = [
            ("", "NO_EVENT_INFO", 0),
            ("x:a b", "BAD_PROBE_TYPE", 0),
            ("p10:a b", "BAD_MAXACT_TYPE", 1),
            ("p:a", "BAD_PROBE_ADDR", 3),
            ("p: sym", "NO_EVENT_NAME", 2),
            ("p:/e sym", "NO_GROUP_NAME", 2),
            ("p:1g/e sym", "BAD_GROUP_NAME", 2),
            ("p:g/1e sym", "BAD_EVENT_NAME", 4),
            ("p:e sym+zz", "BAD_PROBE_ADDR", 4),
            ("p:e sym+-4", "BAD_PROBE_ADDR", 4),
            ("p:e 1+0", "BAD_PROBE_ADDR", 4),
            ("p:e sym%return", "BAD_ADDR_SUFFIX", 7),
            ("p:e  sym %zz", "BAD_REG_NAME", 9),
            ("p:e sym a=%zz", "BAD_REG_NAME", 10),
            ("p:e sym =%di", "NO_ARG_NAME", 8),
            ("p:e sym a=", "NO_ARG_BODY", 10),
            ("p:e sym 1a=%di", "BAD_ARG_NAME", 8),
            ("p:e sym di", "BAD_FETCH_ARG", 8),
        ];
        for (line, id, position) in cases {
            let error = parse_line(line).unwrap_err();
            assert_eq!((error.id, error.position), (id, position), "{line}: {error}");
        }
        let many = format!("p:e sym{}", " %di".repeat(129));
        assert_eq!(parse_line(&many).unwrap_err().id, "TOO_MANY_ARGS");
        let long = format!("p:{} sym", "a".repeat(64));
        assert_eq!(parse_line(&long).unwrap_err().id, "EVENT_TOO_LONG");
    }

    proptest! {
        #[test]
        fn no_text_panics(line: String) {
            let _ = parse_line(&line);
        }

        #[test]
        fn what_is_printed_parses_to_the_same(
            group in "[a-z_][a-z0-9_]{0,10}", event in "[a-z_][a-z0-9_]{0,10}",
            symbol in "[a-z_][a-z0-9_.]{0,20}", offset: u32, regs in prop::collection::vec(0..18usize, 0..8),
        ) {
            let args = regs.iter().enumerate().map(|(i, r)| FetchArg {
                name: Some(format!("n{i}")), register: Register::ALL[*r],
            }).collect();
            let probe = ProbeDefinition {
                group: Some(group), event: Some(event), symbol_name: Some(symbol),
                offset: offset.into(), args, ..ProbeDefinition::default()
            };
            prop_assert_eq!(parse_line(&probe.to_string()).unwrap(), probe);
        }
    }
}
