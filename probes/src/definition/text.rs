//! Lines of kprobe_events:
//! `p|r[MAXACTIVE][:[GRP/]EVENT] SYMBOL[+OFFS][%return]|ADDR [[NAME=]BODY[:TYPE] ...]`.
//!
//! Positions are columns of the command as given, so that a caret can be put under them.

use exoprobe_vmm::Gva;
use winnow::ascii::{space0, space1};
use winnow::combinator::{opt, preceded};
use winnow::prelude::*;
use winnow::stream::{LocatingSlice, Location};
use winnow::token::take_till;

use super::{
    ARG_NAME_MAX, ARGS_MAX, Fetch, FetchArg, MAXACTIVE_MAX, NESTING_MAX, ProbeDefinition,
    ProbeKind, ValueType, is_event_name, is_identifier,
};

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

/// Longest name of a parameter, in bytes.
const PARAMETER_MAX: usize = 128;
/// Words of a kernel stack of 16 KiB: what `$stackN` can name.
const STACK_WORDS: u64 = 2048;

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

/// The lines of a text that are definitions, with their numbers from 1: not those that are blank, or comments
/// (`#` first).
pub fn definition_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).filter(|(_, line)| {
        let line = line.trim_start();
        !line.is_empty() && !line.starts_with('#')
    })
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
    let command_parts = parse_command(&command)?;
    let Some(place) = tokens.next() else {
        let message = "no place to probe: write `SYMBOL[+OFFSET]` or `0xADDRESS` behind the event";
        return command.fail(command.text.len(), "BAD_PROBE_ADDR", message.to_owned());
    };
    let mut definition = parse_place_token(&place)?;
    let Command { kind, maxactive, group, event } = command_parts;
    (definition.group, definition.event, definition.maxactive) = (group, event, maxactive);
    if kind == ProbeKind::Kretprobe {
        definition.kind = kind;
    }
    for token in tokens {
        if definition.args.len() == ARGS_MAX {
            let message = format!("more than {ARGS_MAX} arguments");
            return token.fail(0, "TOO_MANY_ARGS", message);
        }
        definition.args.push(parse_arg_token(&token)?);
    }
    Ok(definition)
}

/// Parses a place by itself: `SYMBOL[+OFFS]` or `0xADDR`.
///
/// # Errors
/// [`ParseError`] with the column at fault.
pub(crate) fn parse_place(text: &str) -> Result<ProbeDefinition, ParseError> {
    parse_place_token(&Token { text, at: 0 })
}

/// What the first word says.
struct Command {
    kind: ProbeKind,
    maxactive: Option<u32>,
    group: Option<String>,
    event: Option<String>,
}

fn parse_command(command: &Token<'_>) -> Result<Command, ParseError> {
    let (kind, name) = match command.split(':') {
        Some((kind, name)) => (kind, Some(name)),
        None => (Token { text: command.text, at: command.at }, None),
    };
    let (kind, maxactive) = parse_kind(&kind)?;
    let (group, event) = name.map_or(Ok((None, None)), |name| parse_name(&name))?;
    Ok(Command { kind, maxactive, group, event })
}

fn parse_kind(kind: &Token<'_>) -> Result<(ProbeKind, Option<u32>), ParseError> {
    if kind.text == "p" {
        return Ok((ProbeKind::Kprobe, None));
    }
    if kind.text.starts_with('p') {
        let message = "maxactive belongs to return probes: write `p`, or `r10`";
        return kind.fail(1, "BAD_MAXACT_TYPE", message.to_owned());
    }
    let Some(number) = kind.text.strip_prefix('r') else {
        let message =
            format!("`{}` is no probe type: `p` is a kprobe, `r` a return probe", kind.text);
        return kind.fail(0, "BAD_PROBE_TYPE", message);
    };
    if number.is_empty() {
        return Ok((ProbeKind::Kretprobe, None));
    }
    match number.parse::<u64>().ok().filter(|_| !number.starts_with('+')) {
        Some(1..) if number.parse::<u32>().is_ok_and(|n| n <= MAXACTIVE_MAX) => {
            Ok((ProbeKind::Kretprobe, number.parse().ok()))
        }
        Some(1..) => {
            let message = format!("maxactive is at most {MAXACTIVE_MAX}");
            kind.fail(1, "MAXACT_TOO_BIG", message)
        }
        _ => kind.fail(1, "BAD_MAXACT", format!("`{number}` is no maxactive: write `r10`")),
    }
}

type GroupAndEvent = (Option<String>, Option<String>);

fn parse_name<'a>(name: &Token<'a>) -> Result<GroupAndEvent, ParseError> {
    let (group, event) = match name.split('/').or_else(|| name.split('.')) {
        Some((group, event)) => (Some(group), event),
        None => (None, Token { text: name.text, at: name.at }),
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

fn parse_place_token(place: &Token<'_>) -> Result<ProbeDefinition, ParseError> {
    let kind = ProbeKind::Kprobe;
    if let Some(addr) = parse_address(place.text) {
        return Ok(ProbeDefinition { kind, addr: Some(addr), ..ProbeDefinition::default() });
    }
    let (place, kind) = match place.split('%') {
        None => (Token { text: place.text, at: place.at }, kind),
        Some((symbol, Token { text: "return", .. })) => (symbol, ProbeKind::Kretprobe),
        Some((symbol, suffix)) => {
            let message = format!("`%{}` is no suffix: only `%return` is", suffix.text);
            return place.fail(symbol.text.len(), "BAD_ADDR_SUFFIX", message);
        }
    };
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
    let name = name.map(|n| n.text.to_owned());
    let (body, kind) = match body.split(':') {
        Some((body, kind)) => (body, Some(kind)),
        None => (body, None),
    };
    let fetch = parse_body(&body, NESTING_MAX)?;
    let kind = kind.map(|kind| parse_type(&kind, &fetch)).transpose()?;
    Ok(FetchArg { name, body: fetch, kind })
}

fn parse_type(kind: &Token<'_>, body: &Fetch) -> Result<ValueType, ParseError> {
    let Ok(found) = kind.text.parse::<ValueType>() else {
        let message = format!("`{}` is {}", kind.text, super::value::NoSuchType);
        return kind.fail(0, "BAD_TYPE", message);
    };
    let is_place = matches!(body, Fetch::Memory(_) | Fetch::Deref { .. } | Fetch::Parameter(_));
    if found.is_text() && !is_place {
        let message = format!("text is in memory: write `+0({body}):{found}`");
        return kind.fail(0, "BAD_STRING", message);
    }
    Ok(found)
}

/// Parses the body of an argument by itself.
pub(super) fn parse_fetch(text: &str) -> Result<Fetch, ParseError> {
    parse_body(&Token { text, at: 0 }, NESTING_MAX)
}

/// `nesting`: how many dereferences may still come.
fn parse_body(body: &Token<'_>, nesting: usize) -> Result<Fetch, ParseError> {
    match body.text.as_bytes().first() {
        None => body.fail(0, "NO_ARG_BODY", "nothing behind `=`: write `NAME=%di`".to_owned()),
        Some(b'%') => match body.text[1..].parse() {
            Ok(register) => Ok(Fetch::Register(register)),
            Err(error) => body.fail(0, "BAD_REG_NAME", format!("{error}")),
        },
        Some(b'$') => parse_variable(body),
        Some(b'@') => match parse_address(&body.text[1..]) {
            Some(addr) => Ok(Fetch::Memory(addr)),
            None => {
                let message = format!("`{}` is no address: write `@0x...`", &body.text[1..]);
                body.fail(1, "BAD_MEM_ADDR", message)
            }
        },
        Some(b'+' | b'-') => parse_deref(body, nesting),
        Some(_) if is_identifier(body.text) && body.text.len() <= PARAMETER_MAX => {
            Ok(Fetch::Parameter(body.text.to_owned()))
        }
        Some(_) => {
            let text = body.text;
            let message = format!(
                "`{text}` is no value: write `%di`, `$stack0`, `@0x...`, `+8(%di)` or a parameter's name"
            );
            body.fail(0, "BAD_FETCH_ARG", message)
        }
    }
}

fn parse_variable(body: &Token<'_>) -> Result<Fetch, ParseError> {
    match &body.text[1..] {
        "retval" => Ok(Fetch::ReturnValue),
        "stack" => Ok(Fetch::StackPointer),
        other => match other.strip_prefix("stack").map(|n| (n, parse_number(n))) {
            Some((_, Some(n))) if n < STACK_WORDS => {
                Ok(Fetch::Stack(u16::try_from(n).expect("below 2048")))
            }
            Some((n, _)) => {
                let message = format!("`{n}` is no stack entry: 0 to {}", STACK_WORDS - 1);
                body.fail("$stack".len(), "BAD_STACK_NUM", message)
            }
            None => {
                let message =
                    format!("`${other}` is not known: `$retval`, `$stack` and `$stackN` are");
                body.fail(0, "BAD_VAR", message)
            }
        },
    }
}

/// `+OFFS(BODY)` or `-OFFS(BODY)`.
fn parse_deref(body: &Token<'_>, nesting: usize) -> Result<Fetch, ParseError> {
    let Some(nesting) = nesting.checked_sub(1) else {
        let message = format!("more than {NESTING_MAX} dereferences in one another");
        return body.fail(0, "TOO_MANY_OPS", message);
    };
    let Some((offset, inner)) = body.split('(') else {
        let message = "an offset needs what it is added to: write `+8(%di)`";
        return body.fail(body.text.len(), "DEREF_NEED_BRACE", message.to_owned());
    };
    let Some(inner) = inner.text.strip_suffix(')').map(|text| Token { text, at: inner.at }) else {
        let message = "the `)` at the end is missing";
        return body.fail(body.text.len(), "DEREF_OPEN_BRACE", message.to_owned());
    };
    let number = parse_number(&offset.text[1..]).and_then(|n| i64::try_from(n).ok());
    let Some(number) = number else {
        let message = format!("`{}` is no offset: write `+8(...)` or `-0x10(...)`", offset.text);
        return offset.fail(0, "BAD_DEREF_OFFS", message);
    };
    let offset = if offset.text.starts_with('-') { -number } else { number };
    Ok(Fetch::Deref { offset, base: Box::new(parse_body(&inner, nesting)?) })
}

/// A whole text that is a number, hexadecimal with 0x or decimal.
pub(super) fn parse_address(text: &str) -> Option<Gva> {
    parse_number(text).map(Gva)
}

pub(super) fn parse_number(text: &str) -> Option<u64> {
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
        assert_eq!(full.args[1].body, Fetch::Register(Register::Si));
        assert_eq!(full.to_string(), "p:my/ev vfs_read+16 file=%di arg2=%si");
        let typed = parse_line("p:open do_sys_openat2 dfd filename:string a=+8(how):x32").unwrap();
        let (name, kind) = (typed.arg_name(1), typed.args[1].kind);
        assert_eq!((&*name, kind), ("filename", Some(ValueType::Text)));
        assert_eq!((typed.args[0].kind, typed.args[2].body.parameter()), (None, Some("how")));
        let text = "p:kprobes/open do_sys_openat2 dfd=dfd filename=filename:string a=+8(how):x32";
        assert_eq!(typed.to_string(), text);
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
            ("p:e sym%returns", "BAD_ADDR_SUFFIX", 7),
            ("r0:e sym", "BAD_MAXACT", 1),
            ("rx:e sym", "BAD_MAXACT", 1),
            ("r+5:e sym", "BAD_MAXACT", 1),
            ("r4097:e sym", "MAXACT_TOO_BIG", 1),
            ("r99999999999999999999:e sym", "BAD_MAXACT", 1),
            ("p:e sym $foo", "BAD_VAR", 8),
            ("p:e sym $stack2048", "BAD_STACK_NUM", 14),
            ("p:e sym @zz", "BAD_MEM_ADDR", 9),
            ("p:e sym +8", "DEREF_NEED_BRACE", 10),
            ("p:e sym +8(%di", "DEREF_OPEN_BRACE", 14),
            ("p:e sym a=+zz(%di)", "BAD_DEREF_OFFS", 10),
            ("p:e sym +8(-8(%zz))", "BAD_REG_NAME", 14),
            ("p:e  sym %zz", "BAD_REG_NAME", 9),
            ("p:e sym a=%zz", "BAD_REG_NAME", 10),
            ("p:e sym =%di", "NO_ARG_NAME", 8),
            ("p:e sym a=", "NO_ARG_BODY", 10),
            ("p:e sym 1a=%di", "BAD_ARG_NAME", 8),
            ("p:e sym 9x", "BAD_FETCH_ARG", 8),
            ("p:e sym a=di->b", "BAD_FETCH_ARG", 10),
            ("p:e sym +0(9x)", "BAD_FETCH_ARG", 11),
            ("p:e sym %di:int", "BAD_TYPE", 12),
            ("p:e sym %di:", "BAD_TYPE", 12),
            ("p:e sym a=%di:string", "BAD_STRING", 14),
            ("p:e sym $stack0:ustring", "BAD_STRING", 16),
        ];
        for (line, id, position) in cases {
            let error = parse_line(line).unwrap_err();
            assert_eq!((error.id, error.position), (id, position), "{line}: {error}");
        }
        let many = format!("p:e sym{}", " %di".repeat(129));
        assert_eq!(parse_line(&many).unwrap_err().id, "TOO_MANY_ARGS");
        let deep = format!("p:e sym {}%di{}", "+1(".repeat(13), ")".repeat(13));
        assert_eq!(parse_line(&deep).unwrap_err().id, "TOO_MANY_OPS");
        let long = format!("p:{} sym", "a".repeat(64));
        assert_eq!(parse_line(&long).unwrap_err().id, "EVENT_TOO_LONG");
    }

    #[test]
    fn return_probes_have_two_spellings() {
        let probe = parse_line("r20:e vfs_read $retval").unwrap();
        assert_eq!((probe.kind, probe.maxactive), (ProbeKind::Kretprobe, Some(20)));
        assert_eq!(probe.args[0].body, Fetch::ReturnValue);
        assert_eq!(probe.to_string(), "r20:kprobes/e vfs_read arg1=$retval");
        let suffix = parse_line("p:e vfs_read%return").unwrap();
        assert_eq!((suffix.kind, suffix.maxactive), (ProbeKind::Kretprobe, None));
        assert_eq!(parse_line("r vfs_read").unwrap().event_name(), "r_vfs_read_0");
    }

    fn any_fetch() -> impl Strategy<Value = Fetch> {
        let leaf = prop_oneof![
            (0..18usize).prop_map(|r| Fetch::Register(Register::ALL[r])),
            (0..2048u16).prop_map(Fetch::Stack),
            Just(Fetch::StackPointer),
            Just(Fetch::ReturnValue),
            any::<u64>().prop_map(|addr| Fetch::Memory(Gva(addr))),
            "[a-z_][a-z0-9_]{0,9}".prop_map(Fetch::Parameter),
        ];
        leaf.prop_recursive(6, 8, 1, |inner| {
            (-i64::MAX..=i64::MAX, inner)
                .prop_map(|(offset, base)| Fetch::Deref { offset, base: Box::new(base) })
        })
    }

    fn any_type() -> impl Strategy<Value = Option<ValueType>> {
        let names = ["u8", "s16", "x32", "u64", "string", "ustring"];
        prop::option::of(
            prop::sample::select(names.to_vec()).prop_map(|name: &str| name.parse().unwrap()),
        )
    }

    proptest! {
        #[test]
        fn no_text_panics(line: String) {
            let _ = parse_line(&line);
        }

        #[test]
        fn what_is_printed_parses_to_the_same(
            group in "[a-z_][a-z0-9_]{0,10}", event in "[a-z_][a-z0-9_]{0,10}",
            symbol in "[a-z_][a-z0-9_.]{0,20}", offset: u32,
            bodies in prop::collection::vec(any_fetch(), 0..8), kind in any_type(), maxactive in prop::option::of(1..4097u32),
        ) {
            let args = bodies.into_iter().enumerate().map(|(i, body)| FetchArg {
                name: Some(format!("n{i}")), kind: kind.filter(|k| !k.is_text() || matches!(body, Fetch::Deref { .. })), body,
            }).collect();
            let kind = if maxactive.is_some() { ProbeKind::Kretprobe } else { ProbeKind::Kprobe };
            let probe = ProbeDefinition {
                kind, maxactive,
                group: Some(group), event: Some(event), symbol_name: Some(symbol),
                offset: offset.into(), args, ..ProbeDefinition::default()
            };
            prop_assert_eq!(parse_line(&probe.to_string()).unwrap(), probe);
        }
    }
}
