//! The last events, by sequence number.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::buffer::{Control, Stored, TraceBuffer, TraceReader};
use super::event::{Bounds, EventPage};
use super::hit::Hit;
use super::kept::{EventLimits, KeptHits};
use super::select::EventSelection;
use super::trace::TracePage;

/// Most events that a reader of `trace` takes at once, and most bytes of them.
const PART: (usize, usize) = (1024, 1 << 20);

/// The next step of a store.
pub(crate) enum Step {
    Keep(Hit),
    Control(Control),
}

struct Kept {
    hits: KeptHits,
    /// Sequence number of the next event.
    next: u64,
    /// Sequence number of the first event after [`EventStore::clear`].
    cleared: u64,
    buffer: TraceBuffer,
    snapshot: Option<Arc<TracePage>>,
}

impl Kept {
    /// The trace, and the hits that it is of.
    fn parts(&mut self) -> (&mut TraceBuffer, Stored<'_>) {
        (&mut self.buffer, Stored { hits: self.hits.all(), next: self.next })
    }

    fn stored(&self) -> Stored<'_> {
        Stored { hits: self.hits.all(), next: self.next }
    }

    /// Sequence number of the oldest.
    fn first(&self) -> u64 {
        self.stored().first()
    }

    /// Where a reader that asks from `from` on begins, and the selected hits from there to before
    /// `end`, with their sequence numbers.
    fn selected<'a>(
        &'a self,
        from: u64,
        end: u64,
        selection: &'a EventSelection,
    ) -> (u64, impl Iterator<Item = (u64, &'a Hit)>) {
        let start = from.max(self.first());
        let skip = usize::try_from(start - self.first()).expect("at most the capacity");
        let numbered = (start..end).zip(self.hits.all().iter().skip(skip));
        (start, numbered.filter(|(_, hit)| selection.wants(hit)))
    }

    fn control(&mut self, control: Control) {
        let next = self.next;
        match control {
            Control::On => self.buffer.switch(true, next),
            Control::Off => self.buffer.switch(false, next),
            Control::Snapshot => {
                let (buffer, stored) = self.parts();
                let page = buffer.read(&stored);
                buffer.clear(next);
                self.snapshot = Some(Arc::new(page));
            }
        }
    }
}

/// A bounded store. Readers that fall behind lose their own events and learn how many.
pub struct EventStore {
    kept: Mutex<Kept>,
    latest: watch::Sender<u64>,
}

impl EventStore {
    /// A store of the last events, as many as the limits let it keep.
    #[must_use]
    pub fn new(limits: EventLimits) -> Self {
        let (buffer, snapshot) = (TraceBuffer::default(), None);
        let kept = Kept { hits: KeptHits::new(limits), next: 1, cleared: 1, buffer, snapshot };
        Self { kept: Mutex::new(kept), latest: watch::Sender::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes steps in order; gives how many events came.
    pub(crate) fn append(&self, steps: impl Iterator<Item = Step>) -> usize {
        let mut kept = self.lock();
        let before = kept.next;
        for step in steps {
            match step {
                Step::Control(control) => kept.control(control),
                Step::Keep(hit) => {
                    kept.next += 1;
                    kept.hits.push(hit);
                }
            }
        }
        if kept.next != before {
            self.latest.send_replace(kept.next - 1);
        }
        usize::try_from(kept.next - before).unwrap_or(usize::MAX)
    }

    /// Up to `max` events from sequence number `from` on (0 and 1 both mean the first).
    #[must_use]
    pub fn read(&self, from: u64, max: usize) -> EventPage {
        self.read_selected(from, max, &EventSelection::default())
    }

    /// As [`Self::read`], up to `max` of the events that are selected. Lost ones count whether
    /// selected or not.
    #[must_use]
    pub fn read_selected(&self, from: u64, max: usize, selection: &EventSelection) -> EventPage {
        self.read_part(from, Bounds { events: max, ..Bounds::default() }, selection)
    }

    /// As [`Self::read_selected`], within `bounds`.
    #[must_use]
    pub fn read_part(&self, from: u64, bounds: Bounds, selection: &EventSelection) -> EventPage {
        let (start, lost, next, hits) = self.hits(from, bounds, selection);
        let event = |(seq, hit): (u64, Hit)| Arc::new(hit.origin.event(seq, hit.vcpu, &hit.record));
        let events = hits.into_iter().map(event).collect();
        EventPage { events, start, next, lost }
    }

    /// The end of up to `max` selected events from sequence number `from` on: the number to ask for
    /// next.
    #[must_use]
    pub fn end_of(&self, from: u64, max: usize, selection: &EventSelection) -> u64 {
        let kept = self.lock();
        let from = from.clamp(kept.cleared, kept.next);
        let (start, mut selected) = kept.selected(from, kept.next, selection);
        let Some(before) = max.checked_sub(1) else { return start };
        selected.nth(before).map_or(kept.next, |(seq, _)| seq + 1)
    }

    /// Sequence number from which on there are `count` selected events, or of the oldest where
    /// there are fewer.
    #[must_use]
    pub fn start_of_last(&self, count: usize, selection: &EventSelection) -> u64 {
        let kept = self.lock();
        let Some(before) = count.checked_sub(1) else { return kept.next };
        let newest_first = (kept.first()..kept.next).rev().zip(kept.hits.all().iter().rev());
        let mut selected = newest_first.filter(|(_, hit)| selection.wants(hit));
        selected.nth(before).map_or(kept.first(), |(seq, _)| seq)
    }

    /// Forgets all events, those in `trace` too. Readers do not see these as lost.
    pub fn clear(&self) {
        let mut kept = self.lock();
        let next = kept.next;
        kept.hits.clear();
        kept.cleared = next;
        kept.buffer.clear(next);
    }

    /// Whether events are shown by the tracer's files (`tracing_on`).
    #[must_use]
    pub fn is_tracing(&self) -> bool {
        self.lock().buffer.is_on()
    }

    /// The tracer's files show events from here on, or do not.
    pub fn set_tracing(&self, on: bool) {
        self.lock().control(if on { Control::On } else { Control::Off });
    }

    /// Empties the file `trace`.
    pub fn clear_trace(&self) {
        let mut kept = self.lock();
        let next = kept.next;
        kept.buffer.clear(next);
    }

    /// A reader of what the file `trace` shows now.
    #[must_use]
    pub fn open_trace(&self) -> TraceReader {
        let mut kept = self.lock();
        let (buffer, stored) = kept.parts();
        buffer.open(&stored)
    }

    /// Reads the next events of the file `trace`; `None` at the end.
    pub fn next_part(&self, reader: &mut TraceReader) -> Option<TracePage> {
        while let Some((from, end)) = reader.next_span() {
            let run = self.lock().stored().run(from, Some(end), PART.0, PART.1);
            let page = TracePage { runs: vec![run], written: 0 };
            if reader.advance(&page) {
                return Some(page);
            }
        }
        None
    }

    /// Takes up to `max` events from the file `trace_pipe`: no other reader sees them.
    #[must_use]
    pub fn take_trace(&self, max: usize) -> TracePage {
        let mut kept = self.lock();
        let (buffer, stored) = kept.parts();
        buffer.take(&stored, max)
    }

    /// Events of the file `snapshot`; `None` where there is none.
    #[must_use]
    pub fn snapshot(&self) -> Option<Arc<TracePage>> {
        self.lock().snapshot.clone()
    }

    /// Takes what `trace` shows into the snapshot: that begins anew.
    pub fn take_snapshot(&self) {
        self.lock().control(Control::Snapshot);
    }

    /// Forgets the snapshot.
    pub fn free_snapshot(&self) {
        self.lock().snapshot = None;
    }

    /// Selected hits from `from` on, with their sequence numbers; and where that is, how many
    /// before are lost, and where to go on.
    fn hits(
        &self,
        from: u64,
        bounds: Bounds,
        selection: &EventSelection,
    ) -> (u64, u64, u64, Vec<(u64, Hit)>) {
        let kept = self.lock();
        let from = from.clamp(kept.cleared, kept.next);
        let end = bounds.end.min(kept.next);
        let (start, selected) = kept.selected(from, end, selection);
        if bounds.events == 0 {
            return (start, start - from, start, Vec::new());
        }
        let (mut hits, mut bytes) = (Vec::new(), 0);
        for (seq, hit) in selected {
            bytes += hit.bytes();
            hits.push((seq, hit.clone()));
            // A full page may have more after it.
            if hits.len() == bounds.events || bytes >= bounds.bytes {
                return (start, start - from, seq + 1, hits);
            }
        }
        (start, start - from, end.max(start), hits)
    }

    /// Sequence number of the last event, as it changes; 0 before the first.
    #[must_use]
    pub fn latest(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use exoprobe_guest::{GuestClock, Gva};
    use exoprobe_introspect::TaskId;

    use super::super::origin::Origin;
    use super::super::ring::{Record, TextPlace};
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
        let store = EventStore::new(EventLimits { count: 4, ..EventLimits::default() });
        assert_eq!(store.append(hits(10).map(Step::Keep)), 10);
        assert_eq!(store.append(std::iter::empty()), 0);
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

    fn keep(store: &EventStore, count: usize) {
        store.append(hits(count).map(Step::Keep));
    }

    #[test]
    fn selected_events_are_pages_without_the_others() {
        let store = EventStore::new(EventLimits { count: 10, ..EventLimits::default() });
        // Of task 1, 2, 3, 1, 2, 3, ...
        let of_task = |(number, mut hit): (u32, Hit)| {
            hit.record.task =
                Some(TaskId { pid: 1 + number % 3, comm: *b"some_task\0\0\0\0\0\0\0" });
            Step::Keep(hit)
        };
        store.append((0..).zip(hits(12)).map(of_task));
        let selection = EventSelection { pid: Some(2), ..EventSelection::default() };
        let numbers = |page: &EventPage| page.events.iter().map(|e| e.seq).collect::<Vec<_>>();
        let page = store.read_selected(1, 2, &selection);
        assert_eq!((numbers(&page), page.start, page.next, page.lost), (vec![5, 8], 3, 9, 2));
        let rest = store.read_selected(page.next, 2, &selection);
        assert_eq!((numbers(&rest), rest.next, rest.lost), (vec![11], 13, 0));
        assert_eq!(store.start_of_last(2, &selection), 8);
        assert_eq!(
            (store.start_of_last(99, &selection), store.start_of_last(0, &selection)),
            (3, 13)
        );
        let none = EventSelection { comm: Some("other*".to_owned()), ..EventSelection::default() };
        assert_eq!(store.read_selected(1, 5, &none).next, 13);
        let comm = EventSelection { comm: Some("some*".to_owned()), ..EventSelection::default() };
        assert_eq!(store.read_selected(1, 99, &comm).events.len(), 10);
    }

    #[test]
    fn events_are_bounded_in_bytes_and_the_oldest_go() {
        let bytes = 64 << 10;
        let store = EventStore::new(EventLimits { bytes, ..EventLimits::default() });
        let large = |mut hit: Hit| {
            hit.record.text = vec![b'x'; 1000].into();
            Step::Keep(hit)
        };
        store.append(hits(500).map(large));
        let page = store.read(1, 1000);
        let kept = page.events.len();
        assert!((40..=64).contains(&kept), "{kept} of more than 1,000 bytes");
        assert_eq!((page.lost, page.next), (500 - kept as u64, 501));
        // Each of another probe: what a probe's events have in common counts as well.
        let stranger = |number: usize| {
            let mut hit = hits(1).next().unwrap();
            let fields = vec![field("a"); number];
            Arc::get_mut(&mut hit.origin).unwrap().fields = fields.into();
            Step::Keep(hit)
        };
        store.append((0..500).map(|_| stranger(50)));
        assert!(store.read(1, 1000).events.len() < 20);
        store.append(hits(500).map(Step::Keep));
        let small = store.read(1, 1000).events.len();
        assert!(small > 64, "room is used again: {small}");
        // One that is larger than all is kept, alone.
        let huge = |mut hit: Hit| {
            hit.record.text = vec![b'x'; bytes].into();
            Step::Keep(hit)
        };
        store.append(hits(1).map(huge));
        assert_eq!(store.read(1, 1000).events.len(), 1);
    }

    #[test]
    fn a_page_ends_by_bytes_and_by_number() {
        let store = EventStore::new(EventLimits::default());
        keep(&store, 100);
        let all = EventSelection::default();
        let part = |from, bounds| store.read_part(from, bounds, &all);
        let page = part(1, Bounds { bytes: 1, ..Bounds::default() });
        assert_eq!((page.events.len(), page.next), (1, 2), "one at least");
        let page = part(10, Bounds { end: 15, ..Bounds::default() });
        assert_eq!((page.events.len(), page.next), (5, 15));
        assert_eq!((store.end_of(1, 7, &all), store.end_of(1, 1000, &all)), (8, 101));
        assert_eq!(store.end_of(5, 0, &all), 5);
    }

    #[test]
    fn cleared_events_are_not_lost_ones() {
        let store = EventStore::new(EventLimits { count: 4, ..EventLimits::default() });
        keep(&store, 6);
        store.clear();
        let page = store.read(1, 9);
        assert_eq!((page.events.len(), page.start, page.next, page.lost), (0, 7, 7, 0));
        assert_eq!(trace(&store), (0, 0, 0));
        keep(&store, 6);
        let page = store.read(1, 9);
        assert_eq!((page.events.len(), page.start, page.lost), (4, 9, 2));
    }

    /// Events, events written, and runs that are lost.
    fn shown(page: &TracePage) -> (usize, u64, usize) {
        let lost = page.runs().filter(|(lost, _)| *lost > 0).count();
        let events: usize = page.runs().map(|(_, events)| events.count()).sum();
        assert_eq!(page.events(), events as u64);
        (events, page.written(), lost)
    }

    /// The same of the file `trace`, as its readers see it.
    fn trace(store: &EventStore) -> (usize, u64, usize) {
        let mut reader = store.open_trace();
        let parts = std::iter::from_fn(|| store.next_part(&mut reader));
        let (events, lost) = parts.fold((0, 0), |sum, page| {
            let (events, _, lost) = shown(&page);
            (sum.0 + events, sum.1 + lost)
        });
        assert_eq!(reader.events, events as u64);
        (events, reader.written, lost)
    }

    #[test]
    fn the_trace_shows_what_came_while_it_was_on() {
        let store = EventStore::new(EventLimits { count: 16, ..EventLimits::default() });
        keep(&store, 2);
        store.set_tracing(false);
        keep(&store, 5);
        store.set_tracing(true);
        keep(&store, 3);
        assert!(store.is_tracing());
        assert_eq!(trace(&store), (5, 5, 0));
        assert_eq!(shown(&store.take_trace(3)), (3, 0, 0));
        assert_eq!(trace(&store), (2, 5, 0));
        assert_eq!(shown(&store.take_trace(9)), (2, 0, 0));
        assert_eq!(shown(&store.take_trace(9)), (0, 0, 0));
        keep(&store, 20);
        assert_eq!(trace(&store), (16, 5 + 20, 1), "four are lost");
        store.clear_trace();
        assert_eq!(trace(&store), (0, 0, 0));
        assert_eq!(store.read(1, 100).events.len(), 16, "other readers have theirs");
    }

    #[test]
    fn a_snapshot_has_the_trace_and_the_trace_begins_anew() {
        let store = EventStore::new(EventLimits { count: 4, ..EventLimits::default() });
        assert!(store.snapshot().is_none());
        let control = |control| std::iter::once(Step::Control(control));
        let hit = |count| hits(count).map(Step::Keep);
        let steps = hit(3).chain(control(Control::Snapshot)).chain(hit(2));
        assert_eq!(store.append(steps.chain(control(Control::Off)).chain(hit(1))), 6);
        assert!(!store.is_tracing());
        assert_eq!(shown(&store.snapshot().unwrap()), (3, 3, 0));
        assert_eq!(trace(&store), (2, 2, 0));
        store.append(control(Control::On).chain(hit(9)));
        assert_eq!(shown(&store.snapshot().unwrap()), (3, 3, 0), "it stays as it was");
        store.take_snapshot();
        assert_eq!(trace(&store), (0, 0, 0));
        store.free_snapshot();
        assert!(store.snapshot().is_none());
    }
}
