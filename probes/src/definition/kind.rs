//! Kinds of probes.

use serde::{Deserialize, Serialize};

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
    /// The letter of kprobe_events and of made-up names.
    pub(super) fn letter(self) -> char {
        match self {
            Self::Kprobe => 'p',
            Self::Kretprobe => 'r',
        }
    }
}
