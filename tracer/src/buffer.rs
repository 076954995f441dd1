//! What of the events the files `trace` and `trace_pipe` show: those that came while tracing was on, and that nobody
//! has cleared or taken.

use std::collections::VecDeque;

use exoprobe_probes::{EventStore, TracePage};

/// Most times of tracing that are kept: of one more, the first is forgotten.
const SPANS_MAX: usize = 1024;

/// Times of tracing, as sequence numbers of events: each with its first, and, once it is over, the first that does not
/// belong to it.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    spans: VecDeque<(u64, Option<u64>)>,
    /// Events shown or taken since it was cleared, and lost ones.
    taken: u64,
}

impl Default for Buffer {
    fn default() -> Self {
        Self { spans: [(1, None)].into(), taken: 0 }
    }
}

/// Lines of `trace`.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    pub(crate) text: String,
    pub(crate) events: u64,
    pub(crate) lost: u64,
}

impl Lines {
    fn add(&mut self, page: &TracePage) {
        if page.lost > 0 {
            self.text.push_str(&format!("[LOST {} EVENTS]\n", page.lost));
        }
        self.text.push_str(&page.text);
        self.events += page.events as u64;
        self.lost += page.lost;
    }
}

impl Buffer {
    pub(crate) fn is_on(&self) -> bool {
        self.spans.back().is_some_and(|(_, end)| end.is_none())
    }

    /// Events from `next` on are kept, or are not.
    pub(crate) fn switch(&mut self, on: bool, next: u64) {
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
            self.spans.pop_front();
        }
    }

    /// Only what comes from `next` on is shown.
    pub(crate) fn clear(&mut self, next: u64) {
        let on = self.is_on();
        self.spans.clear();
        self.taken = 0;
        self.switch(on, next);
    }

    /// All that is shown, and how many events were written since it was cleared.
    pub(crate) fn read(&self, store: &EventStore) -> (Lines, u64) {
        let mut lines = Lines::default();
        for (from, end) in &self.spans {
            lines.add(&page(store, *from, *end, usize::MAX));
        }
        let written = self.taken + lines.events + lines.lost;
        (lines, written)
    }

    /// Takes up to `max` events: nobody else is shown them.
    pub(crate) fn take(&mut self, store: &EventStore, max: usize) -> Lines {
        let mut lines = Lines::default();
        while let Some((from, end)) = self.spans.front_mut() {
            let left = max - usize::try_from(lines.events).unwrap_or(max).min(max);
            let page = page(store, *from, *end, left);
            lines.add(&page);
            *from = page.next.max(*from);
            if end.is_none_or(|end| *from < end) {
                break;
            }
            self.spans.pop_front();
        }
        self.taken += lines.events + lines.lost;
        lines
    }
}

/// Events of one span.
fn page(store: &EventStore, from: u64, end: Option<u64>, max: usize) -> TracePage {
    store.trace(from..end.unwrap_or(u64::MAX), max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_tracing_are_joined_and_few() {
        let mut buffer = Buffer::default();
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
