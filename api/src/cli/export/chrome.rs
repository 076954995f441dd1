//! Chrome's trace event format: JSON.
//!
//! Source: "Trace Event Format" of the Chromium project, the object form. It has microseconds, processes and threads.
//! Events tell their thread and not its process, so that each thread stands as a process of its own.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::hit::{Hit, TraceFormat};
use super::tracks::{Track, TrackBy, Tracks};
use crate::cli::format::printable_json;

/// The process that vCPUs, and tasks that are idle, stand below: more than Linux's highest number of a task, 2^22. Their
/// threads count on from there, for some viewers look for a thread by its number alone.
const CPUS: u32 = (1 << 22) + 1;
/// The process that unknown tasks stand below.
const NO_TASK: u32 = CPUS + 4096;
/// The largest number up to which JavaScript, in which viewers are written, has all.
const EXACT: u64 = 1 << 53;

/// Writes Chrome's trace event format.
pub(super) struct Chrome {
    by: TrackBy,
    tracks: Tracks,
    /// An event was written: a comma stands before the next.
    some: bool,
}

/// A call, from its begin on; an event that has no duration; or metadata.
#[derive(Serialize)]
struct TraceEvent<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'a str>,
    ph: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: u32,
    /// How high it is drawn: in its thread, or over all.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'a str>,
    args: Map<String, Value>,
}

impl Chrome {
    pub(super) fn new(by: TrackBy) -> Self {
        Self { by, tracks: Tracks::default(), some: false }
    }

    fn event(&mut self, event: &TraceEvent<'_>, out: &mut dyn Write) -> io::Result<()> {
        let separator = if self.some { ",\n" } else { "\n" };
        self.some = true;
        write!(out, "{separator}{}", printable_json(&serde_json::to_string(event)?))
    }

    /// Names a track, and its process.
    fn describe(&mut self, track: &Track, out: &mut dyn Write) -> io::Result<()> {
        let (pid, tid) = ids(track);
        let process = match track {
            Track::Task { comm, .. } => comm,
            Track::Idle(_) => "idle",
            Track::NoTask(_) => "unknown tasks",
            Track::Cpu(_) => self.by.heading(),
        };
        let rank = json!(track.rank());
        for (what, key, value) in [
            ("process_name", "name", json!(process)),
            ("process_sort_index", "sort_index", json!(pid)),
            ("thread_name", "name", json!(track.name())),
            ("thread_sort_index", "sort_index", rank),
        ] {
            let args = Map::from_iter([(key.to_owned(), value)]);
            let metadata = TraceEvent {
                name: what,
                cat: None,
                ph: "M",
                ts: None,
                dur: None,
                pid,
                tid,
                s: None,
                args,
            };
            self.event(&metadata, out)?;
        }
        Ok(())
    }
}

impl TraceFormat for Chrome {
    fn begin(&mut self, out: &mut dyn Write) -> io::Result<()> {
        write!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")
    }

    fn hit(&mut self, hit: &Hit<'_>, out: &mut dyn Write) -> io::Result<()> {
        if self.tracks.number(&hit.track).1 {
            self.describe(&hit.track, out)?;
        }
        let (pid, tid) = ids(&hit.track);
        let mut args = hit.details();
        if let Some(Value::Object(values)) = args.get_mut("args") {
            values.values_mut().for_each(keep_exact);
        }
        let stack: Vec<Value> = hit.stack().map(Value::from).collect();
        if !stack.is_empty() {
            args.insert("stack".to_owned(), Value::Array(stack));
        }
        let event = TraceEvent {
            name: &hit.event.event,
            cat: Some(&hit.event.group),
            ph: if hit.took.is_some() { "X" } else { "i" },
            ts: Some(microseconds(hit.begin())),
            dur: hit.took.map(microseconds),
            pid,
            tid,
            s: hit.took.is_none().then_some("t"),
            args,
        };
        self.event(&event, out)
    }

    fn lost(&mut self, lost: u64, time: u64, out: &mut dyn Write) -> io::Result<()> {
        let event = TraceEvent {
            name: &format!("lost {lost} events"),
            cat: Some("exoprobe"),
            ph: "i",
            ts: Some(microseconds(time)),
            dur: None,
            pid: CPUS,
            tid: CPUS,
            s: Some("g"),
            args: Map::from_iter([("lost".to_owned(), json!(lost))]),
        };
        self.event(&event, out)
    }

    fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\n]}}")
    }
}

/// Process and thread.
fn ids(track: &Track) -> (u32, u32) {
    match track {
        Track::Task { pid, .. } => (*pid, *pid),
        Track::Idle(cpu) | Track::Cpu(cpu) => (CPUS, CPUS.saturating_add(*cpu)),
        Track::NoTask(cpu) => (NO_TASK, NO_TASK.saturating_add(*cpu)),
    }
}

#[expect(clippy::cast_precision_loss, reason = "2^53 nanoseconds are 104 days")]
fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

/// A number that a viewer would round becomes text.
fn keep_exact(value: &mut Value) {
    let magnitude = value.as_u64().or_else(|| value.as_i64().map(i64::unsigned_abs));
    if magnitude.is_some_and(|magnitude| magnitude > EXACT) {
        *value = Value::String(value.to_string());
    }
}
