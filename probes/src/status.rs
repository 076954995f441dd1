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

/// A registered probe with its counters: `hits = recorded + filtered + lost`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ProbeStatus {
    /// Number of the probe, never used again.
    pub id: u32,
    /// `k`, a kprobe, or `r`, a return probe.
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "k"))]
    pub kind: ProbeKind,
    /// Group of its event.
    pub group: String,
    /// Name of its event.
    pub event: String,
    /// Function; null if the address is outside all symbols.
    pub symbol_name: Option<String>,
    /// Bytes from the function's start.
    pub offset: u64,
    /// Address of the probed instruction; null while the probe is pending.
    #[serde(serialize_with = "as_text")]
    #[cfg_attr(
        feature = "schema",
        schema(value_type = Option<String>, example = "0xffffffff81000000")
    )]
    pub addr: Option<Gva>,
    /// True if its hits become events.
    pub enabled: bool,
    /// Number of triggers of its event (the tracer's file `trigger`), and one where triggers of
    /// other events switch it. Both arm it also while it is not enabled.
    pub triggers: usize,
    /// `pending`: its text does not exist yet, or is not final (`reason`). `armed`: by an int3.
    /// `optimized`: by a jmp, so that its hits do not leave the guest. `disabled`: by the user, and
    /// no trigger arms it. `off`: enabled, and the switch over all probes is off. `clobbered`: the
    /// guest has rewritten its text; it is armed again when the text is restored. `gone`: its text
    /// no longer exists.
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "armed"))]
    pub state: ProbeState,
    /// `GONE`, `PENDING`, `DISABLED`, `OPTIMIZED`, `CLOBBERED`, as in kprobes/list; none for a
    /// probe that is armed by an int3.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub flags: Vec<StatusFlag>,
    /// A jmp replaces its int3: its hits do not leave the guest.
    pub optimized: bool,
    /// For a pending probe: what it waits for, or the reason why it cannot be placed; else null.
    pub reason: Option<String>,
    /// For an armed probe: the reason why it is not optimized, beginning with the rule's name; null
    /// until the optimizer has examined it after the last change of probes, and in other states. Of
    /// a probe that was only checked: the reason why it would not be.
    #[cfg_attr(
        feature = "schema",
        schema(
            example = "indirect-jump: f has an indirect jump at 0xffffffff81000010, whose target is not known"
        )
    )]
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
    /// For a return probe: `trampoline` or `site`.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, example = "trampoline"))]
    pub return_mode: Option<ReturnMode>,
    /// Actions of a hit, in this order.
    #[cfg_attr(feature = "schema", schema(schema_with = actions_schema))]
    pub actions: Vec<Action>,
    /// The filter of events; null if all hits pass.
    #[cfg_attr(feature = "schema", schema(example = "fd == 0x3 && common_pid != 0x1"))]
    pub filter: Option<String>,
    /// The probed instruction; null while it is not known.
    pub instruction: Option<String>,
    /// The way in which it runs: `emulation`, `boost` or `step`; null while it is not known.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, example = "boost"))]
    pub displaced: Option<DisplacedBy>,
    /// The definition as a line of kprobe_events, which has no words for flags, actions and return
    /// mode.
    pub definition: String,
    /// Number of probes of its event: more than one if kprobe_events defined it several times.
    pub sites: u32,
}

#[expect(clippy::ref_option, reason = "serde's signature")]
fn as_text<S: serde::Serializer>(addr: &Option<Gva>, serializer: S) -> Result<S::Ok, S::Error> {
    match addr {
        Some(addr) => serializer.collect_str(addr),
        None => serializer.serialize_none(),
    }
}

/// The schema of [`ProbeStatus::actions`]: the document's `Action`, which is also that of requests.
#[cfg(feature = "schema")]
fn actions_schema() -> utoipa::openapi::schema::Array {
    let builder = utoipa::openapi::schema::ArrayBuilder::new();
    let examples = [serde_json::json!(["record"])];
    builder.items(utoipa::openapi::Ref::from_schema_name("Action")).examples(examples).build()
}
