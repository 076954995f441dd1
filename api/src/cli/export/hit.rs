//! Hits as formats of traces write them.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::tracks::Track;
use crate::cli::event_text::{frame_place, place};
use crate::client::EventRecord;

/// A hit, and what is shown of it beside its record.
pub(super) struct Hit<'a> {
    pub(super) event: &'a EventRecord,
    pub(super) track: Track,
    /// Nanoseconds since the guest was booted.
    pub(super) time: u64,
    /// Nanoseconds of a call that ended then, where those of its track lie within each other.
    pub(super) took: Option<u64>,
    /// Where the function returned to, by name if that is known.
    pub(super) caller: Option<String>,
}

impl Hit<'_> {
    /// When it began.
    pub(super) fn begin(&self) -> u64 {
        self.time.saturating_sub(self.took.unwrap_or(0))
    }

    /// What a viewer shows when the hit is selected. The probe's own values are apart: they may have any name.
    pub(super) fn details(&self) -> Map<String, Value> {
        let event = self.event;
        let addr = &event.addr;
        let mut details = Map::new();
        details.insert("seq".to_owned(), json!(event.seq));
        details.insert("cpu".to_owned(), json!(event.vcpu));
        if let Some(pid) = event.pid {
            details.insert("pid".to_owned(), json!(pid));
        }
        if let Some(comm) = &event.comm {
            details.insert("comm".to_owned(), json!(comm));
        }
        details.insert("group".to_owned(), json!(event.group));
        let place = place(event.symbol_name.as_deref(), event.offset, addr);
        details.insert("place".to_owned(), json!(place));
        if let Some(caller) = self.caller.as_ref().or(event.ret_addr.as_ref()) {
            details.insert("caller".to_owned(), json!(caller));
        }
        if let Some(duration_ns) = event.duration_ns {
            details.insert("duration_ns".to_owned(), json!(duration_ns));
        }
        if !event.args.is_empty() {
            details.insert("args".to_owned(), Value::Object(event.args.clone()));
        }
        details
    }

    /// The back-trace's places, the probed one first.
    pub(super) fn stack(&self) -> impl DoubleEndedIterator<Item = String> {
        let frames = self.event.stack.iter();
        frames.map(frame_place)
    }
}

/// A format of traces.
pub(super) trait TraceFormat {
    /// Writes what stands before all events.
    fn begin(&mut self, out: &mut dyn Write) -> io::Result<()>;
    /// Writes a hit.
    fn hit(&mut self, hit: &Hit<'_>, out: &mut dyn Write) -> io::Result<()>;
    /// Writes that so many events are missing in front of `time`, in nanoseconds.
    fn lost(&mut self, lost: u64, time: u64, out: &mut dyn Write) -> io::Result<()>;
    /// Writes what stands behind all events.
    fn end(&mut self, out: &mut dyn Write) -> io::Result<()>;
}
