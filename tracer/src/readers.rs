//! Readers of files that are read part by part, or have no end.

use std::sync::Arc;

use exoprobe_probes::{Engine, EventStore, TracePage, TraceReader};

use crate::hist::HistReader;
use crate::kept::{Kept, Waiting};
use crate::pages::PageWriter;
use crate::{lines, record};

/// Events of a snapshot that are read at once.
const SNAPSHOT_PART: usize = 1024;

/// A reader of a file `trace`, `snapshot` or `hist`, part by part: all of it may be many times the
/// memory of what it shows.
pub struct LinesReader {
    of: Arc<Kept>,
    lines: Lines,
}

pub(crate) enum Lines {
    Trace(TraceReader),
    /// With the number of events that were read.
    Page(Arc<TracePage>, usize),
    Hist(HistReader),
}

impl LinesReader {
    pub(crate) fn new(of: Arc<Kept>, lines: Lines) -> Self {
        Self { of, lines }
    }
}

impl Iterator for LinesReader {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let options = self.of.options.get();
        match &mut self.lines {
            Lines::Trace(reader) => {
                let page = self.of.scope().store().next_part(reader)?;
                Some(lines::text(&page, options))
            }
            Lines::Page(page, read) => {
                let text = lines::part(page, (*read, SNAPSHOT_PART), options);
                *read += SNAPSHOT_PART;
                (!text.is_empty()).then_some(text)
            }
            Lines::Hist(reader) => reader.next(),
        }
    }
}

/// The events of an instance, or of the tracer's own folder, for a reader of the store. The
/// instance is not removed meanwhile.
#[derive(Clone)]
pub struct KeptEvents {
    of: Arc<Kept>,
    _waiting: Waiting,
}

impl KeptEvents {
    pub(crate) fn new(of: Arc<Kept>) -> Self {
        let _waiting = of.waiting();
        Self { of, _waiting }
    }

    /// The engine whose hits they are.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.of.engine
    }

    /// The events. Hits are in it once drained.
    #[must_use]
    pub fn store(&self) -> &EventStore {
        self.of.scope().store()
    }
}

/// A reader of a file `trace_pipe`: that of a vCPU, or that of all. Its instance is not removed
/// meanwhile.
#[derive(Clone)]
pub struct Pipe {
    of: Arc<Kept>,
    cpu: Option<u8>,
    _waiting: Waiting,
}

impl Pipe {
    pub(crate) fn new(of: Arc<Kept>, cpu: Option<u8>) -> Self {
        let _waiting = of.waiting();
        Self { of, cpu, _waiting }
    }

    /// Takes up to `max` events, as their lines: no other reader gets them. Empty where there is
    /// none.
    #[must_use]
    pub fn take(&self, max: usize) -> String {
        lines::text(&self.of.scope().store().take_trace(max, self.cpu), self.of.options.get())
    }

    /// The events that it is of: their [`EventStore::latest`] changes when there may be more.
    #[must_use]
    pub fn events(&self) -> &EventStore {
        self.of.scope().store()
    }
}

/// A reader of a file `trace_pipe_raw`, of a vCPU. Its instance is not removed meanwhile.
#[derive(Clone)]
pub struct RawPipe {
    of: Arc<Kept>,
    cpu: u8,
    _waiting: Waiting,
}

impl RawPipe {
    /// Bytes of a page.
    pub const PAGE: usize = crate::pages::PAGE;

    pub(crate) fn new(of: Arc<Kept>, cpu: u8) -> Self {
        let _waiting = of.waiting();
        Self { of, cpu, _waiting }
    }

    /// Takes events, as up to `max` pages of the kernel's ring buffer ([`Self::PAGE`] bytes each):
    /// no other reader gets them. Empty where there is none.
    #[must_use]
    pub fn take(&self, max: usize) -> Vec<u8> {
        let scope = self.of.scope();
        scope.engine.drain();
        let mut pages = PageWriter::new(max);
        scope.store().take_each(self.cpu, |lost, taken| {
            pages.lose(lost);
            let records = record::records(taken);
            if records.is_empty() {
                pages.lose(1);
                return true;
            }
            pages.add(taken.nanos, &records)
        });
        pages.finish()
    }

    /// The events that it is of: their [`EventStore::latest`] changes when there may be more.
    #[must_use]
    pub fn events(&self) -> &EventStore {
        self.of.scope().store()
    }
}
