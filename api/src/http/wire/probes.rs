//! Probes.

use exoprobe_guest::Gva;
use exoprobe_probes::definition::Flag;
use exoprobe_probes::{
    ProbeDefinition, ProbeError, ProbeKind, ProbeStatus, Registration, ReturnMode,
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
    /// Name of its event; made up from the place when absent. Of a pattern, a `*` in it becomes the
    /// function's name.
    #[schema(example = "getpid", pattern = "^[A-Za-z_*][A-Za-z0-9_*]{0,62}$")]
    pub event: Option<String>,
    /// Function to probe. With `*` (any run of characters) or `?` (any one) it is a pattern, which
    /// stands for a probe of each function that matches.
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

/// Probes that were registered: one for an object, else an array; of definitions among which there
/// are patterns, and of a dry run, a report.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Registered {
    /// One.
    One(Box<ProbeStatus>),
    /// Several, in order.
    Many(Vec<ProbeStatus>),
    /// With those that were left out.
    Report(ProbeReport),
}

/// Probes of definitions among which there are patterns.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ProbeReport {
    /// The probes that were registered, in order; in a dry run, those that would be, with `id` 0.
    pub probes: Vec<ProbeStatus>,
    /// Probes of patterns that were left out, or would be.
    pub refused: Vec<RefusedProbe>,
}

/// A probe of a pattern that was left out.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RefusedProbe {
    /// The definition that is the pattern, from 0.
    pub index: usize,
    /// Its place, as a definition has it.
    #[schema(example = "vfs_read")]
    pub place: String,
    /// The rule by which it was refused, in one word. Stable.
    #[schema(value_type = String, example = "blacklist")]
    pub rule: &'static str,
    /// As in a problem document.
    #[schema(value_type = String, example = "EOPNOTSUPP")]
    pub code: &'static str,
    /// The reason.
    pub detail: String,
}

impl RefusedProbe {
    /// The refusal of the probe at `place`, of definition `index`.
    #[must_use]
    pub fn new(index: usize, place: String, error: &ProbeError) -> Self {
        let (rule, code, detail) = (error.rule(), error.code(), error.to_string());
        Self { index, place, rule, code, detail }
    }
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

/// A change of several probes.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProbesChange {
    /// Their names, each `EVENT` or `GROUP/EVENT`, where `*` and `?` may stand for characters.
    #[schema(example = json!(["getpid", "vfs/*"]))]
    pub names: Vec<String>,
    /// Armed or not.
    pub enabled: bool,
}

/// Probes of one name that were asked to be changed.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Changed {
    /// The name, as it was given.
    pub name: String,
    /// All probes that it stands for; empty where there is none.
    pub probes: Vec<ProbeStatus>,
}

/// A probe that was asked to be removed.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Unregistered {
    /// Its name, as it was given.
    pub name: String,
    /// Its address (as linked, if the kernel had not begun), of several the first one's; null where
    /// there was no such probe.
    pub addr: Option<Hex>,
    /// How many were removed.
    pub count: usize,
}

impl Unregistered {
    /// Result for the probes called `name`.
    #[must_use]
    pub fn new(name: String, removed: &[Registration]) -> Self {
        let addr = removed.first().map(|probe| Hex(probe.addr.unwrap_or_default().0));
        Self { name, addr, count: removed.len() }
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
}
