//! Events that the tracer's files `trace`, `trace_pipe` and `snapshot` show, as ranges of sequence
//! numbers.

use std::collections::VecDeque;

use super::hit::Hit;
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

/// The hits of a store, and the sequence number after the last.
pub(super) struct Stored<'a> {
    pub(super) hits: &'a VecDeque<Hit>,
    pub(super) next: u64,
}

/// Spans of tracing: each with its first event and, once it is over, the first event after it.
#[derive(Debug)]
pub(super) struct TraceBuffer {
    spans: VecDeque<(u64, Option<u64>)>,
    /// Events taken since it was cleared, and lost ones.
    taken: u64,
}

impl Default for TraceBuffer {
    fn default() -> Self {
        Self { spans: [(1, None)].into(), taken: 0 }
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
                self.taken += end - from;
            }
        }
    }

    /// Hides the events before `next`.
    pub(super) fn clear(&mut self, next: u64) {
        let on = self.is_on();
        self.spans.clear();
        self.taken = 0;
        self.switch(on, next);
    }

    /// All events shown.
    pub(super) fn read(&self, stored: &Stored<'_>) -> TracePage {
        let all =
            |(from, end): &(u64, Option<u64>)| stored.run(*from, *end, usize::MAX, usize::MAX);
        let mut page = TracePage { runs: self.spans.iter().map(all).collect(), written: 0 };
        page.written = self.taken + page.events() + page.lost();
        page
    }

    /// A reader of all events shown.
    pub(super) fn open(&self, stored: &Stored<'_>) -> TraceReader {
        let first = stored.first();
        let span = |(from, end): &(u64, Option<u64>)| {
            let end = end.unwrap_or(stored.next).min(stored.next);
            ((*from).max(1).min(end), end)
        };
        let spans: VecDeque<(u64, u64)> = self.spans.iter().map(span).collect();
        let shown = |(from, end): &(u64, u64)| end - (*from).max(first).min(*end);
        let events = spans.iter().map(shown).sum();
        let all: u64 = spans.iter().map(|(from, end)| end - from).sum();
        TraceReader { spans, events, written: self.taken + all }
    }

    /// Takes up to `max` events: no other reader sees them.
    pub(super) fn take(&mut self, stored: &Stored<'_>, max: usize) -> TracePage {
        let (mut page, mut left) = (TracePage::default(), max);
        while let Some((from, end)) = self.spans.front_mut() {
            let run = stored.run(*from, *end, left, usize::MAX);
            left -= run.1.len();
            *from = (*from + run.0 + run.1.len() as u64).max(*from);
            page.runs.push(run);
            // A span that is over has no more events once it was read to its end.
            if left == 0 || end.is_none() {
                break;
            }
            self.spans.pop_front();
        }
        self.taken += page.events() + page.lost();
        page
    }
}

impl Stored<'_> {
    /// Sequence number of the oldest.
    pub(super) fn first(&self) -> u64 {
        self.next - self.hits.len() as u64
    }

    /// Up to `max` events from `from` to before `end`, or as many as take `bytes`, and how many of
    /// those before them are lost.
    pub(super) fn run(
        &self,
        from: u64,
        end: Option<u64>,
        max: usize,
        bytes: usize,
    ) -> (u64, Vec<Hit>) {
        let first = self.first();
        let end = end.unwrap_or(self.next).min(self.next);
        let from = from.max(1).min(end);
        let start = from.max(first).min(end);
        let skip = usize::try_from(start.saturating_sub(first)).expect("at most the capacity");
        let max = max.min(usize::try_from(end - start).unwrap_or(usize::MAX));
        let lost = if max == 0 && start < end { 0 } else { start - from };
        let mut before = 0;
        let hits = self.hits.iter().skip(skip).take(max).take_while(|hit| {
            let fits = before < bytes;
            before += hit.bytes();
            fits
        });
        (lost, hits.cloned().collect())
    }
}

/// Reads what the file `trace` showed when it was opened, part by part. Events that the store drops
/// meanwhile are lines `[LOST n EVENTS]`.
#[derive(Debug)]
pub struct TraceReader {
    /// Ranges left to read: first event, and the first after it that does not belong.
    spans: VecDeque<(u64, u64)>,
    /// Number of events to show.
    pub events: u64,
    /// Number of events since it was cleared.
    pub written: u64,
}

impl TraceReader {
    /// First sequence number left to read, and the end of its span.
    pub(super) fn next_span(&self) -> Option<(u64, u64)> {
        self.spans.front().copied()
    }

    /// Passes the events of a page, and those lost before them. Returns false if there were none.
    pub(super) fn advance(&mut self, page: &TracePage) -> bool {
        let passed = page.events() + page.lost();
        if let Some((from, end)) = self.spans.front_mut() {
            *from += passed;
            if from >= end || passed == 0 {
                self.spans.pop_front();
            }
        }
        passed > 0
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
