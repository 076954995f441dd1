//! The definition of one probe.

use std::fmt;

use exoprobe_guest::Gva;
use serde::{Deserialize, Serialize};

use super::action::Action;
use super::fetch::{Fetch, FetchArg};
use super::kind::ProbeKind;
use super::names::{DEFAULT_GROUP, NAME_MAX, unnamed};
use super::number::hex_address;
use super::written_filter::WrittenFilter;

/// The place at which a return probe follows a return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum ReturnMode {
    /// A trampoline's address replaces the function's return address (kprobes.rst, "How Does a
    /// Return Probe Work?"). Two exits per call.
    #[default]
    Trampoline,
    /// The stack is not changed; an int3 is written at the return address. The guest's own
    /// back-traces stay correct. A call that returns to where no int3 can be is followed as in the
    /// mode `Trampoline`.
    Site,
}

/// State flags of a probe, named as in kprobes/list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Flag {
    /// Registered and not armed (KPROBE_FLAG_DISABLED).
    Disabled,
}

/// A probe as a user defines it. Exactly one of `symbol_name` and `addr` must be given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeDefinition {
    /// Kprobe or return probe.
    #[serde(default)]
    pub kind: ProbeKind,
    /// Group of the event; [`DEFAULT_GROUP`] when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Name of the event; if absent, derived from kind and place (`p_SYMBOL_OFFSET`, `r_0xADDR`).
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
    /// Actions of a hit, in order; [`Action::Record`] alone when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<Action>,
    /// The filter of hits: a refused hit makes no event, and no other action runs. Its fields are
    /// the arguments, by name, and `common_pid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<WrittenFilter>,
    /// Return probes: calls of the function that can be followed at a time, at most
    /// [`MAXACTIVE_MAX`](crate::definition::MAXACTIVE_MAX); by default max(10, 2 x vCPUs)
    /// (kprobes.rst).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maxactive: Option<u32>,
    /// Return probes: the way in which returns are followed.
    #[serde(default)]
    pub return_mode: ReturnMode,
}

impl ProbeDefinition {
    /// The definition's place, for messages and derived names.
    #[must_use]
    pub fn place(&self) -> String {
        match (&self.symbol_name, self.addr) {
            (Some(symbol), _) if self.offset == 0 => symbol.clone(),
            (Some(symbol), _) => format!("{symbol}+{}", self.offset),
            (None, Some(addr)) => addr.to_string(),
            (None, None) => String::new(),
        }
    }

    /// Returns true if the function is a pattern, in which `*` stands for any run of characters and
    /// `?` for any one. It is no probe's: see [`Engine::expand`](crate::Engine::expand).
    #[must_use]
    pub fn is_pattern(&self) -> bool {
        self.symbol_name.as_ref().is_some_and(|symbol| symbol.contains(['*', '?']))
    }

    /// The definition of a pattern for one of its functions. A `*` in the event's name becomes the
    /// function's name, as far as an event's may have its characters.
    #[must_use]
    pub(crate) fn for_function(&self, function: String) -> Self {
        let name = function.split_once(':').map_or(&*function, |(_, name)| name);
        let letter = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let name: String = name.chars().map(letter).collect();
        let event = |event: &String| event.replace('*', &name).chars().take(NAME_MAX).collect();
        let event = self.event.as_ref().map(event);
        Self { event, symbol_name: Some(function), ..self.clone() }
    }

    /// The group, given or default.
    #[must_use]
    pub fn group(&self) -> &str {
        self.group.as_deref().unwrap_or(DEFAULT_GROUP)
    }

    /// The event's name, given or derived as kprobe_events does, cut to [`NAME_MAX`] characters.
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
    /// The canonical line of kprobe_events: group and names are always included. Parts that the
    /// language cannot express are omitted: flags, actions, the filter, the return mode.
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

#[cfg(test)]
mod tests {
    use super::super::names::is_event_name;
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
    fn a_star_in_the_events_name_is_the_function() {
        let pattern = |event: &str| ProbeDefinition {
            event: Some(event.to_owned()),
            symbol_name: Some("vfs_*".to_owned()),
            offset: 4,
            ..ProbeDefinition::default()
        };
        assert!(pattern("*").is_pattern());
        for (event, function, expected) in [
            ("*", "vfs_read", "vfs_read"),
            ("in_*", "ext4:f.isra.0", "in_f_isra_0"),
            ("*_*", "f", "f_f"),
        ] {
            let found = pattern(event).for_function(function.to_owned());
            assert_eq!((found.event.as_deref(), found.offset), (Some(expected), 4));
            assert!(found.symbol_name.as_deref() == Some(function) && !found.is_pattern());
        }
        let long = pattern("*").for_function("f".repeat(100));
        assert!(is_event_name(&long.event_name()), "{}", long.event_name());
        let unnamed = ProbeDefinition { event: None, ..pattern("") };
        assert_eq!(unnamed.for_function("f".to_owned()).event_name(), "p_f_4");
    }

    #[test]
    fn identifiers() {
        assert!(is_event_name("_a1") && is_event_name(&"a".repeat(63)));
        assert!(!is_event_name("1a") && !is_event_name("") && !is_event_name("a-b"));
        assert!(!is_event_name(&"a".repeat(64)) && !is_event_name("é"));
    }
}
