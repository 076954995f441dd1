//! The tracer's folder: which paths there are.

use std::collections::BTreeSet;
use std::sync::Arc;

use exoprobe_probes::Engine;

use crate::options::TraceOption;

/// A folder or a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A folder.
    Directory,
    /// A file, with its permissions.
    File(u16),
}

/// Of an event: its group and itself.
pub(crate) type Name = (Arc<str>, Arc<str>);

const READ: u16 = 0o440;
const READ_WRITE: u16 = 0o640;
const WRITE: u16 = 0o220;

/// The node at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Root,
    Kprobes,
    Events,
    Group(String),
    Event(String, String),
    File(File),
    /// `events/enable`, `events/GROUP/enable`, `events/GROUP/EVENT/enable`.
    Enable(Option<String>, Option<String>),
    /// `events/GROUP/filter`.
    GroupFilter(String),
    OfEvent(String, String, EventFile),
    Options,
    /// `options/NAME`.
    Option(TraceOption),
    PerCpu,
    /// `per_cpu/cpuN`.
    Cpu(u8),
    OfCpu(u8, CpuFile),
    /// `instances`. The folders in it have nodes of their own: see [`split_instance`].
    Instances,
    /// `events/ftrace`.
    Ftrace,
    /// `events/ftrace/EVENT`.
    FtraceEvent(FtraceEvent),
    OfFtrace(FtraceEvent, FtraceFile),
}

/// An event that is no probe's, which readers of raw pages find there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FtraceEvent {
    /// A text of `trace_marker`.
    Print,
    /// The back-trace of the event before it.
    KernelStack,
}

impl FtraceEvent {
    const ALL: [Self; 2] = [Self::Print, Self::KernelStack];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Print => "print",
            Self::KernelStack => "kernel_stack",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.name() == name)
    }
}

macro_rules! files {
    ($type:ident: $($variant:ident $name:literal $mode:ident $doc:literal),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $type {
            $(#[doc = $doc] $variant,)*
        }

        impl $type {
            pub(crate) const ALL: &[Self] = &[$(Self::$variant),*];

            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            pub(crate) fn mode(self) -> u16 {
                match self { $(Self::$variant => $mode,)* }
            }

            fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|file| file.name() == name)
            }
        }
    };
}

files! { File:
    Readme "README" READ "What the files are for.",
    KprobeEvents "kprobe_events" READ_WRITE "The definitions.",
    KprobeProfile "kprobe_profile" READ "Hits and misses.",
    Trace "trace" READ_WRITE "The events.",
    TracePipe "trace_pipe" READ "The events, as they come; a read takes them.",
    DynamicEvents "dynamic_events" READ_WRITE "The definitions of all kinds.",
    SyntheticEvents "synthetic_events" READ_WRITE "The definitions of synthetic events.",
    AvailableEvents "available_events" READ "All events.",
    SetEvent "set_event" READ_WRITE "The events that are enabled.",
    CurrentTracer "current_tracer" READ_WRITE "The current tracer: always nop.",
    AvailableTracers "available_tracers" READ "The tracers that there are.",
    TracingOn "tracing_on" READ_WRITE "Whether events are kept.",
    TraceMarker "trace_marker" WRITE "Takes texts among the events.",
    TraceClock "trace_clock" READ_WRITE "The clock of the events: always local.",
    TraceOptions "trace_options" READ_WRITE "The options.",
    BufferSize "buffer_size_kb" READ_WRITE "Memory for events, for each vCPU.",
    SavedCmdlines "saved_cmdlines" READ "The tasks of the events.",
    BufferTotalSize "buffer_total_size_kb" READ "Memory for events.",
    Snapshot "snapshot" READ_WRITE "The trace as it was when a snapshot was taken.",
    ErrorLog "error_log" READ_WRITE "The last faults of what was written.",
    Optimization "kprobes-optimization" READ_WRITE "debug.kprobes-optimization.",
    List "kprobes/list" READ "All probes.",
    Enabled "kprobes/enabled" READ_WRITE "The switch over all probes.",
    Blacklist "kprobes/blacklist" READ "Where no probe may be.",
    HeaderPage "events/header_page" READ "How a page of the ring buffer begins.",
    HeaderEvent "events/header_event" READ "How an entry of the ring buffer begins.",
}

impl File {
    /// Returns true if trace instances have it, too: it is about events that are kept, and not
    /// about all probes.
    fn is_of_instance(self) -> bool {
        match self {
            Self::Trace
            | Self::TracePipe
            | Self::SetEvent
            | Self::CurrentTracer
            | Self::AvailableTracers
            | Self::TracingOn
            | Self::TraceMarker
            | Self::TraceClock
            | Self::TraceOptions
            | Self::BufferSize
            | Self::BufferTotalSize
            | Self::Snapshot
            | Self::ErrorLog
            | Self::HeaderPage
            | Self::HeaderEvent => true,
            Self::Readme
            | Self::KprobeEvents
            | Self::KprobeProfile
            | Self::DynamicEvents
            | Self::SyntheticEvents
            | Self::AvailableEvents
            | Self::SavedCmdlines
            | Self::Optimization
            | Self::List
            | Self::Enabled
            | Self::Blacklist => false,
        }
    }
}

files! { EventFile:
    Filter "filter" READ_WRITE "Which hits count.",
    Trigger "trigger" READ_WRITE "What hits set off.",
    Hist "hist" READ "Hits counted by what their fields are.",
    Format "format" READ "The fields.",
    Id "id" READ "The event's number.",
}

files! { CpuFile:
    Trace "trace" READ_WRITE "The events.",
    TracePipe "trace_pipe" READ "The events, as they come; a read takes them.",
    Stats "stats" READ "Numbers of events.",
    TracePipeRaw "trace_pipe_raw" READ "The events as pages of the ring buffer; a read takes them.",
}

files! { FtraceFile:
    Format "format" READ "The fields.",
    Id "id" READ "The event's number.",
}

pub(crate) const ENABLE: &str = "enable";
const FILTER: &str = "filter";
/// Of files that are in a folder of the root.
const KPROBES: &str = "kprobes";
const EVENTS: &str = "events";
const OPTIONS: &str = "options";
const PER_CPU: &str = "per_cpu";
const INSTANCES: &str = "instances";
const FTRACE: &str = "ftrace";
/// Of the folders in that: `cpuN`.
const CPU: &str = "cpu";

/// The number in the name of a vCPU's folder.
fn cpu_named(name: &str) -> Option<u8> {
    let number = name.strip_prefix(CPU)?.parse().ok()?;
    (format!("{CPU}{number}") == name).then_some(number)
}

/// A name in a folder.
type Entry = (String, NodeKind);

/// The files and folders of a folder. A file hides the folder of an event, or a group, of its name.
fn with_folders(files: Vec<Entry>, folders: impl Iterator<Item = Entry>) -> Vec<Entry> {
    let is_free = |(name, _): &Entry| files.iter().all(|(file, _)| file != name);
    let mut all: Vec<Entry> = folders.filter(is_free).collect();
    all.extend(files);
    all
}

/// The names in a path.
fn parts(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !part.is_empty()).collect()
}

/// The trace instance that a path is in, if it is in one, and the path within it.
pub(crate) fn split_instance(path: &str) -> Option<(&str, String)> {
    match parts(path).as_slice() {
        [INSTANCES, name, rest @ ..] => Some((name, rest.join("/"))),
        _ => None,
    }
}

impl Node {
    /// The node at a path, whether or not its group and event exist.
    pub(crate) fn at(path: &str) -> Option<Self> {
        let parts = parts(path);
        let some = |name: &str| Some(name.to_owned());
        if let Some(file) = File::named(&parts.join("/")) {
            return Some(Self::File(file));
        }
        Some(match parts.as_slice() {
            [] => Self::Root,
            [KPROBES] => Self::Kprobes,
            [EVENTS] => Self::Events,
            [OPTIONS] => Self::Options,
            [OPTIONS, name] => Self::Option(TraceOption::named(name)?),
            [PER_CPU] => Self::PerCpu,
            [INSTANCES] => Self::Instances,
            [PER_CPU, cpu] => Self::Cpu(cpu_named(cpu)?),
            [PER_CPU, cpu, name] => Self::OfCpu(cpu_named(cpu)?, CpuFile::named(name)?),
            [EVENTS, ENABLE] => Self::Enable(None, None),
            [EVENTS, FTRACE] => Self::Ftrace,
            [EVENTS, FTRACE, event] => Self::FtraceEvent(FtraceEvent::named(event)?),
            [EVENTS, FTRACE, event, name] => {
                Self::OfFtrace(FtraceEvent::named(event)?, FtraceFile::named(name)?)
            }
            [EVENTS, group] => Self::Group((*group).to_owned()),
            [EVENTS, group, ENABLE] => Self::Enable(some(group), None),
            [EVENTS, group, FILTER] => Self::GroupFilter((*group).to_owned()),
            [EVENTS, group, event] => Self::Event((*group).to_owned(), (*event).to_owned()),
            [EVENTS, group, event, ENABLE] => Self::Enable(some(group), some(event)),
            [EVENTS, group, event, name] => {
                Self::OfEvent((*group).to_owned(), (*event).to_owned(), EventFile::named(name)?)
            }
            _ => return None,
        })
    }

    /// Returns true if trace instances have it, too.
    pub(crate) fn is_of_instance(&self) -> bool {
        match self {
            Self::File(file) => file.is_of_instance(),
            Self::Kprobes | Self::Instances => false,
            _ => true,
        }
    }

    /// Names and kinds of what a folder has, of the top or of a trace instance; `None` of a file.
    /// `names` gives those of all events, with their groups, `vcpus` is the number of vCPUs.
    /// `instances` has none here.
    pub(crate) fn entries(
        &self,
        is_top: bool,
        names: impl FnOnce() -> Vec<Name>,
        vcpus: usize,
    ) -> Option<Vec<Entry>> {
        let writable = |name: &str| (name.to_owned(), NodeKind::File(READ_WRITE));
        let within = |folder: &'static str| {
            let name = move |file: &File| file.name().strip_prefix(folder)?.strip_prefix('/');
            let files = File::ALL.iter().filter_map(move |file| Some((name(file)?, file.mode())));
            files.map(|(name, mode)| (name.to_owned(), NodeKind::File(mode)))
        };
        let folder = |name: &str| (name.to_owned(), NodeKind::Directory);
        Some(match self {
            Self::Root => {
                let files = File::ALL.iter().filter(|file| !file.name().contains('/'));
                let files = files.filter(|file| is_top || file.is_of_instance());
                let files = files.map(|file| (file.name().to_owned(), NodeKind::File(file.mode())));
                let of_top = [KPROBES, INSTANCES].into_iter().filter(|_| is_top);
                files
                    .chain([EVENTS, OPTIONS, PER_CPU].into_iter().chain(of_top).map(folder))
                    .collect()
            }
            Self::Kprobes => within(KPROBES).collect(),
            Self::Events => {
                let names = names();
                let groups = names.iter().map(|(group, _)| &**group);
                let groups: BTreeSet<&str> = groups.chain([FTRACE]).collect();
                let files = [writable(ENABLE)].into_iter().chain(within(EVENTS)).collect();
                with_folders(files, groups.iter().map(|group| folder(group)))
            }
            Self::Group(group) => {
                let names = names();
                let events = names.iter().filter(|(of, _)| **of == **group);
                let events = events.map(|(_, event)| folder(event));
                with_folders(vec![writable(ENABLE), writable(FILTER)], events)
            }
            Self::Event(..) => {
                let files = EventFile::ALL.iter();
                let files = files.map(|file| (file.name().to_owned(), NodeKind::File(file.mode())));
                files.chain([writable(ENABLE)]).collect()
            }
            Self::Options => TraceOption::ALL.map(|option| writable(option.name())).into(),
            Self::PerCpu => (0..vcpus).map(|cpu| folder(&format!("{CPU}{cpu}"))).collect(),
            Self::Cpu(_) => {
                let files = CpuFile::ALL.iter();
                files.map(|file| (file.name().to_owned(), NodeKind::File(file.mode()))).collect()
            }
            Self::Instances => Vec::new(),
            Self::Ftrace => FtraceEvent::ALL.map(|event| folder(event.name())).into(),
            Self::FtraceEvent(_) => {
                let files = FtraceFile::ALL.iter();
                files.map(|file| (file.name().to_owned(), NodeKind::File(file.mode()))).collect()
            }
            Self::File(_)
            | Self::OfFtrace(..)
            | Self::Enable(..)
            | Self::GroupFilter(_)
            | Self::OfEvent(..)
            | Self::Option(_)
            | Self::OfCpu(..) => return None,
        })
    }

    /// Returns true if the group, the event and the vCPU that it is about are there.
    pub(crate) fn is_there(&self, engine: &Engine, vcpus: usize) -> bool {
        match self {
            Self::Group(group) | Self::GroupFilter(group) | Self::Enable(Some(group), None) => {
                engine.has_event(group, None)
            }
            Self::Event(group, event)
            | Self::OfEvent(group, event, _)
            | Self::Enable(Some(group), Some(event)) => engine.has_event(group, Some(event)),
            Self::Cpu(cpu) | Self::OfCpu(cpu, _) => usize::from(*cpu) < vcpus,
            _ => true,
        }
    }

    /// Its permissions if it is a file.
    pub(crate) fn mode(&self) -> Option<u16> {
        match self {
            Self::File(file) => Some(file.mode()),
            Self::OfEvent(_, _, file) => Some(file.mode()),
            Self::OfCpu(_, file) => Some(file.mode()),
            Self::OfFtrace(_, file) => Some(file.mode()),
            Self::Enable(..) | Self::GroupFilter(_) | Self::Option(_) => Some(READ_WRITE),
            Self::Root
            | Self::Kprobes
            | Self::Events
            | Self::Group(_)
            | Self::Event(..)
            | Self::Options
            | Self::PerCpu
            | Self::Instances
            | Self::Ftrace
            | Self::FtraceEvent(_)
            | Self::Cpu(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vcpu_has_one_name() {
        assert_eq!(Node::at("per_cpu/cpu0/stats"), Some(Node::OfCpu(0, CpuFile::Stats)));
        assert_eq!(Node::at("per_cpu/cpu12"), Some(Node::Cpu(12)));
        for name in ["cpu", "cpu00", "cpu+1", "cpu-1", "cpu256", "0", "CPU0", "cpu0 "] {
            assert_eq!(Node::at(&format!("per_cpu/{name}")), None, "{name}");
        }
        assert_eq!(Node::at("per_cpu/cpu0/buffer_size_kb"), None);
        assert_eq!(Node::at("options/overwrite"), None);
    }

    #[test]
    fn a_path_is_in_one_instance() {
        let inside = |path| split_instance(path).map(|(name, rest)| format!("{name}:{rest}"));
        assert_eq!(inside("instances"), None);
        assert_eq!(inside("trace"), None);
        assert_eq!(inside("/instances//foo"), Some("foo:".to_owned()));
        assert_eq!(inside("instances/a b/events/g/e/id"), Some("a b:events/g/e/id".to_owned()));
        assert_eq!(inside("instances/foo/instances/bar"), Some("foo:instances/bar".to_owned()));
        let has = |path: &str| Node::at(path).map(|node| node.is_of_instance());
        assert_eq!([has("trace"), has("events/g/e/trigger")], [Some(true); 2]);
        for path in ["kprobe_events", "instances", "kprobes", "kprobes/list"] {
            assert_eq!(has(path), Some(false), "{path}");
        }
    }
}
