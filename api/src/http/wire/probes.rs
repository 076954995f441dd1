//! Probes and their events.

use exoprobe_probes::definition::{Flag, ProbeKind};
use exoprobe_probes::{DisplacedBy, ProbeDefinition, ProbeError};
use exoprobe_vmm::Gva;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Hex;
use crate::http::Problem;

/// A probe to register. Exactly one of `symbol_name` and `addr` is to be given.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProbeRequest {
    /// `k`, a kprobe.
    #[serde(default)]
    #[schema(value_type = String, example = "k")]
    pub kind: ProbeKind,
    /// Group of its event; `kprobes` when absent.
    pub group: Option<String>,
    /// Name of its event; made up from the place when absent.
    #[schema(example = "getpid")]
    pub event: Option<String>,
    /// Function to probe.
    #[schema(example = "__x64_sys_getpid")]
    pub symbol_name: Option<String>,
    /// Bytes from the symbol's start.
    #[serde(default)]
    pub offset: u64,
    /// Guest-virtual address.
    pub addr: Option<Address>,
    /// `DISABLED` to register it unarmed.
    #[serde(default)]
    #[schema(value_type = Vec<String>, example = json!([]))]
    pub flags: Vec<Flag>,
    /// Values to record with each hit, each `[NAME=]%REG`.
    #[serde(default)]
    #[schema(example = json!(["fd=%di"]))]
    pub args: Vec<String>,
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
    Text(String),
}

impl TryFrom<Address> for Gva {
    type Error = Problem;
    fn try_from(address: Address) -> Result<Self, Problem> {
        let text = match address {
            Address::Number(number) => return Ok(Self(number)),
            Address::Text(text) => text,
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
        let ProbeRequest { kind, group, event, symbol_name, offset, addr, flags, args } = request;
        let addr = addr.map(Gva::try_from).transpose()?;
        let args = args.iter().map(|arg| arg.parse().map_err(ProbeError::Syntax));
        let args = args.collect::<Result<_, _>>()?;
        Ok(Self { kind, group, event, symbol_name, offset, addr, flags, args })
    }
}

/// What to change of a probe.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProbeChange {
    /// Armed or not.
    pub enabled: bool,
}

/// A registered probe and its books: `hits = recorded + filtered + lost`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ProbeStatus {
    /// Number of the probe, never used again.
    pub id: u32,
    /// `k`, a kprobe.
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
    /// Address of the probed instruction.
    pub addr: Hex,
    /// `DISABLED` when it is.
    #[schema(value_type = Vec<String>)]
    pub flags: Vec<Flag>,
    /// Times the guest hit it while it was enabled.
    pub hits: u64,
    /// Hits whose handler could not run.
    pub nmissed: u64,
    /// Hits that became events.
    pub recorded: u64,
    /// Hits that its filter dropped.
    pub filtered: u64,
    /// Hits whose event found no room.
    pub lost: u64,
    /// The probed instruction.
    pub instruction: String,
    /// How it runs: `emulation`, `boost` or `step`.
    #[schema(value_type = String, example = "boost")]
    pub displaced: DisplacedBy,
    /// The guest changed its text there, so the probe is not armed any more.
    pub clobbered: bool,
    /// The definition as a line of kprobe_events.
    pub definition: String,
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
            addr: Hex(status.addr.0),
            flags: status.flags,
            hits: status.hits,
            nmissed: status.nmissed,
            recorded: status.recorded,
            filtered: status.filtered,
            lost: status.lost,
            instruction: status.instruction,
            displaced: status.displaced,
            clobbered: status.clobbered,
            definition: status.definition,
        }
    }
}

/// One hit of one probe.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Event<'a> {
    /// Position among all events since the service started, from 1.
    pub seq: u64,
    /// Guest seconds since boot.
    pub time: f64,
    /// vCPU that hit.
    pub vcpu: u8,
    /// Group of the probe's event.
    pub group: &'a str,
    /// Name of the probe's event.
    pub event: &'a str,
    /// Function probed; null outside all symbols.
    pub symbol_name: Option<&'a str>,
    /// Bytes from the function's start.
    pub offset: u64,
    /// Probed address, as hexadecimal text.
    #[schema(example = "0xffffffff81000000")]
    pub addr: &'a str,
    /// Values asked for, by name, as hexadecimal text, in the definition's order.
    #[schema(value_type = Object, example = json!({"fd": "0x3"}))]
    pub args: &'a serde_json::Map<String, serde_json::Value>,
}

impl<'a> From<&'a exoprobe_probes::Event> for Event<'a> {
    fn from(event: &'a exoprobe_probes::Event) -> Self {
        Self {
            seq: event.seq,
            time: event.time,
            vcpu: event.vcpu,
            group: &event.group,
            event: &event.event,
            symbol_name: event.symbol_name.as_deref(),
            offset: event.offset,
            addr: &event.addr,
            args: &event.args,
        }
    }
}

/// In a stream of events: some were gone before this reader asked for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Lost {
    /// How many.
    pub lost: u64,
    /// Sequence number of the event that follows the gap.
    pub next: u64,
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
    }

    #[test]
    fn statuses_and_events_read_as_the_engine_has_them() {
        let status = exoprobe_probes::ProbeStatus {
            id: 1,
            kind: ProbeKind::Kprobe,
            group: "kprobes".to_owned(),
            event: "e".to_owned(),
            symbol_name: None,
            offset: 0,
            addr: Gva(0x1000),
            flags: vec![Flag::Disabled],
            hits: 5,
            nmissed: 0,
            recorded: 4,
            filtered: 0,
            lost: 1,
            instruction: "nop".to_owned(),
            displaced: DisplacedBy::Boost,
            clobbered: false,
            definition: "p:kprobes/e 0x1000".to_owned(),
        };
        let engine = serde_json::to_value(&status).unwrap();
        assert_eq!(serde_json::to_value(ProbeStatus::from(status)).unwrap(), engine);
        let event = exoprobe_probes::Event {
            seq: 1,
            time: 0.5,
            vcpu: 0,
            group: "kprobes".into(),
            event: "e".into(),
            symbol_name: Some("f".into()),
            offset: 4,
            addr: "0x1000".into(),
            args: serde_json::Map::from_iter([("a".to_owned(), json!("0x1"))]),
        };
        let engine = serde_json::to_value(&event).unwrap();
        assert_eq!(serde_json::to_value(Event::from(&event)).unwrap(), engine);
    }
}
