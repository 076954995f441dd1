//! The last events, by sequence number.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::sync::watch;

use super::origin::Origin;
use super::ring::Record;

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
    /// In order of sequence, without a gap.
    pub events: Vec<Arc<Event>>,
    /// Sequence number to ask for next.
    pub next: u64,
    /// Events asked for that the store no longer has.
    pub lost: u64,
}

/// Lines of the file `trace`.
#[derive(Clone, Debug, Default)]
pub struct TracePage {
    /// In order of sequence.
    pub text: String,
    /// How many events they tell of.
    pub events: usize,
    /// Sequence number to ask for next.
    pub next: u64,
    /// Events asked for that the store no longer has.
    pub lost: u64,
}

/// A hit that was recorded.
#[derive(Clone)]
pub(crate) struct Hit {
    pub(crate) origin: Arc<Origin>,
    pub(crate) vcpu: u8,
    pub(crate) record: Record,
}

struct Kept {
    hits: VecDeque<Hit>,
    /// Sequence number of the next event.
    next: u64,
}

/// A bounded store. Readers who fall behind lose their own events and are told how many.
pub struct EventStore {
    kept: Mutex<Kept>,
    capacity: usize,
    latest: watch::Sender<u64>,
}

impl EventStore {
    /// A store of the last `capacity` events.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let kept = Kept { hits: VecDeque::new(), next: 1 };
        Self { kept: Mutex::new(kept), capacity: capacity.max(1), latest: watch::Sender::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends hits in order; gives how many.
    pub(crate) fn append(&self, hits: impl Iterator<Item = Hit>) -> usize {
        let mut kept = self.lock();
        let before = kept.next;
        for hit in hits {
            kept.next += 1;
            if kept.hits.len() == self.capacity {
                kept.hits.pop_front();
            }
            kept.hits.push_back(hit);
        }
        if kept.next != before {
            self.latest.send_replace(kept.next - 1);
        }
        usize::try_from(kept.next - before).unwrap_or(usize::MAX)
    }

    /// Up to `max` events from sequence number `from` on (0 and 1 both mean the first).
    #[must_use]
    pub fn read(&self, from: u64, max: usize) -> EventPage {
        let (start, lost, hits) = self.hits(from..u64::MAX, max);
        let event = |(seq, hit): (u64, Hit)| Arc::new(hit.origin.event(seq, hit.vcpu, &hit.record));
        let events: Vec<Arc<Event>> = (start..).zip(hits).map(event).collect();
        EventPage { next: start + events.len() as u64, lost, events }
    }

    /// As [`Self::read`], of sequence numbers in a range, as the lines of the tracer's file `trace`.
    #[must_use]
    pub fn trace(&self, range: Range<u64>, max: usize) -> TracePage {
        let (start, lost, hits) = self.hits(range, max);
        let mut text = String::new();
        for hit in &hits {
            hit.write_line(&mut text).expect("a String takes everything");
        }
        TracePage { text, events: hits.len(), next: start + hits.len() as u64, lost }
    }

    /// Hits of some sequence numbers: that of the first, how many before it are lost, and the hits.
    fn hits(&self, Range { start: from, end }: Range<u64>, max: usize) -> (u64, u64, Vec<Hit>) {
        let kept = self.lock();
        let first = kept.next - kept.hits.len() as u64;
        let from = from.clamp(1, kept.next);
        let start = from.max(first).min(end.max(from));
        let skip = usize::try_from(start.saturating_sub(first)).expect("at most the capacity");
        let max = max.min(usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX));
        let hits = kept.hits.iter().skip(skip).take(max).cloned().collect();
        (start, start - from, hits)
    }

    /// Sequence number of the last event, as it changes; 0 before the first.
    #[must_use]
    pub fn latest(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use exoprobe_vmm::{GuestClock, Gva};

    use super::super::ring::TextPlace;
    use super::*;
    use crate::definition::{Argument, Fetch, ValueType, Width};

    fn field(name: &str) -> Argument {
        let kind = match name {
            "c" => ValueType::Text,
            "d" => ValueType::Signed(Width::Double),
            _ => ValueType::default(),
        };
        Argument { name: name.to_owned(), fetch: Fetch::StackPointer, kind, count: None }
    }

    fn hits(count: usize) -> impl Iterator<Item = Hit> {
        let origin = Arc::new(Origin {
            group: "kprobes".into(),
            event: "e".into(),
            symbol_name: None,
            offset: 0,
            at: Gva(0x10),
            addr: "0x10".into(),
            fields: ["a", "b", "c", "d"].map(field).into(),
            symbols: None,
            clock: GuestClock::default(),
        });
        let record = |number: u64| Record {
            probe: 1,
            time: 0,
            task: None,
            returned: None,
            args: vec![
                Some(number),
                None,
                Some(TextPlace::new(1, 2).unwrap().word()),
                Some(u64::MAX),
            ],
            stack: Vec::new(),
            text: b"atext".as_slice().into(),
        };
        (1..).take(count).map(move |number| {
            let origin = Arc::clone(&origin);
            Hit { origin, vcpu: 0, record: record(number) }
        })
    }

    #[test]
    fn a_reader_that_falls_behind_is_told_what_it_lost() {
        let store = EventStore::new(4);
        assert_eq!(store.append(hits(10)), 10);
        assert_eq!(store.append(hits(0)), 0);
        let page = store.read(1, 100);
        assert_eq!(page.lost, 6);
        assert_eq!(page.events.iter().map(|e| e.seq).collect::<Vec<_>>(), [7, 8, 9, 10]);
        let args: Vec<String> = page.events.iter().map(|e| format!("{:?}", e.args)).collect();
        let expected =
            r#"{"a": String("0xa"), "b": String("(fault)"), "c": String("te"), "d": Number(-1)}"#;
        assert_eq!(args[3], expected);
        assert_eq!(page.next, 11);
        let resumed = store.read(9, 1);
        assert_eq!((resumed.lost, resumed.events[0].seq, resumed.next), (0, 9, 10));
        assert_eq!(store.read(11, 5).events.len(), 0);
        assert_eq!(store.read(u64::MAX, 5).next, 11, "the future starts with the next event");
        assert_eq!(*store.latest().borrow(), 10);
    }

    #[test]
    fn lines_of_a_range_are_of_no_other() {
        let store = EventStore::new(4);
        store.append(hits(10));
        let page = |range, max| {
            let page = store.trace(range, max);
            assert_eq!(page.text.lines().count(), page.events);
            (page.events, page.next, page.lost)
        };
        assert_eq!(page(5..9, 100), (2, 9, 2), "7 and 8");
        assert_eq!(page(8..9, 100), (1, 9, 0));
        assert_eq!(page(1..5, 100), (0, 5, 4));
        assert_eq!(page(9..u64::MAX, 1), (1, 10, 0));
        assert_eq!(page(20..30, 100), (0, 11, 0), "not there yet");
        assert_eq!(page(9..9, 100), (0, 9, 0));
    }
}
