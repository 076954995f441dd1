//! Events.

use serde::Serialize;
use utoipa::ToSchema;

/// A line of events: a hit, or a gap before the hit that follows.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum EventLine<'a> {
    /// A hit.
    Hit(Event<'a>),
    /// Events that this reader cannot have any more.
    Lost(Lost),
}

/// A server-sent event, by its fields.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "only its schema is used: the fields are text of a stream")]
pub struct ServerSentEvent<'a> {
    /// Sequence number of a hit, for `Last-Event-ID`; absent of a gap.
    pub id: Option<u64>,
    /// Kind of `data`.
    pub event: EventName,
    /// As JSON text, in one line.
    pub data: EventLine<'a>,
}

/// Name of a server-sent event.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EventName {
    /// `data` is an `Event`.
    Hit,
    /// `data` is a `Lost`.
    Lost,
}

/// One hit of one probe.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Event<'a> {
    /// Position among all events since the service started, from 1.
    pub seq: u64,
    /// Guest seconds since boot.
    pub time: f64,
    /// vCPU that hit.
    pub vcpu: u8,
    /// Number of the thread that was current; absent where the kernel does not show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 61)]
    pub pid: Option<u32>,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "sh")]
    pub comm: Option<&'a str>,
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
    /// Where the function returned to, of a return probe, as hexadecimal text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "0xffffffff81000000")]
    pub ret_addr: Option<&'a str>,
    /// How long the call took, of a return probe, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 1250)]
    pub duration_ns: Option<u64>,
    /// Values asked for, by name, in the definition's order: numbers, hexadecimal text, text or
    /// arrays, as their types say; `(fault)` where memory could not be read.
    #[schema(value_type = Object, example = json!({"fd": "0x3"}))]
    pub args: &'a serde_json::Map<String, serde_json::Value>,
    /// Back-trace, where the probe asks for it; the probed place first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<Vec<StackFrame<'a>>>,
}

/// One place of a back-trace.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StackFrame<'a> {
    /// The address, as hexadecimal text.
    #[schema(example = "0xffffffff81000000")]
    pub addr: &'a str,
    /// Function it is in; null outside all symbols.
    pub symbol_name: Option<&'a str>,
    /// Bytes from the function's start.
    pub offset: u64,
}

impl<'a> From<&'a exoprobe_probes::Event> for Event<'a> {
    fn from(event: &'a exoprobe_probes::Event) -> Self {
        let frames = |stack: &'a Vec<exoprobe_probes::StackFrame>| {
            stack.iter().map(StackFrame::from).collect()
        };
        Self {
            seq: event.seq,
            time: event.time,
            vcpu: event.vcpu,
            pid: event.pid,
            comm: event.comm.as_deref(),
            group: &event.group,
            event: &event.event,
            symbol_name: event.symbol_name.as_deref(),
            offset: event.offset,
            addr: &event.addr,
            ret_addr: event.ret_addr.as_deref(),
            duration_ns: event.duration_ns,
            args: &event.args,
            stack: event.stack.as_ref().map(frames),
        }
    }
}

impl<'a> From<&'a exoprobe_probes::StackFrame> for StackFrame<'a> {
    fn from(frame: &'a exoprobe_probes::StackFrame) -> Self {
        let symbol_name = frame.symbol_name.as_deref();
        Self { addr: &frame.addr, symbol_name, offset: frame.offset }
    }
}

/// In a stream of events: some were gone before this reader asked for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Lost {
    /// How many.
    pub lost: u64,
    /// Sequence number of the event that follows the gap.
    pub next: u64,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_read_as_the_engine_has_them() {
        let mut event = exoprobe_probes::Event {
            seq: 1,
            time: 0.5,
            vcpu: 0,
            pid: None,
            comm: None,
            group: "kprobes".into(),
            event: "e".into(),
            symbol_name: Some("f".into()),
            offset: 4,
            addr: "0x1000".into(),
            ret_addr: None,
            duration_ns: None,
            args: serde_json::Map::from_iter([("a".to_owned(), json!("0x1"))]),
            stack: None,
        };
        let engine = serde_json::to_value(&event).unwrap();
        assert_eq!(serde_json::to_value(Event::from(&event)).unwrap(), engine);
        (event.pid, event.comm) = (Some(7), Some("sh".to_owned()));
        (event.ret_addr, event.duration_ns) = (Some("0x2000".to_owned()), Some(9));
        let symbol_name = Some("g".to_owned());
        let frame = exoprobe_probes::StackFrame { addr: "0x3".to_owned(), symbol_name, offset: 5 };
        event.stack = Some(vec![frame]);
        let engine = serde_json::to_value(&event).unwrap();
        assert_eq!(serde_json::to_value(Event::from(&event)).unwrap(), engine);
        assert_eq!(engine["stack"][0]["offset"], 5);
    }
}
