//! The state of probes, as reported to users.

use exoprobe_guest::Gva;
use serde::{Deserialize, Serialize};

use crate::definition::{Action, ProbeKind, ReturnMode};
use crate::latency::Latency;

/// The way in which a probe's displaced instruction runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DisplacedBy {
    /// The VMM emulates the instruction: one exit per hit.
    Emulation,
    /// A copy in hidden memory, followed by a jmp back: one exit per hit.
    Boost,
    /// A copy in hidden memory, followed by an int3: two exits per hit.
    Step,
}

/// A probe's state, as in kprobes/list (kprobes.rst, "The kprobes debugfs interface"), with the
/// additional states of probes from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum StatusFlag {
    /// Its text no longer exists: init text that was freed, or an address that is not mapped.
    Gone,
    /// Its text does not exist yet, or is not final.
    Pending,
    /// Registered and not armed.
    Disabled,
    /// A jmp replaces its int3: its hits do not leave the guest.
    Optimized,
    /// The guest has rewritten its text. It is armed again when the text is restored.
    Clobbered,
}

/// The state of a probe; every probe is in exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeState {
    /// Its text does not exist yet, or is not final; [`ProbeStatus::reason`] explains it.
    Pending,
    /// An int3 is in its text.
    Armed,
    /// A jmp is in its text: its hits do not leave the guest.
    Optimized,
    /// It is disabled, and no trigger arms it.
    Disabled,
    /// It is enabled, and the switch over all probes is off.
    Off,
    /// The guest has rewritten its text. It is armed again when the text is restored.
    Clobbered,
    /// Its text no longer exists.
    Gone,
}

impl ProbeState {
    /// The state of a probe with these flags; if several apply, the one that is furthest from a
    /// hit.
    pub(crate) fn of(flags: &[StatusFlag], switched_on: bool) -> Self {
        let has = |flag| flags.contains(&flag);
        match () {
            () if has(StatusFlag::Gone) => Self::Gone,
            () if has(StatusFlag::Pending) => Self::Pending,
            () if has(StatusFlag::Clobbered) => Self::Clobbered,
            () if has(StatusFlag::Disabled) => Self::Disabled,
            () if !switched_on => Self::Off,
            () if has(StatusFlag::Optimized) => Self::Optimized,
            () => Self::Armed,
        }
    }
}

impl StatusFlag {
    fn tag(self) -> &'static str {
        match self {
            Self::Gone => "[GONE]",
            Self::Pending => "[PENDING]",
            Self::Disabled => "[DISABLED]",
            Self::Optimized => "[OPTIMIZED]",
            Self::Clobbered => "[CLOBBERED]",
        }
    }
}

/// A registered probe with its counters: `hits = recorded + filtered + lost`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProbeStatus {
    /// Number of the probe, never used again.
    pub id: u32,
    /// Kind.
    pub kind: ProbeKind,
    /// Group of its event.
    pub group: String,
    /// Name of its event.
    pub event: String,
    /// Function; absent if the address is outside all symbols.
    pub symbol_name: Option<String>,
    /// Bytes from the function's start.
    pub offset: u64,
    /// Address of the probed instruction, once it is known.
    #[serde(serialize_with = "as_text")]
    pub addr: Option<Gva>,
    /// True if its hits become events.
    pub enabled: bool,
    /// Number of triggers of its event. Triggers arm it also while it is not enabled.
    pub triggers: usize,
    /// Its state.
    pub state: ProbeState,
    /// All flags, as in kprobes/list.
    pub flags: Vec<StatusFlag>,
    /// For a pending probe: the reason why it is not placed.
    pub reason: Option<String>,
    /// For an armed probe that the optimizer has examined since the last change: the reason why it
    /// is not optimized, beginning with the rule's name.
    pub unoptimized_reason: Option<String>,
    /// Number of hits while it was enabled; for a return probe, of returns.
    pub hits: u64,
    /// Calls that a return probe could not follow. Kprobes miss none.
    pub nmissed: u64,
    /// Hits that became events.
    pub recorded: u64,
    /// Hits that a filter or the actions keep from becoming events.
    pub filtered: u64,
    /// Hits whose event had no room.
    pub lost: u64,
    /// For a return probe: maximum number of calls that it follows at a time.
    pub maxactive: Option<u32>,
    /// For a return probe: number of calls that it follows now.
    pub active: Option<u32>,
    /// For a return probe: durations of its calls.
    pub latency: Option<Latency>,
    /// For a return probe: the way in which it follows returns.
    pub return_mode: Option<ReturnMode>,
    /// Actions of a hit.
    pub actions: Vec<Action>,
    /// The filter of events; all hits pass without one.
    pub filter: Option<String>,
    /// The probed instruction, once it is known.
    pub instruction: Option<String>,
    /// The way in which it runs.
    pub displaced: Option<DisplacedBy>,
    /// The definition as a line of kprobe_events.
    pub definition: String,
    /// Number of probes of its event.
    pub sites: u32,
}

#[expect(clippy::ref_option, reason = "serde's signature")]
fn as_text<S: serde::Serializer>(addr: &Option<Gva>, serializer: S) -> Result<S::Ok, S::Error> {
    match addr {
        Some(addr) => serializer.collect_str(addr),
        None => serializer.serialize_none(),
    }
}

impl ProbeStatus {
    /// Its line in kprobes/list (kprobes.rst, "The kprobes debugfs interface"), with the blanks of
    /// the kernel's own file: two between columns, one in place of a module's name.
    #[must_use]
    pub fn list_line(&self) -> String {
        let flags: String = self.flags.iter().map(|flag| flag.tag()).collect();
        let (addr, kind) = (self.addr.unwrap_or_default(), self.kind.list_letter());
        match &self.symbol_name {
            Some(symbol) => {
                let (module, symbol) = symbol.split_once(':').unwrap_or((" ", symbol));
                format!("{:016x}  {kind}  {symbol}+{:#x}  {module} {flags}\n", addr.0, self.offset)
            }
            None => format!("{:016x}  {kind}  {addr} {flags}\n", addr.0),
        }
    }
}
