//! The last events, by sequence number, bounded in number and in bytes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use tokio::sync::watch;

use super::buffer::{Control, Stored, TraceBuffer, TraceReader};
use super::event::{Bounds, EventPage};
use super::hit::Hit;
use super::origin::Origin;
use super::per_cpu::CpuStatistics;
use super::select::EventSelection;
use super::trace::{TakenEvent, TracePage, taken_event};
#[cfg(test)]
mod tests;

/// Most events that a reader of `trace` takes at a time, and most bytes of them.
const PART: (usize, usize) = (1024, 1 << 20);

/// The next step of a store.
pub(crate) enum Step {
    Keep(Hit),
    Control(Control),
    /// So many synthetic events were not made of a hit on this vCPU.
    Unmade {
        vcpu: u8,
        count: u64,
    },
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
    /// The trace, with the hits that it refers to.
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

    /// The position at which a reader from `from` on begins, and the selected hits from there to
    /// before `end`, with their sequence numbers.
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

    /// Drops the oldest hits while there are too many.
    fn trim(&mut self) {
        while self.hits.is_too_large() {
            let Some(hit) = self.hits.drop_oldest() else { return };
            self.buffer.dropped(self.first() - 1, hit.vcpu);
        }
    }

    fn control(&mut self, control: Control) {
        let next = self.next;
        match control {
            Control::On => self.buffer.switch(true, next),
            Control::Off => self.buffer.switch(false, next),
            Control::Snapshot => {
                let (buffer, stored) = self.parts();
                let page = buffer.read(&stored, None);
                buffer.clear(next);
                self.snapshot = Some(Arc::new(page));
            }
        }
    }
}

/// A bounded store. A reader that is too slow loses only its own events, and gets their number.
pub struct EventStore {
    kept: Mutex<Kept>,
    latest: watch::Sender<u64>,
    /// Most memory that [`Self::set_memory`] takes.
    memory_max: usize,
}

impl EventStore {
    /// A store of the last events, within the limits.
    #[must_use]
    pub fn new(limits: EventLimits) -> Self {
        let (buffer, snapshot) = (TraceBuffer::default(), None);
        let kept = Kept { hits: KeptHits::new(limits), next: 1, cleared: 1, buffer, snapshot };
        Self { kept: Mutex::new(kept), latest: watch::Sender::new(0), memory_max: limits.bytes }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies steps in order; returns the number of new events.
    pub(crate) fn append(&self, steps: impl Iterator<Item = Step>) -> usize {
        let mut kept = self.lock();
        let before = kept.next;
        for step in steps {
            match step {
                Step::Control(control) => kept.control(control),
                Step::Unmade { vcpu, count } => kept.buffer.note_unmade(vcpu, count),
                Step::Keep(hit) => {
                    kept.next += 1;
                    kept.hits.push(hit);
                    kept.trim();
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

    /// As [`Self::read`], for up to `max` of the selected events. Lost events count whether
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

    /// The end of up to `max` selected events from sequence number `from` on: the number for the
    /// next request.
    #[must_use]
    pub fn end_of(&self, from: u64, max: usize, selection: &EventSelection) -> u64 {
        let kept = self.lock();
        let from = from.clamp(kept.cleared, kept.next);
        let (start, mut selected) = kept.selected(from, kept.next, selection);
        let Some(before) = max.checked_sub(1) else { return start };
        selected.nth(before).map_or(kept.next, |(seq, _)| seq + 1)
    }

    /// Sequence number of the first of the last `count` selected events; of the oldest event if
    /// there are fewer.
    #[must_use]
    pub fn start_of_last(&self, count: usize, selection: &EventSelection) -> u64 {
        let kept = self.lock();
        let Some(before) = count.checked_sub(1) else { return kept.next };
        let newest_first = (kept.first()..kept.next).rev().zip(kept.hits.all().iter().rev());
        let mut selected = newest_first.filter(|(_, hit)| selection.wants(hit));
        selected.nth(before).map_or(kept.first(), |(seq, _)| seq)
    }

    /// Drops all events, also those in `trace`. Readers do not count these as lost.
    pub fn clear(&self) {
        let mut kept = self.lock();
        let next = kept.next;
        kept.hits.clear();
        kept.cleared = next;
        kept.buffer.clear(next);
    }

    /// Returns true if the tracer's files show events (`tracing_on`).
    #[must_use]
    pub fn is_tracing(&self) -> bool {
        self.lock().buffer.is_on()
    }

    /// Begins or ends the showing of events in the tracer's files.
    pub fn set_tracing(&self, on: bool) {
        self.lock().control(if on { Control::On } else { Control::Off });
    }

    /// Empties the file `trace`.
    pub fn clear_trace(&self) {
        let mut kept = self.lock();
        let next = kept.next;
        kept.buffer.clear(next);
    }

    /// A reader of the present content of the file `trace`.
    #[must_use]
    pub fn open_trace(&self) -> TraceReader {
        let mut kept = self.lock();
        let (buffer, stored) = kept.parts();
        buffer.open(&stored)
    }

    /// Reads the next events of the file `trace`; `None` at the end.
    pub fn next_part(&self, reader: &mut TraceReader) -> Option<TracePage> {
        let (mut events, mut bytes) = PART;
        let run = reader.next(&self.lock().stored(), |hit| {
            let has_room = events > 0 && bytes > 0;
            events = events.saturating_sub(1);
            bytes = bytes.saturating_sub(hit.bytes());
            has_room
        })?;
        Some(TracePage { runs: vec![run], written: 0 })
    }

    /// Takes up to `max` events from the file `trace_pipe`, of one vCPU or all: no other reader
    /// sees them.
    #[must_use]
    pub fn take_trace(&self, max: usize, cpu: Option<u8>) -> TracePage {
        let mut left = max;
        if left == 0 {
            return TracePage::default();
        }
        let mut kept = self.lock();
        let (buffer, stored) = kept.parts();
        buffer.take(&stored, cpu, |_| {
            let has_room = left > 0;
            left = left.saturating_sub(1);
            has_room
        })
    }

    /// Takes events of one vCPU from the file `trace`, up to the first that `take` does not take.
    /// It is given the number of events that were lost before, and is called with the store
    /// locked: it must not call the engine.
    pub fn take_each(&self, cpu: u8, mut take: impl FnMut(u64, &TakenEvent<'_>) -> bool) {
        let mut kept = self.lock();
        let mut lost = kept.buffer.lost(cpu);
        let (buffer, stored) = kept.parts();
        let accepts = |hit: &Hit| {
            let is_taken = take(lost, &taken_event(hit));
            lost = 0;
            is_taken
        };
        buffer.take(&stored, Some(cpu), accepts);
    }

    /// The tasks of the hits that are kept, by number, each with its last name.
    #[must_use]
    pub fn tasks(&self) -> BTreeMap<u32, String> {
        let kept = self.lock();
        let tasks = kept.hits.all().iter().filter_map(|hit| hit.record.task);
        tasks.map(|task| (task.pid, task.name())).collect()
    }

    /// The events of one vCPU in the file `trace`.
    #[must_use]
    pub fn trace_of_cpu(&self, cpu: u8) -> TracePage {
        let kept = self.lock();
        kept.buffer.read(&kept.stored(), Some(cpu))
    }

    /// Removes one vCPU's events from the file `trace`.
    pub fn clear_trace_of_cpu(&self, cpu: u8) {
        let mut kept = self.lock();
        let next = kept.next;
        kept.buffer.clear_cpu(cpu, next);
    }

    /// Statistics of one vCPU's events in the file `trace`.
    #[must_use]
    pub fn cpu_statistics(&self, cpu: u8) -> CpuStatistics {
        let kept = self.lock();
        kept.buffer.statistics(&kept.stored(), cpu)
    }

    /// Most memory that the events take, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.lock().hits.limits.bytes
    }

    /// Most memory that [`Self::set_memory`] takes: that of the store's limits.
    #[must_use]
    pub fn memory_max(&self) -> usize {
        self.memory_max
    }

    /// Sets the most memory that the events take, in bytes, and drops the oldest beyond it. Returns
    /// false, and changes nothing, if that is more than [`Self::memory_max`].
    #[must_use]
    pub fn set_memory(&self, bytes: usize) -> bool {
        if bytes > self.memory_max {
            return false;
        }
        self.resize(bytes);
        true
    }

    /// As [`Self::set_memory`], whatever the store's limits are.
    pub(crate) fn resize(&self, bytes: usize) {
        let mut kept = self.lock();
        kept.hits.limits.bytes = bytes;
        kept.trim();
    }

    /// The present limits.
    pub(crate) fn limits(&self) -> EventLimits {
        self.lock().hits.limits
    }

    /// Events of the file `snapshot`; `None` if there is none.
    #[must_use]
    pub fn snapshot(&self) -> Option<Arc<TracePage>> {
        self.lock().snapshot.clone()
    }

    /// Moves the events in `trace` into the snapshot. `trace` begins anew.
    pub fn take_snapshot(&self) {
        self.lock().control(Control::Snapshot);
    }

    /// Drops the snapshot.
    pub fn free_snapshot(&self) {
        self.lock().snapshot = None;
    }

    /// Selected hits from `from` on, with their sequence numbers; also the first number, the number
    /// of lost events before it, and the number for the next request.
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
            // A full page may be followed by more events.
            if hits.len() == bounds.events || bytes >= bounds.bytes {
                return (start, start - from, seq + 1, hits);
            }
        }
        (start, start - from, end.max(start), hits)
    }

    /// A receiver of the last event's sequence number; 0 before the first event.
    #[must_use]
    pub fn latest(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }
}

/// Bounds of an event store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLimits {
    /// Most events, at least 1.
    pub count: usize,
    /// Most memory that they take, in bytes, including the shared part of a probe's events. The
    /// newest event is always kept.
    pub bytes: usize,
}

impl EventLimits {
    /// Default number of events kept for readers.
    pub const DEFAULT_COUNT: usize = 1 << 16;
    /// Default memory for them, in MiB.
    pub const DEFAULT_MIB: usize = 64;
}

impl Default for EventLimits {
    fn default() -> Self {
        Self { count: Self::DEFAULT_COUNT, bytes: Self::DEFAULT_MIB << 20 }
    }
}

/// The last hits. The oldest are dropped if there are too many, or they take too much memory.
struct KeptHits {
    hits: VecDeque<Hit>,
    limits: EventLimits,
    /// Memory of the hits and their origins, in bytes.
    bytes: usize,
    /// Hits by the address of their origin.
    origins: FxHashMap<usize, usize>,
}

impl KeptHits {
    fn new(limits: EventLimits) -> Self {
        let limits = EventLimits { count: limits.count.max(1), ..limits };
        Self { hits: VecDeque::new(), limits, bytes: 0, origins: FxHashMap::default() }
    }

    fn all(&self) -> &VecDeque<Hit> {
        &self.hits
    }

    fn push(&mut self, hit: Hit) {
        let hits = self.origins.entry(key(&hit.origin)).or_default();
        *hits += 1;
        if *hits == 1 {
            self.bytes += hit.origin.bytes();
        }
        self.bytes += hit.bytes();
        self.hits.push_back(hit);
    }

    /// Returns true if the oldest has to go.
    fn is_too_large(&self) -> bool {
        self.hits.len() > self.limits.count
            || (self.bytes > self.limits.bytes && self.hits.len() > 1)
    }

    fn drop_oldest(&mut self) -> Option<Hit> {
        let hit = self.hits.pop_front()?;
        self.bytes -= hit.bytes();
        let key = key(&hit.origin);
        let hits = self.origins.get_mut(&key)?;
        *hits -= 1;
        if *hits == 0 {
            self.origins.remove(&key);
            self.bytes -= hit.origin.bytes();
        }
        Some(hit)
    }

    /// Drops all hits and frees their memory.
    fn clear(&mut self) {
        *self = Self::new(self.limits);
    }
}

/// Identifies an origin while one of its hits is kept.
fn key(origin: &Arc<Origin>) -> usize {
    Arc::as_ptr(origin).addr()
}
