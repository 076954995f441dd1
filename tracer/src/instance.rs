//! One trace instance: the tracer's own folder, which is the first one, or a folder of `instances`.
//! Its files, one by one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exoprobe_probes::{Engine, TraceInstance};

use crate::error::TracerError;
use crate::hist::HistReader;
use crate::kept::Kept;
use crate::listed::ListedEvent;
use crate::log::ErrorLog;
use crate::node::{CpuFile, EventFile, File, FtraceFile, Node, NodeKind};
use crate::options::SharedOptions;
use crate::readers::{KeptEvents, Lines, LinesReader, Pipe, RawPipe};
use crate::scope::Scope;
use crate::{
    buffer, commands, event, filter, format, kprobes, lines, listed, numbers, ring, set_event,
    synthetic, trigger,
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

/// A trace instance.
pub(crate) struct Instance {
    kept: Arc<Kept>,
    vcpus: usize,
    /// The path of its folder, with a `/` after it; empty of the tracer's own.
    folder: String,
    log: Mutex<ErrorLog>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Instance {
    /// The tracer's own, of a guest with so many vCPUs.
    pub(crate) fn top(engine: Arc<Engine>, vcpus: usize) -> Self {
        let kept = Arc::new(Kept::new(engine, None));
        Self { kept, vcpus, folder: String::new(), log: Mutex::default() }
    }

    /// One of the folder `instances`, at `folder`.
    pub(crate) fn of(&self, own: Arc<TraceInstance>, folder: String) -> Self {
        let kept = Arc::new(Kept::new(Arc::clone(self.engine()), Some(own)));
        Self { kept, vcpus: self.vcpus, folder, log: Mutex::default() }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.kept.engine
    }

    pub(crate) fn scope(&self) -> Scope<'_> {
        self.kept.scope()
    }

    fn options(&self) -> &SharedOptions {
        &self.kept.options
    }

    fn is_top(&self) -> bool {
        self.scope().own.is_none()
    }

    /// Returns true if a reader waits for its events.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.kept.is_waited_for()
    }

    /// The tasks of its events, by number.
    pub(crate) fn tasks(&self) -> BTreeMap<u32, String> {
        self.scope().store().tasks()
    }

    /// A path within it, for messages.
    fn shown(&self, path: &str) -> String {
        format!("`{}{path}`", self.folder)
    }

    /// The node at a path.
    pub(crate) fn find(&self, path: &str) -> Result<Node, TracerError> {
        let is_it = |node: &Node| {
            (self.is_top() || node.is_of_instance()) && node.is_there(self.engine(), self.vcpus)
        };
        Node::at(path).filter(is_it).ok_or_else(|| {
            let message = format!("there is no {}: see the folder above it", self.shown(path));
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
        listed::all(self.scope()).into_iter().filter(is_it).collect()
    }

    /// The text of a file of an event.
    fn read_event(&self, node: &Node) -> Result<String, TracerError> {
        let (Node::OfEvent(group, name, _) | Node::Enable(Some(group), Some(name))) = node else {
            return Err(TracerError::new("ENOENT", "this is no event's file"));
        };
        let (engine, scope) = (&**self.engine(), self.scope());
        let own = scope.status((group, name))?;
        let enabled_text = |of_top: (bool, usize)| {
            let (on, triggers) = own.as_ref().map_or(of_top, |own| (own.enabled, own.triggers));
            event::enabled_text_of(on, triggers)
        };
        if let Some(found) = synthetic::find(engine, group, name) {
            return match node {
                Node::OfEvent(_, _, file) => event::read_synthetic(scope, &found, *file),
                _ => {
                    let triggers = found.triggers + usize::from(found.is_switched);
                    Ok(enabled_text((found.enabled, triggers)))
                }
            };
        }
        let probe = engine.show(group, name);
        let probe = probe.map_err(|_| TracerError::new("ENOENT", "the event has gone"))?;
        match node {
            Node::OfEvent(_, _, file) => event::read(scope, &probe, *file),
            _ => Ok(enabled_text((probe.enabled, probe.triggers))),
        }
    }

    /// Names and kinds of what a folder has; `None` of a file.
    pub(crate) fn list(&self, path: &str) -> Result<Option<Vec<(String, NodeKind)>>, TracerError> {
        let node = self.find(path)?;
        Ok(node.entries(self.is_top(), || self.engine().names(), self.vcpus))
    }

    pub(crate) fn events(&self) -> KeptEvents {
        KeptEvents::new(Arc::clone(&self.kept))
    }

    pub(crate) fn pipe(&self, path: &str) -> Option<Pipe> {
        match self.find(path).ok()? {
            Node::File(File::TracePipe) => Some(Pipe::new(Arc::clone(&self.kept), None)),
            Node::OfCpu(cpu, CpuFile::TracePipe) => {
                Some(Pipe::new(Arc::clone(&self.kept), Some(cpu)))
            }
            _ => None,
        }
    }

    pub(crate) fn raw_pipe(&self, path: &str) -> Option<RawPipe> {
        match self.find(path).ok()? {
            Node::OfCpu(cpu, CpuFile::TracePipeRaw) => {
                Some(RawPipe::new(Arc::clone(&self.kept), cpu))
            }
            _ => None,
        }
    }

    /// A reader of a file that is read part by part, with the lines that come before it.
    pub(crate) fn open_lines(&self, path: &str) -> Option<(String, LinesReader)> {
        match self.find(path).ok()? {
            Node::File(file) => self.open_file(file),
            Node::OfCpu(cpu, CpuFile::Trace) => Some(self.open_cpu(cpu)),
            Node::OfEvent(group, event, EventFile::Hist) => {
                let reader = HistReader::open(self.scope(), (&group, &event)).ok()?;
                Some((String::new(), self.reader(Lines::Hist(reader))))
            }
            _ => None,
        }
    }

    fn reader(&self, lines: Lines) -> LinesReader {
        LinesReader::new(Arc::clone(&self.kept), lines)
    }

    fn open_file(&self, file: File) -> Option<(String, LinesReader)> {
        if !matches!(file, File::Trace | File::Snapshot) {
            return None;
        }
        self.engine().drain();
        let store = self.scope().store();
        let (events, written, parts) = if file == File::Trace {
            let reader = store.open_trace();
            (reader.events, reader.written, Lines::Trace(reader))
        } else {
            let page = store.snapshot()?;
            (page.events(), page.written(), Lines::Page(page, 0))
        };
        let header = lines::header(events, written, self.vcpus, self.options().get());
        Some((header, self.reader(parts)))
    }

    /// Opens the file `trace` of a vCPU.
    fn open_cpu(&self, cpu: u8) -> (String, LinesReader) {
        self.engine().drain();
        let page = Arc::new(self.scope().store().trace_of_cpu(cpu));
        let options = self.options().get();
        let header = lines::header(page.events(), page.written(), self.vcpus, options);
        (header, self.reader(Lines::Page(page, 0)))
    }

    /// The text of a file as it is now; `tasks` gives those of all instances' events.
    pub(crate) fn read(
        &self,
        path: &str,
        tasks: impl FnOnce() -> BTreeMap<u32, String>,
    ) -> Result<String, TracerError> {
        let node = self.find(path)?;
        if let Node::GroupFilter(_) = node {
            return Ok(GROUP_FILTER.to_owned());
        }
        if node.mode().is_some_and(|mode| mode & 0o400 == 0) {
            return Err(TracerError::new(
                "EINVAL",
                format!("{} can only be written", self.shown(path)),
            ));
        }
        match &node {
            Node::File(file) => self.read_file(*file, tasks),
            Node::Option(option) => Ok(self.options().get().text(*option)),
            Node::OfCpu(cpu, CpuFile::Trace) => Ok(all_lines(self.open_cpu(*cpu))),
            Node::OfCpu(cpu, CpuFile::TracePipe) => {
                Ok(Pipe::new(Arc::clone(&self.kept), Some(*cpu)).take(usize::MAX))
            }
            Node::OfCpu(_, CpuFile::TracePipeRaw) => {
                Err(TracerError::new("EINVAL", format!("{} is no text", self.shown(path))))
            }
            Node::OfFtrace(event, FtraceFile::Format) => Ok(format::ftrace_text(*event)),
            Node::OfFtrace(event, FtraceFile::Id) => Ok(format!("{}\n", format::ftrace_id(*event))),
            Node::OfCpu(cpu, CpuFile::Stats) => {
                self.engine().drain();
                let found = self.scope().store().cpu_statistics(*cpu);
                Ok(buffer::stats_text(found, self.engine().micros()))
            }
            Node::Enable(_, Some(_)) | Node::OfEvent(..) => self.read_event(&node),
            Node::Enable(..) => Ok(event::enabled_text(&self.events_of(&node)).to_owned()),
            _ => Err(TracerError::new("EISDIR", format!("{} is a folder", self.shown(path)))),
        }
    }

    fn read_file(
        &self,
        file: File,
        tasks: impl FnOnce() -> BTreeMap<u32, String>,
    ) -> Result<String, TracerError> {
        let (engine, scope) = (&**self.engine(), self.scope());
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
            File::AvailableEvents => set_event::listing(&listed::all(scope)),
            File::SetEvent => set_event::enabled(&listed::all(scope)),
            File::CurrentTracer | File::AvailableTracers => format!("{TRACER}\n"),
            File::HeaderPage => ring::HEADER_PAGE.to_owned(),
            File::HeaderEvent => ring::HEADER_EVENT.to_owned(),
            File::KprobeProfile => commands::profile(&engine.list()),
            File::Trace | File::Snapshot => match self.open_file(file) {
                Some(opened) => all_lines(opened),
                None => NO_SNAPSHOT.to_owned(),
            },
            File::TracePipe => Pipe::new(Arc::clone(&self.kept), None).take(usize::MAX),
            // It can only be written.
            File::TraceMarker => String::new(),
            File::TraceClock => buffer::CLOCKS.to_owned(),
            File::TraceOptions => self.options().get().listing(),
            File::BufferSize => buffer::size_text(scope.store(), self.vcpus),
            File::SavedCmdlines => buffer::tasks_text(&tasks()),
            File::BufferTotalSize => buffer::size_text(scope.store(), 1),
            File::TracingOn => {
                self.engine().drain();
                digit(scope.store().is_tracing())
            }
            File::ErrorLog => lock(&self.log).text(),
            File::Optimization => digit(self.engine().is_optimization_allowed()),
            File::List => kprobes::list_text(&self.engine().list()),
            File::Enabled => digit(self.engine().is_switched_on()),
            File::Blacklist => kprobes::blacklist_text(&self.engine().blacklist()?),
        })
    }

    /// Does what opening a file with O_TRUNC does.
    pub(crate) fn truncate(&self, path: &str) -> Result<(), TracerError> {
        match self.writable(path)? {
            Node::File(File::KprobeEvents) => commands::clear(self.engine()),
            Node::File(File::SyntheticEvents) => Ok(self.engine().delete_synthetics()?),
            Node::File(File::DynamicEvents) => {
                commands::check_clear(self.engine())?;
                self.engine().delete_synthetics()?;
                commands::clear(self.engine())
            }
            Node::File(File::SetEvent) => {
                event::set_enabled(self.scope(), &listed::all(self.scope()), false)
            }
            Node::File(File::Trace) => {
                self.engine().drain();
                self.scope().store().clear_trace();
                Ok(())
            }
            Node::OfCpu(cpu, CpuFile::Trace) => {
                self.engine().drain();
                self.scope().store().clear_trace_of_cpu(cpu);
                Ok(())
            }
            Node::File(File::ErrorLog) => {
                lock(&self.log).clear();
                Ok(())
            }
            Node::OfEvent(group, event, EventFile::Trigger) => {
                Ok(self.scope().remove_histograms((&group, &event))?)
            }
            _ => Ok(()),
        }
    }

    /// Writes all of a text to a file, as one write.
    pub(crate) fn write(&self, path: &str, text: &str) -> Result<(), TracerError> {
        let node = self.writable(path)?;
        let (engine, scope) = (&**self.engine(), self.scope());
        match &node {
            Node::File(File::KprobeEvents) => {
                commands::Writer::new(engine, &mut lock(&self.log)).write(text)
            }
            Node::File(File::SyntheticEvents) => {
                synthetic::write(engine, &mut lock(&self.log), text)
            }
            Node::File(File::DynamicEvents) => self.write_dynamic(text),
            Node::File(File::SetEvent) => set_event::write(scope, text),
            Node::File(File::CurrentTracer) => choose_tracer(text),
            Node::File(File::TracingOn) => {
                let on = numbers::parse_count(text)? != 0;
                engine.drain();
                scope.store().set_tracing(on);
                Ok(())
            }
            Node::File(File::Snapshot) => self.write_snapshot(text),
            Node::File(File::Enabled) => Ok(engine.switch(numbers::parse_switch(text)?)?),
            Node::File(File::Optimization) => {
                engine.allow_optimization(numbers::parse_switch(text)?);
                Ok(())
            }
            Node::File(File::TraceMarker) => buffer::mark(scope, self.options().get(), text),
            Node::File(File::TraceClock) => buffer::choose_clock(scope, text),
            Node::File(File::BufferSize) => buffer::set_size(scope, self.vcpus, text),
            Node::File(File::TraceOptions) => self.options().write(text),
            Node::Option(option) => self.options().write_one(*option, text),
            // What is written to them is of no importance: that it is empties them.
            Node::File(File::Trace | File::ErrorLog) | Node::OfCpu(_, CpuFile::Trace) => {
                self.truncate(path)
            }
            Node::Enable(..) => event::enable(scope, &self.events_of(&node), text),
            Node::GroupFilter(group) => {
                let (log, events) = (&mut lock(&self.log), self.events_of(&node));
                filter::set_of_group(scope, log, group, &events, text)
            }
            Node::OfEvent(group, event, EventFile::Trigger) => {
                trigger::write(scope, &mut lock(&self.log), (group, event), text)
            }
            Node::OfEvent(group, event, _) => {
                filter::set(scope, &mut lock(&self.log), (group, event), text)
            }
            _ => Err(self.read_only(path)),
        }
    }

    /// Runs commands of all kinds, in order.
    fn write_dynamic(&self, text: &str) -> Result<(), TracerError> {
        let engine = &**self.engine();
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
            Some(mode) if mode & 0o200 == 0 => Err(self.read_only(path)),
            Some(_) => Ok(node),
            None => Err(TracerError::new("EISDIR", format!("{} is a folder", self.shown(path)))),
        }
    }

    /// `1` takes a snapshot, `0` forgets it; other numbers forget its events.
    fn write_snapshot(&self, text: &str) -> Result<(), TracerError> {
        let number = numbers::parse_count(text)?;
        if self.scope().takes_snapshots() {
            let message = "a histogram takes snapshots: `trigger` of its event has it";
            return Err(TracerError::new("EBUSY", message));
        }
        self.engine().drain();
        match number {
            1 => self.scope().store().take_snapshot(),
            _ => self.scope().store().free_snapshot(),
        }
        Ok(())
    }

    fn read_only(&self, path: &str) -> TracerError {
        TracerError::new("EACCES", format!("{} can only be read", self.shown(path)))
    }
}

/// All of a file that was opened.
fn all_lines((header, reader): (String, LinesReader)) -> String {
    header + &reader.collect::<String>()
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
