//! Probes as users see them.

use exoprobe_guest::Gva;
use serde::{Deserialize, Serialize};

use crate::definition::{Action, ProbeKind, ReturnMode};
use crate::latency::Latency;

/// How a probe's instruction runs displaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DisplacedBy {
    /// The VMM does what the instruction does: one exit a hit.
    Emulation,
    /// Its copy in hidden memory, a jmp back after it: one exit a hit.
    Boost,
    /// Its copy in hidden memory, an int3 after it: two exits a hit.
    Step,
}

/// A probe's state, as in kprobes/list (kprobes.rst, "The kprobes debugfs
/// interface"), and what only probes from outside can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum StatusFlag {
    /// Its text is no longer there: init text that was freed, or an address that is not mapped.
    Gone,
    /// Its text is not there yet, or not final.
    Pending,
    /// Registered and not armed.
    Disabled,
    /// A jmp is in place of its int3: its hits do not leave the guest.
    Optimized,
    /// The guest has rewritten its text. It is armed again when the text is back.
    Clobbered,
}

/// The state of a probe: each is in one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeState {
    /// Its text is not there yet, or not final; [`ProbeStatus::reason`] says more.
    Pending,
    /// An int3 is in its text.
    Armed,
    /// A jmp is in its text: its hits do not leave the guest.
    Optimized,
    /// It is disabled, and no trigger has it armed.
    Disabled,
    /// It is enabled, and the switch over all probes is off.
    Off,
    /// The guest has rewritten its text. It is armed again when the text is back.
    Clobbered,
    /// Its text is no longer there.
    Gone,
}

impl ProbeState {
    /// The state of a probe with these flags; of several that hold, the one that has most to change
    /// before the probe can hit.
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

/// A registered probe and its books: `hits = recorded + filtered + lost`.
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
    /// Function; absent when the address is outside all symbols.
    pub symbol_name: Option<String>,
    /// Bytes from the function's start.
    pub offset: u64,
    /// Address of the probed instruction, once it is known.
    #[serde(serialize_with = "as_text")]
    pub addr: Option<Gva>,
    /// Its hits become events.
    pub enabled: bool,
    /// Triggers of its event, which arm it also while it is not enabled.
    pub triggers: usize,
    /// Its state.
    pub state: ProbeState,
    /// As kprobes/list has them, also several.
    pub flags: Vec<StatusFlag>,
    /// Of a pending probe: what it waits for, or why it cannot be placed.
    pub reason: Option<String>,
    /// Of an armed probe that the optimizer has looked at since the last change: why it is not
    /// optimized, the rule's name first.
    pub unoptimized_reason: Option<String>,
    /// Times the guest hit it while it was enabled; returns, of a return probe.
    pub hits: u64,
    /// Calls that a return probe could not follow. Kprobes miss none.
    pub nmissed: u64,
    /// Hits that became events.
    pub recorded: u64,
    /// Hits of which no event is wanted.
    pub filtered: u64,
    /// Hits whose event found no room.
    pub lost: u64,
    /// Of a return probe: calls that it can follow at a time.
    pub maxactive: Option<u32>,
    /// Of a return probe: calls that it follows now.
    pub active: Option<u32>,
    /// Of a return probe: how long its calls took.
    pub latency: Option<Latency>,
    /// Of a return probe: how it takes hold of returns.
    pub return_mode: Option<ReturnMode>,
    /// Actions of a hit.
    pub actions: Vec<Action>,
    /// Which hits count; all without one.
    pub filter: Option<String>,
    /// The probed instruction, once it is known.
    pub instruction: Option<String>,
    /// How it runs.
    pub displaced: Option<DisplacedBy>,
    /// The definition as a line of kprobe_events.
    pub definition: String,
    /// How many probes its event has.
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
    /// the kernel's own file: two between columns, one where a module's name would be.
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
