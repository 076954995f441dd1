//! Probes.

use exoprobe_guest::Gva;
use exoprobe_probes::definition::Flag;
use exoprobe_probes::{
    DisplacedBy, ProbeDefinition, ProbeError, ProbeKind, ProbeState, Registration, ReturnMode,
    StatusFlag,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Action, GivenAction, Hex};
use crate::http::Problem;

/// A probe to register. Exactly one of `symbol_name` and `addr` is to be given.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProbeRequest {
    /// `k`, a kprobe, or `r`, a return probe.
    #[serde(default)]
    #[schema(value_type = Kind)]
    pub kind: ProbeKind,
    /// Group of its event; `kprobes` when absent.
    #[schema(pattern = "^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
    pub group: Option<String>,
    /// Name of its event; made up from the place when absent.
    #[schema(example = "getpid", pattern = "^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
    pub event: Option<String>,
    /// Function to probe.
    #[schema(example = "__x64_sys_getpid", min_length = 1)]
    pub symbol_name: Option<String>,
    /// Bytes from the symbol's start.
    #[serde(default)]
    pub offset: u64,
    /// Guest-virtual address.
    pub addr: Option<Address>,
    /// `DISABLED` to register it unarmed.
    #[serde(default)]
    #[schema(value_type = Vec<RequestFlag>, example = json!([]))]
    pub flags: Vec<Flag>,
    /// Values to record with each hit, each `[NAME=]` and `%REG`, `$stackN`, `$stack`, `$retval`
    /// (return probes), `@ADDR`, the name of one of the function's parameters, or `+OFFS(...)` or
    /// `-OFFS(...)` of one of them; then `:TYPE`: `u8` to `u64`, `s8` to `s64`, `x8` to `x64`,
    /// `string`, `ustring`.
    #[serde(default)]
    #[schema(example = json!(["regs=%di", "flags=+0(%dx):x32"]))]
    pub args: Vec<String>,
    /// Actions of a hit, in this order; `record` alone when empty.
    #[serde(default)]
    #[schema(value_type = Vec<Action>, example = json!(["record"]))]
    pub actions: Vec<GivenAction>,
    /// Which hits count, as `fd == 3 && common_pid != 1`: comparisons (`==`, `!=`, `<`, `<=`, `>`,
    /// `>=`, `&`) of the arguments, by name, or of `common_pid`, with numbers; `&&`, `||`, `!`,
    /// `( )`. Of the other hits nothing comes: they are counted as `filtered`.
    #[schema(example = "common_pid != 1")]
    pub filter: Option<String>,
    /// Return probes: calls that can be followed at a time, 1 to 4096; by default the larger of 10
    /// and twice the vCPUs.
    #[schema(minimum = 1, maximum = 4096)]
    pub maxactive: Option<u32>,
    /// Return probes: `trampoline`, or `site`, which leaves the guest's stack alone.
    #[serde(default)]
    #[schema(value_type = Mode)]
    pub return_mode: ReturnMode,
}

/// Schema of [`ProbeKind`].
#[derive(ToSchema)]
#[schema(as = ProbeKind)]
#[serde(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is wanted")]
enum Kind {
    /// A kprobe.
    K,
    /// A return probe.
    R,
}

/// Schema of [`ReturnMode`].
#[derive(ToSchema)]
#[schema(as = ReturnMode)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is wanted")]
enum Mode {
    /// The return address is replaced.
    Trampoline,
    /// The guest's stack is left alone.
    Site,
}

/// Schema of [`Flag`].
#[derive(ToSchema)]
#[schema(as = ProbeFlag)]
#[serde(rename_all = "UPPERCASE")]
#[expect(dead_code, reason = "only its schema is wanted")]
enum RequestFlag {
    /// To be registered unarmed.
    Disabled,
}

/// Probes to register.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ProbeRequests {
    /// One.
    One(Box<ProbeRequest>),
    /// Several, all or none.
    Many(Vec<ProbeRequest>),
}

/// Probes that were registered: one for an object, else an array.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Registered {
    /// One.
    One(Box<ProbeStatus>),
    /// Several, in order.
    Many(Vec<ProbeStatus>),
}

/// An address: hexadecimal text with `0x`, or a number.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "an address: \"0x...\" or a number")]
pub enum Address {
    /// A number.
    Number(u64),
    /// Text.
    Text(AddressText),
}

/// An address as text: hexadecimal with `0x`, or decimal.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(example = "0xffffffff81000010", pattern = "^(0x0*[0-9a-fA-F]{1,16}|0*[0-9]{1,19})$")]
pub struct AddressText(pub String);

impl TryFrom<Address> for Gva {
    type Error = Problem;
    fn try_from(address: Address) -> Result<Self, Problem> {
        let text = match address {
            Address::Number(number) => return Ok(Self(number)),
            Address::Text(AddressText(text)) => text,
        };
        let (digits, radix) = match text.strip_prefix("0x") {
            Some(hex) => (hex, 16),
            None => (text.as_str(), 10),
        };
        // from_str_radix alone would take a sign.
        let plain = digits.chars().all(|c| c.is_digit(radix));
        let number = u64::from_str_radix(digits, radix).ok().filter(|_| plain);
        number
            .map(Self)
            .ok_or_else(|| Problem::new("EINVAL", format!("`{text}` is no address: write 0x...")))
    }
}

impl TryFrom<ProbeRequest> for ProbeDefinition {
    type Error = Problem;
    fn try_from(request: ProbeRequest) -> Result<Self, Problem> {
        let addr = request.addr.map(Gva::try_from).transpose()?;
        let filter = request.filter.map(|text| text.parse().map_err(ProbeError::Syntax));
        let actions = request.actions.into_iter().map(exoprobe_probes::Action::try_from);
        let actions = actions.collect::<Result<_, _>>()?;
        let args = request.args.iter().map(|arg| arg.parse().map_err(ProbeError::Syntax));
        Ok(Self {
            kind: request.kind,
            group: request.group,
            event: request.event,
            symbol_name: request.symbol_name,
            offset: request.offset,
            addr,
            flags: request.flags,
            args: args.collect::<Result<_, _>>()?,
            actions,
            filter: filter.transpose()?,
            maxactive: request.maxactive,
            return_mode: request.return_mode,
        })
    }
}

/// A change of a probe.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProbeChange {
    /// Armed or not.
    pub enabled: bool,
}

/// A probe that was asked to be removed.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Unregistered {
    /// Its name, as it was given.
    pub name: String,
    /// Its address (as linked, if the kernel had not begun); null where there was no such probe.
    pub addr: Option<Hex>,
}

impl Unregistered {
    /// Result for the probe called `name`.
    #[must_use]
    pub fn new(name: String, registration: Option<Registration>) -> Self {
        let addr = registration.map(|probe| Hex(probe.addr.unwrap_or_default().0));
        Self { name, addr }
    }
}

/// A registered probe and its books: `hits = recorded + filtered + lost`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ProbeStatus {
    /// Number of the probe, never used again.
    pub id: u32,
    /// `k`, a kprobe, or `r`, a return probe.
    #[schema(value_type = String, example = "k")]
    pub kind: ProbeKind,
    /// Group of its event.
    pub group: String,
    /// Name of its event.
    pub event: String,
    /// Function; null when the address is outside all symbols.
    pub symbol_name: Option<String>,
    /// Bytes from the function's start.
    pub offset: u64,
    /// Address of the probed instruction; null while the probe is pending.
    pub addr: Option<Hex>,
    /// Its hits become events.
    pub enabled: bool,
    /// Triggers of its event (the tracer's file `trigger`), which arm it also while it is not
    /// enabled.
    pub triggers: usize,
    /// `pending`: its text is not there yet, or not final (`reason`). `armed`: by an int3.
    /// `optimized`: by a jmp, so that its hits do not leave the guest. `disabled`: by the user, and
    /// no trigger has it armed. `off`: enabled, and the switch over all probes is off. `clobbered`:
    /// the guest rewrote its text, and it is armed again when the text is back. `gone`: its text is
    /// no more.
    #[schema(value_type = String, example = "armed")]
    pub state: ProbeState,
    /// `GONE`, `PENDING`, `DISABLED`, `OPTIMIZED`, `CLOBBERED`; none of a probe that is armed by an
    /// int3.
    #[schema(value_type = Vec<String>)]
    pub flags: Vec<StatusFlag>,
    /// A jmp is in place of its int3: its hits do not leave the guest.
    pub optimized: bool,
    /// Of a pending probe: what it waits for, or why it cannot be placed; else null.
    pub reason: Option<String>,
    /// Of an armed probe: why it is not optimized, the rule's name first; null until the optimizer
    /// has looked at it after the last change of probes, and in other states.
    #[schema(
        example = "indirect-jump: f has an indirect jump at 0xffffffff81000010, whose target is not known"
    )]
    pub unoptimized_reason: Option<String>,
    /// Times the guest hit it while it was enabled; of a return probe, returns.
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
    /// Of a return probe: `trampoline` or `site`.
    #[schema(value_type = Option<String>, example = "trampoline")]
    pub return_mode: Option<ReturnMode>,
    /// Actions of a hit, in this order.
    #[schema(value_type = Vec<Action>, example = json!(["record"]))]
    pub actions: Vec<exoprobe_probes::Action>,
    /// Which hits count; null where all do.
    #[schema(example = "fd == 0x3 && common_pid != 0x1")]
    pub filter: Option<String>,
    /// The probed instruction; null while it is not known.
    pub instruction: Option<String>,
    /// How it runs: `emulation`, `boost` or `step`; null while it is not known.
    #[schema(value_type = Option<String>, example = "boost")]
    pub displaced: Option<DisplacedBy>,
    /// The definition as a line of kprobe_events, which has no words for flags, actions and return
    /// mode.
    pub definition: String,
    /// How many probes its event has: more than one where kprobe_events defined it several times.
    pub sites: u32,
}

/// How long the calls of a return probe took, as far as their returns were recorded.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Latency {
    /// Calls that were timed.
    pub calls: u64,
    /// Nanoseconds of all of them together.
    pub total_ns: u64,
    /// Nanoseconds of the longest.
    pub max_ns: u64,
    /// Calls by duration: the first took 0 or 1 ns, the one at place N at least 2 to the power of N
    /// ns, and less than twice that.
    #[schema(example = json!([0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 3]))]
    pub buckets: Vec<u64>,
}

impl From<exoprobe_probes::Latency> for Latency {
    fn from(latency: exoprobe_probes::Latency) -> Self {
        let exoprobe_probes::Latency { calls, total_ns, max_ns, buckets } = latency;
        Self { calls, total_ns, max_ns, buckets }
    }
}

impl From<exoprobe_probes::ProbeStatus> for ProbeStatus {
    fn from(status: exoprobe_probes::ProbeStatus) -> Self {
        Self {
            id: status.id,
            kind: status.kind,
            group: status.group,
            event: status.event,
            symbol_name: status.symbol_name,
            offset: status.offset,
            addr: status.addr.map(|addr| Hex(addr.0)),
            optimized: status.flags.contains(&StatusFlag::Optimized),
            enabled: status.enabled,
            triggers: status.triggers,
            state: status.state,
            flags: status.flags,
            reason: status.reason,
            unoptimized_reason: status.unoptimized_reason,
            hits: status.hits,
            nmissed: status.nmissed,
            recorded: status.recorded,
            filtered: status.filtered,
            lost: status.lost,
            maxactive: status.maxactive,
            active: status.active,
            latency: status.latency.map(Latency::from),
            return_mode: status.return_mode,
            actions: status.actions,
            filter: status.filter,
            instruction: status.instruction,
            displaced: status.displaced,
            definition: status.definition,
            sites: status.sites,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn definition(json: serde_json::Value) -> Result<ProbeDefinition, Problem> {
        let request: ProbeRequest = serde_json::from_value(json).expect("the wire's form");
        request.try_into()
    }

    #[test]
    fn addresses_are_text_or_numbers() {
        let text = definition(json!({"addr": "0xffffffff81000000"})).unwrap();
        assert_eq!(text.addr, Some(Gva(0xffff_ffff_8100_0000)));
        let number = definition(json!({"addr": 4096, "args": ["a=%di"]})).unwrap();
        assert_eq!((number.addr, number.args.len()), (Some(Gva(4096)), 1));
        for wrong in ["ff", "0x", "0x+1", "0x1g", "-1", ""] {
            let problem = definition(json!({"addr": wrong})).unwrap_err();
            assert_eq!((problem.status, problem.code), (422, "EINVAL"), "{wrong}");
        }
    }

    #[test]
    fn a_wrong_argument_keeps_its_column_and_identifier() {
        let problem = definition(json!({"symbol_name": "f", "args": ["a=%zz"]})).unwrap_err();
        assert_eq!((problem.id, problem.position), (Some("BAD_REG_NAME"), Some(2)));
        let problem = definition(json!({"symbol_name": "f", "filter": "a = 1"})).unwrap_err();
        assert_eq!((problem.id, problem.position), (Some("INVALID_OP"), Some(2)));
    }

    #[test]
    fn a_return_probe_has_its_own_fields() {
        let json = json!({"kind": "r", "symbol_name": "f", "maxactive": 7, "return_mode": "site",
            "args": ["$retval"], "actions": ["stack", {"set_reg": {"reg": "ax", "value": -1}}]});
        let probe = definition(json).unwrap();
        assert_eq!((probe.kind, probe.maxactive), (ProbeKind::Kretprobe, Some(7)));
        assert_eq!((probe.return_mode, probe.actions.len()), (ReturnMode::Site, 2));
        assert_eq!(probe.args[0].body, exoprobe_probes::Fetch::ReturnValue);
        let plain = definition(json!({"symbol_name": "f"})).unwrap();
        assert_eq!((plain.maxactive, plain.return_mode), (None, ReturnMode::Trampoline));
        assert!(plain.actions.is_empty());
    }

    #[test]
    fn statuses_read_as_the_engine_has_them() {
        let mut status = exoprobe_probes::ProbeStatus {
            id: 1,
            kind: ProbeKind::Kretprobe,
            group: "kprobes".to_owned(),
            event: "e".to_owned(),
            symbol_name: None,
            offset: 0,
            addr: Some(Gva(0x1000)),
            enabled: false,
            triggers: 0,
            state: ProbeState::Disabled,
            flags: vec![StatusFlag::Disabled],
            reason: None,
            unoptimized_reason: Some("rule: text".to_owned()),
            hits: 5,
            nmissed: 2,
            recorded: 3,
            filtered: 1,
            lost: 1,
            maxactive: Some(10),
            active: Some(4),
            latency: Some(exoprobe_probes::Latency {
                calls: 3,
                total_ns: 12,
                max_ns: 5,
                buckets: vec![0, 1, 2],
            }),
            return_mode: Some(ReturnMode::Site),
            actions: vec![exoprobe_probes::Action::Return(1)],
            filter: Some("a == 0x1".to_owned()),
            instruction: Some("nop".to_owned()),
            displaced: Some(DisplacedBy::Boost),
            definition: "r:kprobes/e 0x1000".to_owned(),
            sites: 2,
        };
        let mut engine = serde_json::to_value(&status).unwrap();
        engine["optimized"] = json!(false);
        assert_eq!(serde_json::to_value(ProbeStatus::from(status.clone())).unwrap(), engine);
        status.flags = vec![StatusFlag::Optimized];
        assert!(ProbeStatus::from(status.clone()).optimized);
        (status.addr, status.instruction, status.displaced) = (None, None, None);
        (status.flags, status.reason) = (vec![StatusFlag::Pending], Some("why".to_owned()));
        let mut engine = serde_json::to_value(&status).unwrap();
        engine["optimized"] = json!(false);
        assert_eq!(serde_json::to_value(ProbeStatus::from(status)).unwrap(), engine);
        assert_eq!((&engine["addr"], &engine["flags"]), (&json!(null), &json!(["PENDING"])));
    }
}
