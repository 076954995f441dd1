//! The last events, by sequence number.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::sync::watch;

/// One hit of one probe.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    /// Position among all events since the service started, from 1.
    pub seq: u64,
    /// Guest seconds since boot.
    pub time: f64,
    /// vCPU that hit.
    pub vcpu: u8,
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
    /// Values asked for, by name, as hexadecimal text, in the definition's order; `(fault)` where
    /// memory could not be read.
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

struct Kept {
    events: VecDeque<Arc<Event>>,
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
        let kept = Kept { events: VecDeque::new(), next: 1 };
        Self { kept: Mutex::new(kept), capacity: capacity.max(1), latest: watch::Sender::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends events in order; `make` is given each one's sequence number.
    pub(crate) fn append<T>(&self, batch: Vec<T>, mut make: impl FnMut(u64, T) -> Event) {
        if batch.is_empty() {
            return;
        }
        let mut kept = self.lock();
        for item in batch {
            let event = make(kept.next, item);
            kept.next += 1;
            if kept.events.len() == self.capacity {
                kept.events.pop_front();
            }
            kept.events.push_back(Arc::new(event));
        }
        self.latest.send_replace(kept.next - 1);
    }

    /// Up to `max` events from sequence number `from` on (0 and 1 both mean the first).
    #[must_use]
    pub fn read(&self, from: u64, max: usize) -> EventPage {
        let kept = self.lock();
        let first = kept.next - kept.events.len() as u64;
        let from = from.clamp(1, kept.next);
        let start = from.max(first);
        let skip = usize::try_from(start - first).expect("at most the capacity");
        let events: Vec<_> = kept.events.iter().skip(skip).take(max).cloned().collect();
        EventPage { next: start + events.len() as u64, lost: start - from, events }
    }

    /// Sequence number of the last event, as it changes; 0 before the first.
    #[must_use]
    pub fn latest(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(seq: u64) -> Event {
        Event {
            seq,
            time: 0.0,
            vcpu: 0,
            group: "kprobes".into(),
            event: "e".into(),
            symbol_name: None,
            offset: 0,
            addr: "0x0".into(),
            ret_addr: None,
            args: serde_json::Map::new(),
            stack: None,
        }
    }

    #[test]
    fn a_reader_that_falls_behind_is_told_what_it_lost() {
        let store = EventStore::new(4);
        store.append(vec![(); 10], |seq, ()| event(seq));
        let page = store.read(1, 100);
        assert_eq!(page.lost, 6);
        assert_eq!(page.events.iter().map(|e| e.seq).collect::<Vec<_>>(), [7, 8, 9, 10]);
        assert_eq!(page.next, 11);
        let resumed = store.read(9, 1);
        assert_eq!((resumed.lost, resumed.events[0].seq, resumed.next), (0, 9, 10));
        assert_eq!(store.read(11, 5).events.len(), 0);
        assert_eq!(store.read(u64::MAX, 5).next, 11, "the future starts with the next event");
        assert_eq!(*store.latest().borrow(), 10);
    }
}
