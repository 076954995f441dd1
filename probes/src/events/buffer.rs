//! Events that the tracer's files `trace`, `trace_pipe` and `snapshot` show, as ranges of sequence
//! numbers, and for each vCPU the number that its own readers have come to.

use std::collections::VecDeque;

use super::hit::Hit;
use super::per_cpu::{CpuStatistics, CpuTrace, CpuTraces};
use super::trace::TracePage;

/// Most spans of tracing that are kept; one more drops the first.
const SPANS_MAX: usize = 1024;

/// An operation on the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// Events are kept from here on.
    On,
    /// Events are no longer kept.
    Off,
    /// Moves the trace into the snapshot.
    Snapshot,
}

/// The first event of a time of tracing and, once it is over, the first event after it.
type Span = (u64, Option<u64>);

/// The hits of a store, and the sequence number after the last.
pub(super) struct Stored<'a> {
    pub(super) hits: &'a VecDeque<Hit>,
    pub(super) next: u64,
}

/// Hits of one span.
pub(super) struct Run {
    /// Sequence number of the first hit that was looked at.
    pub(super) start: u64,
    /// Sequence number after the last.
    pub(super) next: u64,
    pub(super) hits: Vec<Hit>,
    /// It came to the span's end.
    is_whole: bool,
}

/// Spans of tracing.
#[derive(Debug)]
pub(super) struct TraceBuffer {
    spans: VecDeque<Span>,
    cpus: CpuTraces,
    /// Events of spans that were dropped.
    forgotten: u64,
}

impl Default for TraceBuffer {
    fn default() -> Self {
        Self { spans: [(1, None)].into(), cpus: CpuTraces::default(), forgotten: 0 }
    }
}

impl TraceBuffer {
    pub(super) fn is_on(&self) -> bool {
        self.spans.back().is_some_and(|(_, end)| end.is_none())
    }

    /// Begins or ends the keeping of events from `next` on.
    pub(super) fn switch(&mut self, on: bool, next: u64) {
        match (self.is_on(), on) {
            (false, true) => match self.spans.back_mut() {
                Some((_, end)) if *end == Some(next) => *end = None,
                _ => self.spans.push_back((next, None)),
            },
            (true, false) => {
                if let Some((from, end)) = self.spans.back_mut() {
                    *end = Some(next.max(*from));
                }
            }
            _ => {}
        }
        while self.spans.len() > SPANS_MAX {
            if let Some((from, Some(end))) = self.spans.pop_front() {
                self.forgotten += end - from;
            }
        }
    }

    /// Hides the events before `next`.
    pub(super) fn clear(&mut self, next: u64) {
        let on = self.is_on();
        self.spans.clear();
        self.cpus = CpuTraces::default();
        self.forgotten = 0;
        self.switch(on, next);
    }

    /// Hides the events of a vCPU before `next`.
    pub(super) fn clear_cpu(&mut self, cpu: u8, next: u64) {
        *self.cpus.of(cpu) = CpuTrace::from(next);
    }

    /// Notes that the store no longer has an event.
    pub(super) fn dropped(&mut self, seq: u64, vcpu: u8) {
        let at = self.spans.partition_point(|(_, end)| end.is_some_and(|end| end <= seq));
        if self.spans.get(at).is_some_and(|(from, _)| *from <= seq) {
            self.cpus.of(vcpu).overrun_at(seq);
        }
    }

    /// Notes that synthetic events were not made, as long as events are kept.
    pub(super) fn note_unmade(&mut self, vcpu: u8, count: u64) {
        if self.is_on() {
            self.cpus.of(vcpu).note_unmade(count);
        }
    }

    /// All events shown, or those of one vCPU.
    pub(super) fn read(&self, stored: &Stored<'_>, cpu: Option<u8>) -> TracePage {
        let shown = self.cpus.select(cpu);
        let all = |span: &Span| (0, stored.run(*span, &shown, |_| true).hits);
        let mut page = TracePage { runs: self.spans.iter().map(all).collect(), written: 0 };
        page.written = self.written_before(cpu) + page.events();
        if let Some((lost, _)) = page.runs.first_mut() {
            *lost = self.cpus.lost(cpu);
        }
        page
    }

    /// Number of events since it was cleared that are no longer shown.
    fn written_before(&self, cpu: Option<u8>) -> u64 {
        self.cpus.passed(cpu) + if cpu.is_none() { self.forgotten } else { 0 }
    }

    /// A reader of all events shown.
    pub(super) fn open(&self, stored: &Stored<'_>) -> TraceReader {
        let (shown, first) = (self.cpus.select(None), stored.first());
        let span = |(from, end): &Span| {
            let end = end.unwrap_or(stored.next).min(stored.next);
            ((*from).max(first).min(end), end)
        };
        let spans: VecDeque<(u64, u64)> = self.spans.iter().map(span).collect();
        let count = |(from, end): &(u64, u64)| {
            stored.numbered(*from, *end).filter(|(seq, hit)| shown(*seq, hit)).count() as u64
        };
        let events = spans.iter().map(count).sum();
        let (lost, written) = (self.cpus.lost(None), self.written_before(None) + events);
        TraceReader { spans, cpus: self.cpus.clone(), lost, events, written }
    }

    /// Takes events of one vCPU or all, as far as `accepts` takes them: no other reader sees them.
    pub(super) fn take(
        &mut self,
        stored: &Stored<'_>,
        cpu: Option<u8>,
        mut accepts: impl FnMut(&Hit) -> bool,
    ) -> TracePage {
        let mut page = TracePage::default();
        for at in 0..self.spans.len() {
            let (from, end) = self.spans[at];
            let from = from.max(self.cpus.first(cpu));
            let run = stored.run((from, end), &self.cpus.select(cpu), &mut accepts);
            let is_whole = run.is_whole;
            self.cpus.take(cpu, &run.hits, run.next);
            if cpu.is_none() {
                self.spans[at].0 = run.next.max(from);
            }
            page.runs.push((0, run.hits));
            if !is_whole {
                break;
            }
        }
        // Lost events are told with those that come after them.
        if let Some((lost, _)) = page.runs.iter_mut().find(|(_, hits)| !hits.is_empty()) {
            *lost = self.cpus.take_lost(cpu);
        }
        // A span that is over has no more events once it was read to its end.
        while self.spans.front().is_some_and(|(from, end)| end.is_some_and(|end| *from >= end)) {
            self.spans.pop_front();
        }
        page
    }

    /// Events of a vCPU that the store dropped, and no reader has counted.
    pub(super) fn lost(&self, cpu: u8) -> u64 {
        self.cpus.lost(Some(cpu))
    }

    /// Statistics of one vCPU's events.
    pub(super) fn statistics(&self, stored: &Stored<'_>, cpu: u8) -> CpuStatistics {
        let shown = self.cpus.select(Some(cpu));
        let spans = self.spans.iter().flat_map(|(from, end)| {
            let end = end.unwrap_or(stored.next).min(stored.next);
            stored.numbered((*from).max(stored.first()).min(end), end)
        });
        self.cpus.statistics(cpu, spans.filter(|(seq, hit)| shown(*seq, hit)).map(|(_, hit)| hit))
    }
}

impl<'a> Stored<'a> {
    /// Sequence number of the oldest.
    pub(super) fn first(&self) -> u64 {
        self.next - self.hits.len() as u64
    }

    /// Hits from `start` on, which must not be before the oldest, to before `end`.
    fn numbered(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &'a Hit)> + use<'a> {
        let skip = usize::try_from(start.saturating_sub(self.first()));
        let skip = skip.expect("at most the capacity");
        (start..end).zip(self.hits.iter().skip(skip))
    }

    /// Events of a span that are shown, up to the first that is not accepted.
    pub(super) fn run(
        &self,
        (from, end): Span,
        shown: &impl Fn(u64, &Hit) -> bool,
        mut accepts: impl FnMut(&Hit) -> bool,
    ) -> Run {
        let end = end.unwrap_or(self.next).min(self.next);
        let start = from.max(1).max(self.first()).min(end);
        let mut run = Run { start, next: start, hits: Vec::new(), is_whole: true };
        for (seq, hit) in self.numbered(start, end) {
            if shown(seq, hit) {
                if !accepts(hit) {
                    run.is_whole = false;
                    break;
                }
                run.hits.push(hit.clone());
            }
            run.next = seq + 1;
        }
        run
    }
}

/// Reads what the file `trace` showed when it was opened, part by part. Events that the store drops
/// meanwhile are lines `[LOST n EVENTS]`.
#[derive(Debug)]
pub struct TraceReader {
    /// Ranges left to read: first event, and the first after it that does not belong.
    spans: VecDeque<(u64, u64)>,
    /// The events that readers of single vCPUs had taken.
    cpus: CpuTraces,
    /// Events lost before the first.
    lost: u64,
    /// Number of events to show.
    pub events: u64,
    /// Number of events since it was cleared.
    pub written: u64,
}

impl TraceReader {
    /// The next events, as far as `accepts` takes them, or only the number of lost ones; `None` at
    /// the end.
    pub(super) fn next(
        &mut self,
        stored: &Stored<'_>,
        mut accepts: impl FnMut(&Hit) -> bool,
    ) -> Option<(u64, Vec<Hit>)> {
        while let Some((from, end)) = self.spans.front_mut() {
            let run = stored.run((*from, Some(*end)), &self.cpus.select(None), &mut accepts);
            let lost = std::mem::take(&mut self.lost) + run.start.saturating_sub(*from);
            let is_over = run.is_whole || run.next == *from;
            *from = run.next;
            if is_over {
                self.spans.pop_front();
            }
            if lost > 0 || !run.hits.is_empty() {
                return Some((lost, run.hits));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_tracing_are_joined_and_few() {
        let mut buffer = TraceBuffer::default();
        buffer.switch(false, 5);
        assert_eq!((buffer.is_on(), buffer.spans.len()), (false, 1));
        buffer.switch(true, 5);
        assert_eq!(buffer.spans, [(1, None)], "nothing came between");
        buffer.switch(true, 7);
        buffer.switch(false, 9);
        buffer.switch(false, 11);
        buffer.switch(true, 12);
        assert_eq!(buffer.spans, [(1, Some(9)), (12, None)]);
        for n in 0..5000 {
            buffer.switch(n % 2 == 1, 20 + 10 * n);
        }
        assert!(buffer.is_on());
        assert_eq!(buffer.spans.len(), SPANS_MAX);
        buffer.clear(90_000);
        assert_eq!(buffer.spans, [(90_000, None)]);
        buffer.switch(false, 90_000);
        buffer.clear(90_001);
        assert!(buffer.spans.is_empty() && !buffer.is_on());
    }
}
