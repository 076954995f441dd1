//! Events as readers see them.

use std::sync::Arc;

use serde::Serialize;

/// One hit of one probe.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Position among all events since the service started, from 1.
    pub seq: u64,
    /// Guest seconds since boot.
    pub time: f64,
    /// vCPU that hit.
    pub vcpu: u8,
    /// Number of the current thread; absent if the location of the current task is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(example = 61))]
    pub pid: Option<u32>,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(example = "sh"))]
    pub comm: Option<String>,
    /// Group of the probe's event.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub group: Arc<str>,
    /// Name of the probe's event.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub event: Arc<str>,
    /// Function probed; null outside all symbols.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub symbol_name: Option<Arc<str>>,
    /// Bytes from the function's start.
    pub offset: u64,
    /// Probed address, as hexadecimal text.
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "0xffffffff81000000"))]
    pub addr: Arc<str>,
    /// For a return probe: the address to which the function returned, as hexadecimal text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(example = "0xffffffff81000000"))]
    pub ret_addr: Option<String>,
    /// For a return probe: duration of the call, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(example = 1250))]
    pub duration_ns: Option<u64>,
    /// Values of the arguments, by name, in the definition's order: numbers, hexadecimal text, text
    /// or arrays, by their types; `(fault)` if memory could not be read.
    #[cfg_attr(
        feature = "schema",
        schema(value_type = Object, example = json!({"fd": "0x3"}))
    )]
    pub args: serde_json::Map<String, serde_json::Value>,
    /// Back-trace, if the probe records it; the probed place first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<Vec<StackFrame>>,
}

/// One place of a back-trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StackFrame {
    /// The address, as hexadecimal text.
    #[cfg_attr(feature = "schema", schema(example = "0xffffffff81000000"))]
    pub addr: String,
    /// Function it is in; null outside all symbols.
    pub symbol_name: Option<String>,
    /// Bytes from the function's start.
    pub offset: u64,
}

/// Events from some sequence number on.
#[derive(Clone, Debug, Default)]
pub struct EventPage {
    /// In order of sequence; without a gap where all are selected.
    pub events: Vec<Arc<Event>>,
    /// Sequence number of the page's start: earlier events are lost, or were not requested.
    pub start: u64,
    /// Sequence number for the next request.
    pub next: u64,
    /// Number of requested events that the store no longer has.
    pub lost: u64,
}

/// Bounds of a page of events.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most events.
    pub events: usize,
    /// Most memory of events, in bytes: the page is full when they reach it.
    pub bytes: usize,
    /// Sequence number that the page ends before.
    pub end: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { events: usize::MAX, bytes: usize::MAX, end: u64::MAX }
    }
}
