//! What a user says a probe is: JSON, or a line of kprobe_events' language.

mod action;
mod argument;
mod fetch;
mod filter;
mod filter_text;
mod language;
mod register;
mod value;

pub use action::Action;
pub(crate) use argument::Argument;
pub use fetch::{Fetch, FetchArg, NESTING_MAX, Named};
pub use filter::{Comparison, Field, FieldError, FieldValue, Filter, TextTest};
pub(crate) use language::{BODY_MAX, parse_number, parse_place};
pub use language::{
    Command, Deletion, ParseError, definition_lines, normalised, parse_command, parse_conditional,
    parse_line, split_condition, without_comment, words,
};
pub use register::{Register, Segment, UnknownRegister};
pub use value::{ARRAY_MAX, Bits, TEXT_MAX, ValueType, Width};

use std::fmt;

use exoprobe_guest::Gva;
use serde::{Deserialize, Serialize};

/// Group of events whose definition names none (kprobe_events).
pub const DEFAULT_GROUP: &str = "kprobes";
/// Longest group or event name, in characters (MAX_EVENT_NAME_LEN less its NUL).
pub const NAME_MAX: usize = 63;
/// Most arguments of one probe (MAX_TRACE_ARGS).
pub const ARGS_MAX: usize = 128;
/// Most bytes of one event's values in a record of the tracer's (MAX_PROBE_EVENT_SIZE).
pub const RECORD_MAX: usize = 3072;
/// Longest argument name, in characters (MAX_ARG_NAME_LEN).
pub const ARG_NAME_MAX: usize = 32;
/// Largest maxactive (KRETPROBE_MAXACTIVE_MAX of the tracer).
pub const MAXACTIVE_MAX: u32 = 4096;

/// Words of a kernel stack of 16 KiB: what `$stackN` can name.
pub(crate) const STACK_WORDS: u16 = 2048;

/// What a filter calls the number of the task that was current.
pub const PID_FIELD: &str = "common_pid";
/// What a filter calls its name.
pub const COMM_FIELD: &str = "comm";

/// What it calls the number of the vCPU.
pub const CPU_FIELD: &str = "CPU";
/// Behind an address in a filter: the user's text there.
pub(crate) const USER_TEXT: &str = ".ustring";

/// Kind of a probe, as in the second column of kprobes/list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum ProbeKind {
    /// A kprobe.
    #[default]
    #[serde(rename = "k")]
    Kprobe,
    /// A return probe: fires when the function returns.
    #[serde(rename = "r")]
    Kretprobe,
}

impl ProbeKind {
    /// The letter of kprobes/list and of JSON.
    pub(crate) fn list_letter(self) -> char {
        match self {
            Self::Kprobe => 'k',
            Self::Kretprobe => 'r',
        }
    }

    /// The letter of kprobe_events and of made-up names.
    fn letter(self) -> char {
        match self {
            Self::Kprobe => 'p',
            Self::Kretprobe => 'r',
        }
    }
}

/// Where a return probe takes hold of a return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum ReturnMode {
    /// The function's return address is replaced by a trampoline's (kprobes.rst, "How Does a Return
    /// Probe Work?"). Two exits a call.
    #[default]
    Trampoline,
    /// The stack is left alone; an int3 is put where the function returns to. The guest's own
    /// back-traces stay true.
    Site,
}

/// State flags of a probe, named as in kprobes/list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Flag {
    /// Registered and not armed (KPROBE_FLAG_DISABLED).
    Disabled,
}

/// A probe as a user defines it. Exactly one of `symbol_name` and `addr` is to be given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeDefinition {
    /// Kprobe or return probe.
    #[serde(default)]
    pub kind: ProbeKind,
    /// Group of the event; [`DEFAULT_GROUP`] when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Name of the event; made up from kind and place when absent (`p_SYMBOL_OFFSET`, `r_0xADDR`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// Function to probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symbol_name: Option<String>,
    /// Bytes from the symbol's start.
    #[serde(default)]
    pub offset: u64,
    /// Guest-virtual address, as `"0x..."` or a number.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "hex_address")]
    pub addr: Option<Gva>,
    /// `DISABLED` to register it unarmed.
    #[serde(default)]
    pub flags: Vec<Flag>,
    /// Values to record with each hit.
    #[serde(default)]
    pub args: Vec<FetchArg>,
    /// What a hit does, in order; [`Action::Record`] alone when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<Action>,
    /// Which hits count: of the others nothing comes, neither events nor what other actions do. Its fields are
    /// the arguments, by name, and `common_pid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
    /// Return probes: calls of the function that can be followed at a time, at most
    /// [`MAXACTIVE_MAX`]; by default max(10, 2 x vCPUs) (kprobes.rst).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maxactive: Option<u32>,
    /// Return probes: how a return is taken hold of.
    #[serde(default)]
    pub return_mode: ReturnMode,
}

impl ProbeDefinition {
    /// The definition's place, for messages and made-up names.
    #[must_use]
    pub fn place(&self) -> String {
        match (&self.symbol_name, self.addr) {
            (Some(symbol), _) if self.offset == 0 => symbol.clone(),
            (Some(symbol), _) => format!("{symbol}+{}", self.offset),
            (None, Some(addr)) => addr.to_string(),
            (None, None) => String::new(),
        }
    }

    /// The group, given or default.
    #[must_use]
    pub fn group(&self) -> &str {
        self.group.as_deref().unwrap_or(DEFAULT_GROUP)
    }

    /// The event's name, given or made up as kprobe_events does, cut to [`NAME_MAX`] characters.
    #[must_use]
    pub fn event_name(&self) -> String {
        if let Some(event) = &self.event {
            return event.clone();
        }
        let base = match (&self.symbol_name, self.addr) {
            (Some(symbol), _) => format!("{}_{symbol}_{}", self.kind.letter(), self.offset),
            (None, addr) => format!("{}_{}", self.kind.letter(), addr.unwrap_or_default()),
        };
        let letters = base.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
        letters.take(NAME_MAX).collect()
    }

    /// Name of argument `index`.
    #[must_use]
    pub fn arg_name(&self, index: usize) -> String {
        self.args.get(index).map_or_else(|| unnamed(index), |arg| arg.name_at(index))
    }
}

impl fmt::Display for ProbeDefinition {
    /// The canonical line of kprobe_events: group and names always filled in. What the language has no
    /// words for is left out: flags, actions, the filter, the return mode.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind.letter())?;
        if let Some(maxactive) = self.maxactive {
            write!(f, "{maxactive}")?;
        }
        write!(f, ":{}/{} {}", self.group(), self.event_name(), self.place())?;
        for (index, arg) in self.args.iter().enumerate() {
            match arg.body {
                // Several values, each with a name of its own.
                Fetch::AllParameters => write!(f, " {}", arg.body)?,
                _ => {
                    write!(f, " {}=", self.arg_name(index))?;
                    arg.fmt_value(f)?;
                }
            }
        }
        Ok(())
    }
}

/// Name of argument `index`, which has none of its own.
fn unnamed(index: usize) -> String {
    format!("arg{}", index + 1)
}

/// Names that each event's fields have anyhow.
const RESERVED: [&str; 8] = [
    "common_type",
    "common_flags",
    "common_preempt_count",
    "common_pid",
    "common_tgid",
    "__probe_ip",
    "__probe_ret_ip",
    "__probe_func",
];

fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
}

/// Can an argument's field be called so?
pub(crate) fn is_arg_name(name: &str) -> bool {
    name.len() <= ARG_NAME_MAX && is_event_name(name) && !is_reserved(name)
}

/// Is `name` a C identifier of a length the tracer takes?
#[must_use]
pub fn is_event_name(name: &str) -> bool {
    name.len() <= NAME_MAX && is_identifier(name)
}

fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// 64-bit numbers in JSON: written as hexadecimal text (a double holds only 53 bits), read as text or
/// number, also a negative one (-12 is -ENOMEM).
mod hex_number {
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(number: &u64, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{number:#x}"))
    }

    #[derive(Deserialize)]
    #[serde(untagged, expecting = "\"0x...\" or a number of 64 bits")]
    enum Either {
        Number(u64),
        Negative(i64),
        Text(String),
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
        match Either::deserialize(d)? {
            Either::Number(number) => Ok(number),
            Either::Negative(number) => Ok(number.cast_unsigned()),
            Either::Text(text) => super::language::parse_signed(&text)
                .ok_or_else(|| serde::de::Error::custom(format!("`{text}` is no number"))),
        }
    }
}

/// As [`hex_number`], for an address that may be absent.
mod hex_address {
    use exoprobe_guest::Gva;
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    struct Address(#[serde(with = "super::hex_number")] u64);

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(addr: &Option<Gva>, s: S) -> Result<S::Ok, S::Error> {
        match addr {
            Some(addr) => s.collect_str(addr),
            None => s.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Gva>, D::Error> {
        Ok(Option::<Address>::deserialize(d)?.map(|address| Gva(address.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_up_as_the_tracer_does() {
        let by_symbol = ProbeDefinition {
            symbol_name: Some("foo.isra.0".to_owned()),
            offset: 4,
            ..ProbeDefinition::default()
        };
        assert_eq!(by_symbol.event_name(), "p_foo_isra_0_4");
        let by_addr = ProbeDefinition { addr: Some(Gva(0xff)), ..ProbeDefinition::default() };
        assert_eq!(by_addr.event_name(), "p_0xff");
        assert_eq!(by_symbol.to_string(), "p:kprobes/p_foo_isra_0_4 foo.isra.0+4");
        let symbol_name = Some("f".repeat(100));
        let long = ProbeDefinition { symbol_name, ..ProbeDefinition::default() };
        assert!(is_event_name(&long.event_name()), "{}", long.event_name());
    }

    #[test]
    fn identifiers() {
        assert!(is_event_name("_a1") && is_event_name(&"a".repeat(63)));
        assert!(!is_event_name("1a") && !is_event_name("") && !is_event_name("a-b"));
        assert!(!is_event_name(&"a".repeat(64)) && !is_event_name("é"));
    }
}
