//! Events as readers see them.

use std::sync::Arc;

use serde::Serialize;

/// One hit of one probe.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    /// Position among all events since the service started, from 1.
    pub seq: u64,
    /// Guest seconds since boot.
    pub time: f64,
    /// vCPU that hit.
    pub vcpu: u8,
    /// Number of the thread that was current; absent where the kernel does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comm: Option<String>,
    /// Group of the probe's event.
    pub group: Arc<str>,
    /// Name of the probe's event.
    pub event: Arc<str>,
    /// Function probed; absent outside all symbols.
    pub symbol_name: Option<Arc<str>>,
    /// Bytes from the function's start.
    pub offset: u64,
    /// Probed address, as hexadecimal text.
    pub addr: Arc<str>,
    /// Where the function returned to, of a return probe, as hexadecimal text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ret_addr: Option<String>,
    /// How long the call took, of a return probe, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ns: Option<u64>,
    /// Values asked for, by name, in the definition's order: numbers, or, of the types `x8` to `x64`, hexadecimal text;
    /// texts; `(fault)` where memory could not be read.
    pub args: serde_json::Map<String, serde_json::Value>,
    /// Back-trace, where the probe asks for it, the probed place first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<Vec<StackFrame>>,
}

/// One place of a back-trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StackFrame {
    /// The address, as hexadecimal text.
    pub addr: String,
    /// Function it is in; absent outside all symbols.
    pub symbol_name: Option<String>,
    /// Bytes from the function's start.
    pub offset: u64,
}

/// Events from some sequence number on.
#[derive(Clone, Debug, Default)]
pub struct EventPage {
    /// In order of sequence; without a gap where all are selected.
    pub events: Vec<Arc<Event>>,
    /// Sequence number that the page starts at: events before it are lost, or were not asked for.
    pub start: u64,
    /// Sequence number to ask for next.
    pub next: u64,
    /// Events asked for that the store no longer has.
    pub lost: u64,
}

/// Bounds of a page of events.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most events.
    pub events: usize,
    /// Memory of events, in bytes, with which the page is full.
    pub bytes: usize,
    /// Sequence number that the page ends before.
    pub end: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { events: usize::MAX, bytes: usize::MAX, end: u64::MAX }
    }
}
