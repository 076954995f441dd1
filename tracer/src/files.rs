//! The tracer, file by file.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exoprobe_probes::{Engine, TracePage, TraceReader};

use crate::error::TracerError;
use crate::hist::HistReader;
use crate::listed::ListedEvent;
use crate::log::ErrorLog;
use crate::node::{CpuFile, EventFile, File, FtraceFile, Node, NodeKind};
use crate::options::SharedOptions;
use crate::pages::PageWriter;
use crate::{
    buffer, commands, event, filter, format, kprobes, lines, listed, numbers, pages, record, ring,
    set_event, synthetic, trigger,
};

/// Text of the file `snapshot` without a snapshot.
const NO_SNAPSHOT: &str = "# there is no snapshot: write 1 to take one, 0 to forget it\n";

/// Text of the file `README`.
const README: &str = include_str!("readme.txt");

/// The current tracer, always: functions are not traced.
const TRACER: &str = "nop";

/// Text of the file `filter` of a group.
const GROUP_FILTER: &str = "# Write a filter here to set it for each event of the group; those that \
                            lack its fields have none then.\n# Write 0 to remove the filters of all events.\n";

/// Events of a snapshot that are read at once.
const SNAPSHOT_PART: usize = 1024;

/// A reader of a file `trace`, `snapshot` or `hist`, part by part: all of it may be many times the
/// memory of what it shows.
pub struct LinesReader(Lines);

enum Lines {
    Trace(TraceReader),
    /// With the number of events that were read.
    Page(Arc<TracePage>, usize),
    Hist(HistReader),
}

/// A file `trace_pipe`: that of a vCPU, or that of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipe(Option<u8>);

/// A file `trace_pipe_raw`: of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawPipe(u8);

/// Something in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: NodeKind,
}

/// The tracer of one guest.
pub struct Tracer {
    engine: Arc<Engine>,
    vcpus: usize,
    log: Mutex<ErrorLog>,
    options: SharedOptions,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tracer {
    /// Of a guest with so many vCPUs. All events that come from now on are kept.
    #[must_use]
    pub fn new(engine: Arc<Engine>, vcpus: usize) -> Self {
        Self { engine, vcpus, log: Mutex::default(), options: SharedOptions::default() }
    }

    /// The engine that it is over.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The node at a path.
    fn find(&self, path: &str) -> Result<Node, TracerError> {
        let found = Node::at(path).filter(|node| node.is_there(&self.engine, self.vcpus));
        found.ok_or_else(|| {
            let message = format!("there is no `{path}`: see the folder above it");
            TracerError::new("ENOENT", message)
        })
    }

    /// The events that `enable` or `filter` of a group, or of one event, are about.
    fn events_of(&self, node: &Node) -> Vec<ListedEvent> {
        let (group, event) = match node {
            Node::Enable(group, event) => (group.as_ref(), event.as_ref()),
            Node::GroupFilter(group) => (Some(group), None),
            _ => return Vec::new(),
        };
        let is_it = |listed: &ListedEvent| {
            group.is_none_or(|group| listed.group == *group)
                && event.is_none_or(|event| listed.event == *event)
        };
        listed::all(&self.engine).into_iter().filter(is_it).collect()
    }

    /// The text of a file of an event.
    fn read_event(&self, node: &Node) -> Result<String, TracerError> {
        let (Node::OfEvent(group, name, _) | Node::Enable(Some(group), Some(name))) = node else {
            return Err(TracerError::new("ENOENT", "this is no event's file"));
        };
        let engine = &*self.engine;
        if let Some(found) = synthetic::find(engine, group, name) {
            return match node {
                Node::OfEvent(_, _, file) => event::read_synthetic(engine, &found, *file),
                _ => {
                    let triggers = found.triggers + usize::from(found.is_switched);
                    Ok(event::enabled_text_of(found.enabled, triggers))
                }
            };
        }
        let probe = engine.show(group, name);
        let probe = probe.map_err(|_| TracerError::new("ENOENT", "the event has gone"))?;
        match node {
            Node::OfEvent(_, _, file) => event::read(engine, &probe, *file),
            _ => Ok(event::enabled_text_of(probe.enabled, probe.triggers)),
        }
    }

    /// Entries of a folder; `None` of a file.
    ///
    /// # Errors
    /// [`TracerError`], `ENOENT`.
    pub fn list(&self, path: &str) -> Result<Option<Vec<Item>>, TracerError> {
        let entries = self.find(path)?.entries(|| self.engine.names(), self.vcpus);
        Ok(entries.map(|all| all.into_iter().map(|(name, kind)| Item { name, kind }).collect()))
    }

    /// The file at a path if its readers wait for what comes: [`Self::take_lines`].
    #[must_use]
    pub fn pipe(&self, path: &str) -> Option<Pipe> {
        match self.find(path).ok()? {
            Node::File(File::TracePipe) => Some(Pipe(None)),
            Node::OfCpu(cpu, CpuFile::TracePipe) => Some(Pipe(Some(cpu))),
            _ => None,
        }
    }

    /// The file at a path if it has pages of the ring buffer: [`Self::take_pages`].
    #[must_use]
    pub fn raw_pipe(&self, path: &str) -> Option<RawPipe> {
        match self.find(path).ok()? {
            Node::OfCpu(cpu, CpuFile::TracePipeRaw) => Some(RawPipe(cpu)),
            _ => None,
        }
    }

    /// A reader of a file `trace` or `hist`, or of a snapshot, with the lines that come before it;
    /// `None` of other files, for [`Self::read`].
    #[must_use]
    pub fn open_lines(&self, path: &str) -> Option<(String, LinesReader)> {
        match self.find(path).ok()? {
            Node::File(file) => self.open_file(file),
            Node::OfCpu(cpu, CpuFile::Trace) => Some(self.open_cpu(cpu)),
            Node::OfEvent(group, event, EventFile::Hist) => {
                let reader = HistReader::open(&self.engine, &group, &event).ok()?;
                Some((String::new(), LinesReader(Lines::Hist(reader))))
            }
            _ => None,
        }
    }

    /// Returns true for a file `hist`. Its reader keeps the entries that it shows, also those that
    /// were cleared meanwhile.
    #[must_use]
    pub fn is_histogram(&self, path: &str) -> bool {
        matches!(self.find(path), Ok(Node::OfEvent(_, _, EventFile::Hist)))
    }

    fn open_file(&self, file: File) -> Option<(String, LinesReader)> {
        if !matches!(file, File::Trace | File::Snapshot) {
            return None;
        }
        self.engine.drain();
        let store = self.engine.events();
        let (events, written, parts) = if file == File::Trace {
            let reader = store.open_trace();
            (reader.events, reader.written, Lines::Trace(reader))
        } else {
            let page = store.snapshot()?;
            (page.events(), page.written(), Lines::Page(page, 0))
        };
        let header = lines::header(events, written, self.vcpus, self.options.get());
        Some((header, LinesReader(parts)))
    }

    /// Opens the file `trace` of a vCPU.
    fn open_cpu(&self, cpu: u8) -> (String, LinesReader) {
        self.engine.drain();
        let page = Arc::new(self.engine.events().trace_of_cpu(cpu));
        let options = self.options.get();
        let header = lines::header(page.events(), page.written(), self.vcpus, options);
        (header, LinesReader(Lines::Page(page, 0)))
    }

    /// All of a file that was opened.
    fn all_lines(&self, (header, mut reader): (String, LinesReader)) -> String {
        header + &std::iter::from_fn(|| self.next_lines(&mut reader)).collect::<String>()
    }

    /// The next lines of a file; `None` at the end.
    pub fn next_lines(&self, reader: &mut LinesReader) -> Option<String> {
        match &mut reader.0 {
            Lines::Trace(reader) => {
                let page = self.engine.events().next_part(reader)?;
                Some(lines::text(&page, self.options.get()))
            }
            Lines::Page(page, read) => {
                let text = lines::part(page, (*read, SNAPSHOT_PART), self.options.get());
                *read += SNAPSHOT_PART;
                (!text.is_empty()).then_some(text)
            }
            Lines::Hist(reader) => reader.next(),
        }
    }

    /// The text of a file as it is now.
    ///
    /// # Errors
    /// [`TracerError`]: `ENOENT`, `EISDIR`, and what the engine says.
    pub fn read(&self, path: &str) -> Result<String, TracerError> {
        let node = self.find(path)?;
        if let Node::GroupFilter(_) = node {
            return Ok(GROUP_FILTER.to_owned());
        }
        if node.mode().is_some_and(|mode| mode & 0o400 == 0) {
            return Err(TracerError::new("EINVAL", format!("`{path}` can only be written")));
        }
        match &node {
            Node::File(file) => self.read_file(*file),
            Node::Option(option) => Ok(self.options.get().text(*option)),
            Node::OfCpu(cpu, CpuFile::Trace) => Ok(self.all_lines(self.open_cpu(*cpu))),
            Node::OfCpu(cpu, CpuFile::TracePipe) => {
                Ok(self.take_lines(Pipe(Some(*cpu)), usize::MAX))
            }
            Node::OfCpu(_, CpuFile::TracePipeRaw) => {
                Err(TracerError::new("EINVAL", format!("`{path}` is no text")))
            }
            Node::OfFtrace(event, FtraceFile::Format) => Ok(format::ftrace_text(*event)),
            Node::OfFtrace(event, FtraceFile::Id) => Ok(format!("{}\n", format::ftrace_id(*event))),
            Node::OfCpu(cpu, CpuFile::Stats) => {
                self.engine.drain();
                let found = self.engine.events().cpu_statistics(*cpu);
                Ok(buffer::stats_text(found, self.engine.micros()))
            }
            Node::Enable(_, Some(_)) | Node::OfEvent(..) => self.read_event(&node),
            Node::Enable(..) => Ok(event::enabled_text(&self.events_of(&node)).to_owned()),
            _ => Err(TracerError::new("EISDIR", format!("`{path}` is a folder"))),
        }
    }

    fn read_file(&self, file: File) -> Result<String, TracerError> {
        let engine = &*self.engine;
        let digit = |on: bool| if on { "1\n" } else { "0\n" }.to_owned();
        Ok(match file {
            File::Readme => README.to_owned(),
            File::KprobeEvents => commands::listing(&engine.list()),
            File::SyntheticEvents => synthetic::listing(engine),
            File::DynamicEvents => {
                let probes = engine.list();
                let lines = commands::lines(&probes).chain(synthetic::dynamic_lines(engine));
                let mut lines: Vec<(u32, String)> = lines.collect();
                lines.sort_by_key(|(id, _)| *id);
                lines.into_iter().map(|(_, line)| line).collect()
            }
            File::AvailableEvents => set_event::listing(&listed::all(engine)),
            File::SetEvent => set_event::enabled(&listed::all(engine)),
            File::CurrentTracer | File::AvailableTracers => format!("{TRACER}\n"),
            File::HeaderPage => ring::HEADER_PAGE.to_owned(),
            File::HeaderEvent => ring::HEADER_EVENT.to_owned(),
            File::KprobeProfile => commands::profile(&engine.list()),
            File::Trace | File::Snapshot => match self.open_file(file) {
                Some(opened) => self.all_lines(opened),
                None => NO_SNAPSHOT.to_owned(),
            },
            File::TracePipe => self.take_lines(Pipe(None), usize::MAX),
            // It can only be written.
            File::TraceMarker => String::new(),
            File::TraceClock => buffer::CLOCKS.to_owned(),
            File::TraceOptions => self.options.get().listing(),
            File::BufferSize => buffer::size_text(self.engine.events(), self.vcpus),
            File::SavedCmdlines => buffer::tasks_text(&self.engine.events().tasks()),
            File::BufferTotalSize => buffer::size_text(self.engine.events(), 1),
            File::TracingOn => {
                self.engine.drain();
                digit(self.engine.events().is_tracing())
            }
            File::ErrorLog => lock(&self.log).text(),
            File::Optimization => digit(self.engine.is_optimization_allowed()),
            File::List => kprobes::list_text(&self.engine.list()),
            File::Enabled => digit(self.engine.is_switched_on()),
            File::Blacklist => kprobes::blacklist_text(&self.engine.blacklist()?),
        })
    }

    /// Takes up to `max` events from a file `trace_pipe`, as its lines: no other reader gets them.
    /// Empty where there is none; [`exoprobe_probes::EventStore::latest`] changes when there
    /// may be more.
    #[must_use]
    pub fn take_lines(&self, Pipe(cpu): Pipe, max: usize) -> String {
        lines::text(&self.engine.events().take_trace(max, cpu), self.options.get())
    }

    /// Takes events from a file `trace_pipe_raw`, as up to `max` pages of the kernel's ring buffer
    /// ([`Self::PAGE`] bytes each): no other reader gets them. Empty where there is none.
    #[must_use]
    pub fn take_pages(&self, RawPipe(cpu): RawPipe, max: usize) -> Vec<u8> {
        self.engine.drain();
        let mut pages = PageWriter::new(max);
        self.engine.events().take_each(cpu, |lost, taken| {
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

    /// Bytes of a page in a file `trace_pipe_raw`.
    pub const PAGE: usize = pages::PAGE;

    /// Opens a file for writing from its begin (O_TRUNC), as a shell's `>` does.
    ///
    /// # Errors
    /// [`TracerError`]: `ENOENT`, `EISDIR`, `EACCES`, `EBUSY`.
    pub fn truncate(&self, path: &str) -> Result<(), TracerError> {
        match self.writable(path)? {
            Node::File(File::KprobeEvents) => commands::clear(&self.engine),
            Node::File(File::SyntheticEvents) => Ok(self.engine.delete_synthetics()?),
            Node::File(File::DynamicEvents) => {
                commands::check_clear(&self.engine)?;
                self.engine.delete_synthetics()?;
                commands::clear(&self.engine)
            }
            Node::File(File::SetEvent) => {
                event::set_enabled(&self.engine, &listed::all(&self.engine), false)
            }
            Node::File(File::Trace) => {
                self.engine.drain();
                self.engine.events().clear_trace();
                Ok(())
            }
            Node::OfCpu(cpu, CpuFile::Trace) => {
                self.engine.drain();
                self.engine.events().clear_trace_of_cpu(cpu);
                Ok(())
            }
            Node::File(File::ErrorLog) => {
                lock(&self.log).clear();
                Ok(())
            }
            Node::OfEvent(group, event, EventFile::Trigger) => {
                Ok(self.engine.remove_histograms(&group, &event)?)
            }
            _ => Ok(()),
        }
    }

    /// Writes to a file: all of a text, as one write.
    ///
    /// # Errors
    /// [`TracerError`], as the file says; what came before a fault stays.
    pub fn write(&self, path: &str, text: &str) -> Result<(), TracerError> {
        let node = self.writable(path)?;
        let engine = &*self.engine;
        match &node {
            Node::File(File::KprobeEvents) => {
                commands::Writer::new(engine, &mut lock(&self.log)).write(text)
            }
            Node::File(File::SyntheticEvents) => {
                synthetic::write(engine, &mut lock(&self.log), text)
            }
            Node::File(File::DynamicEvents) => self.write_dynamic(text),
            Node::File(File::SetEvent) => set_event::write(engine, text),
            Node::File(File::CurrentTracer) => choose_tracer(text),
            Node::File(File::TracingOn) => {
                let on = numbers::parse_count(text)? != 0;
                engine.drain();
                engine.events().set_tracing(on);
                Ok(())
            }
            Node::File(File::Snapshot) => self.write_snapshot(text),
            Node::File(File::Enabled) => Ok(engine.switch(numbers::parse_switch(text)?)?),
            Node::File(File::Optimization) => {
                engine.allow_optimization(numbers::parse_switch(text)?);
                Ok(())
            }
            Node::File(File::TraceMarker) => buffer::mark(engine, self.options.get(), text),
            Node::File(File::TraceClock) => buffer::choose_clock(engine, text),
            Node::File(File::BufferSize) => buffer::set_size(engine.events(), self.vcpus, text),
            Node::File(File::TraceOptions) => self.options.write(text),
            Node::Option(option) => self.options.write_one(*option, text),
            // What is written to them is of no importance: that it is empties them.
            Node::File(File::Trace | File::ErrorLog) | Node::OfCpu(_, CpuFile::Trace) => {
                self.truncate(path)
            }
            Node::Enable(..) => event::enable(engine, &self.events_of(&node), text),
            Node::GroupFilter(group) => {
                let (log, events) = (&mut lock(&self.log), self.events_of(&node));
                filter::set_of_group(engine, log, group, &events, text)
            }
            Node::OfEvent(group, event, EventFile::Trigger) => {
                trigger::write(engine, &mut lock(&self.log), (group, event), text)
            }
            Node::OfEvent(group, event, _) => {
                filter::set(engine, &mut lock(&self.log), (group, event), text)
            }
            _ => Err(read_only(path)),
        }
    }

    /// Runs commands of all kinds, in order.
    fn write_dynamic(&self, text: &str) -> Result<(), TracerError> {
        let engine = &*self.engine;
        // Definitions of probes in a row are registered at once.
        let (mut probes, mut begin) = (String::new(), 0);
        let write = |log: &mut ErrorLog, probes: &str, begin: usize| {
            let done = commands::Writer::new(engine, log).write(probes);
            let line = |error: &TracerError| error.line.map(|line| begin + line);
            done.map_err(|error| TracerError { line: line(&error), ..error })
        };
        for (number, line) in text.split('\n').enumerate() {
            let Some((command, column)) = synthetic::dynamic_command(engine, line) else {
                probes += &format!("{line}\n");
                continue;
            };
            let log = &mut lock(&self.log);
            write(log, &std::mem::take(&mut probes), begin)?;
            begin = number + 1;
            let done = commands::check_length(line);
            let done = done.and_then(|()| synthetic::run(engine, log, line, (&command, column)));
            done.map_err(|error| TracerError { line: Some(number + 1), ..error })?;
            if synthetic::names_probe(engine, line) {
                begin = number;
                probes = format!("{line}\n");
            }
        }
        write(&mut lock(&self.log), &probes, begin)
    }

    /// The node at a path, if it can be written.
    fn writable(&self, path: &str) -> Result<Node, TracerError> {
        let node = self.find(path)?;
        match node.mode() {
            Some(mode) if mode & 0o200 == 0 => Err(read_only(path)),
            Some(_) => Ok(node),
            None => Err(TracerError::new("EISDIR", format!("`{path}` is a folder"))),
        }
    }

    /// `1` takes a snapshot, `0` forgets it; other numbers forget its events.
    fn write_snapshot(&self, text: &str) -> Result<(), TracerError> {
        let number = numbers::parse_count(text)?;
        if self.engine.takes_snapshots() {
            let message = "a histogram takes snapshots: `trigger` of its event has it";
            return Err(TracerError::new("EBUSY", message));
        }
        self.engine.drain();
        match number {
            1 => self.engine.events().take_snapshot(),
            _ => self.engine.events().free_snapshot(),
        }
        Ok(())
    }
}

/// Accepts the name of the one tracer that there is.
fn choose_tracer(text: &str) -> Result<(), TracerError> {
    match text.trim() {
        TRACER => Ok(()),
        other => {
            let shown: String = other.chars().take(20).collect();
            let message =
                format!("there is no tracer `{shown}`: probes are all that is traced ({TRACER})");
            Err(TracerError::new("EINVAL", message))
        }
    }
}

fn read_only(path: &str) -> TracerError {
    TracerError::new("EACCES", format!("`{path}` can only be read"))
}
