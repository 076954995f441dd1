//! What a user says a probe is: JSON, or a line of kprobe_events' language.

mod register;
mod text;

pub use register::Register;
pub use text::{ParseError, parse_line};

use std::fmt;
use std::str::FromStr;

use exoprobe_vmm::Gva;
use serde::{Deserialize, Serialize};

/// Group of events whose definition names none (kprobe_events).
pub const DEFAULT_GROUP: &str = "kprobes";
/// Longest group or event name, in characters (MAX_EVENT_NAME_LEN less its NUL).
pub const NAME_MAX: usize = 63;
/// Most arguments of one probe (MAX_TRACE_ARGS).
pub const ARGS_MAX: usize = 128;
/// Longest argument name, in characters (MAX_ARG_NAME_LEN).
pub const ARG_NAME_MAX: usize = 32;

/// Kind of a probe, as in the second column of kprobes/list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum ProbeKind {
    /// A kprobe.
    #[default]
    #[serde(rename = "k")]
    Kprobe,
}

/// State flags of a probe, named as in kprobes/list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Flag {
    /// Registered and not armed (KPROBE_FLAG_DISABLED).
    Disabled,
}

/// One recorded value: `[NAME=]%REG`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchArg {
    /// Name of the field; `argN` (N from 1) when the definition gives none.
    pub name: Option<String>,
    /// The register.
    pub register: Register,
}

impl fmt::Display for FetchArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name}=%{}", self.register),
            None => write!(f, "%{}", self.register),
        }
    }
}

impl FromStr for FetchArg {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        text::parse_arg(text)
    }
}

impl Serialize for FetchArg {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FetchArg {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A kprobe as a user defines it. Exactly one of `symbol_name` and `addr` is to be given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeDefinition {
    /// Kind; only kprobes so far.
    #[serde(default)]
    pub kind: ProbeKind,
    /// Group of the event; [`DEFAULT_GROUP`] when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Name of the event; made up from the place when absent (`p_SYMBOL_OFFSET`, `p_0xADDR`).
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
    /// Values to record with each hit, each `[NAME=]%REG`.
    #[serde(default)]
    pub args: Vec<FetchArg>,
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
            (Some(symbol), _) => format!("p_{symbol}_{}", self.offset),
            (None, addr) => format!("p_{}", addr.unwrap_or_default()),
        };
        let letters = base.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
        letters.take(NAME_MAX).collect()
    }

    /// Name of argument `index`.
    #[must_use]
    pub fn arg_name(&self, index: usize) -> String {
        match self.args.get(index).and_then(|arg| arg.name.clone()) {
            Some(name) => name,
            None => format!("arg{}", index + 1),
        }
    }
}

impl fmt::Display for ProbeDefinition {
    /// The canonical line of kprobe_events: group and names always filled in.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p:{}/{} {}", self.group(), self.event_name(), self.place())?;
        for (index, arg) in self.args.iter().enumerate() {
            write!(f, " {}=%{}", self.arg_name(index), arg.register)?;
        }
        Ok(())
    }
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

/// Addresses in JSON: written as hexadecimal text (a double holds only 53 bits), read as either.
mod hex_address {
    use exoprobe_vmm::Gva;
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(addr: &Option<Gva>, s: S) -> Result<S::Ok, S::Error> {
        match addr {
            Some(addr) => s.collect_str(addr),
            None => s.serialize_none(),
        }
    }

    #[derive(Deserialize)]
    #[serde(untagged, expecting = "an address: \"0x...\" or a number")]
    enum Either {
        Number(u64),
        Text(String),
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Gva>, D::Error> {
        let Some(either) = Option::<Either>::deserialize(d)? else { return Ok(None) };
        match either {
            Either::Number(number) => Ok(Some(Gva(number))),
            Either::Text(text) => super::text::parse_address(&text)
                .map(Some)
                .ok_or_else(|| serde::de::Error::custom(format!("`{text}` is no address"))),
        }
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
