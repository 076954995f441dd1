//! Triggers, as their commands say.

use std::fmt;

use crate::definition::Filter;

/// Name of the field that says how long a return probe's call took, in nanoseconds.
pub const LATENCY_FIELD: &str = "common_latency";
/// Entries of a histogram that says nothing of its size.
pub(crate) const SIZE_DEFAULT: u32 = 2048;

/// A command of the file `trigger`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TriggerCommand {
    /// Sets a trigger, or changes a histogram.
    Add(Trigger),
    /// Removes one.
    Remove(Trigger),
}

/// Something that a hit of an event sets off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// What.
    pub kind: TriggerKind,
    /// How often at most; always without one.
    pub count: Option<u64>,
    /// By which hits; by all without one.
    pub filter: Option<Filter>,
}

/// What a trigger does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TriggerKind {
    /// Events are kept from that hit on.
    TraceOn,
    /// Events are not kept any more behind that hit.
    TraceOff,
    /// The trace goes into the snapshot, and begins anew with that hit.
    Snapshot,
    /// The hit's event has a back-trace.
    Stacktrace,
    /// The hit is counted by what its fields are.
    Hist(Hist),
}

impl TriggerKind {
    /// Its name in commands.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::TraceOn => "traceon",
            Self::TraceOff => "traceoff",
            Self::Snapshot => "snapshot",
            Self::Stacktrace => "stacktrace",
            Self::Hist(_) => "hist",
        }
    }

    /// Whether a command with `other` means this one: a histogram by all that it is made of.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Hist(one), Self::Hist(other)) => one.is_same(other),
            _ => self.name() == other.name(),
        }
    }
}

/// A histogram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hist {
    /// What hits are told apart by: one to three.
    pub keys: Vec<HistField>,
    /// What is summed up beside the count of hits.
    pub values: Vec<HistField>,
    /// What entries are sorted by: one or two.
    pub sort: Vec<SortKey>,
    /// Most entries, a power of two.
    pub size: u32,
    /// What the command wants of one that there is.
    pub change: Option<HistChange>,
}

impl Hist {
    fn is_same(&self, other: &Self) -> bool {
        (&self.keys, &self.values, &self.sort) == (&other.keys, &other.values, &other.sort)
    }
}

/// What becomes of a histogram that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistChange {
    /// It counts no more; a new one begins so.
    Pause,
    /// It counts again.
    Continue,
    /// It begins anew.
    Clear,
}

/// A field in a histogram.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HistField {
    /// Its name.
    pub name: String,
    /// How it is counted or shown.
    pub modifier: Modifier,
}

/// How a field of a histogram is counted, or shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Modifier {
    /// As it is.
    #[default]
    None,
    /// `.hex`: in hexadecimal digits.
    Hex,
    /// `.sym`: by the function it is in.
    Sym,
    /// `.sym-offset`: and how far within it.
    SymOffset,
    /// `.execname`: a task's number with its name.
    Execname,
    /// `.log2`: told apart by powers of two alone.
    Log2,
    /// `.buckets=N`: told apart by multiples of N alone.
    Buckets(u64),
    /// `.usecs`: in microseconds.
    Usecs,
}

impl fmt::Display for HistField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match self.modifier {
            Modifier::None => Ok(()),
            Modifier::Hex => f.write_str(".hex"),
            Modifier::Sym => f.write_str(".sym"),
            Modifier::SymOffset => f.write_str(".sym-offset"),
            Modifier::Execname => f.write_str(".execname"),
            Modifier::Log2 => f.write_str(".log2"),
            Modifier::Buckets(size) => write!(f, ".buckets={size}"),
            Modifier::Usecs => f.write_str(".usecs"),
        }
    }
}

/// What entries are sorted by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// `hitcount`, or a key or value, by name.
    pub field: String,
    /// The largest comes first.
    pub descending: bool,
}

impl fmt::Display for SortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.field, if self.descending { ".descending" } else { "" })
    }
}

/// The trigger as the file `trigger` lists it, but for a histogram's state.
impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        match (&self.kind, self.count) {
            (TriggerKind::Hist(hist), _) => write!(f, ":{hist}")?,
            (_, Some(count)) => write!(f, ":count={count}")?,
            (_, None) => f.write_str(":unlimited")?,
        }
        match &self.filter {
            Some(filter) => write!(f, " if {filter}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Hist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, all: &[&dyn fmt::Display]| {
            all.iter().enumerate().try_for_each(|(index, one)| {
                write!(f, "{}{one}", if index == 0 { "" } else { "," })
            })
        };
        fn each<T: fmt::Display>(all: &[T]) -> Vec<&dyn fmt::Display> {
            all.iter().map(|one| one as &dyn fmt::Display).collect()
        }
        f.write_str("keys=")?;
        list(f, &each(&self.keys))?;
        f.write_str(":vals=hitcount")?;
        self.values.iter().try_for_each(|value| write!(f, ",{value}"))?;
        f.write_str(":sort=")?;
        list(f, &each(&self.sort))?;
        write!(f, ":size={}", self.size)
    }
}

/// Why an event does not get a trigger, or keeps it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TriggerError {
    /// There is one like it.
    #[error("the event has a `{0}` trigger already: remove it by `!{0}...` first")]
    There(&'static str),
    /// There is none like it.
    #[error("the event has no such `{0}` trigger: its file `trigger` lists those that it has")]
    NotThere(&'static str),
    /// A histogram asks for what is not there.
    #[error("`{name}` is no field of this event, which has {known}")]
    NoField {
        /// The field.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// A field is none for that.
    #[error("`{field}`: {why}")]
    BadField {
        /// The field, as it was written.
        field: String,
        /// Why not, and what would do.
        why: &'static str,
    },
    /// A filter looks at what is not recorded.
    #[error(
        "the filter's `{0}` is the user's memory at the hit, and triggers go by what is recorded: record the text as \
         an argument"
    )]
    UserText(String),
    /// The probe does other things, or does not record.
    #[error(
        "the probe does more than to record its hits, or does not: triggers, which look at every hit, are for those \
         that only record"
    )]
    NotOnlyRecords,
    /// The event has many.
    #[error("an event has at most {0} triggers")]
    TooMany(usize),
    /// The probe waits.
    #[error("the probe waits for its place, and what its fields are is known only then")]
    Pending,
}

impl TriggerError {
    /// Name of the errno.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::There(_) => "EEXIST",
            Self::NotThere(_) => "ENOENT",
            Self::Pending => "EAGAIN",
            Self::TooMany(_) => "E2BIG",
            Self::NoField { .. }
            | Self::BadField { .. }
            | Self::UserText(_)
            | Self::NotOnlyRecords => "EINVAL",
        }
    }

    /// The tracer's identifier (error_log), and the part of the command that it is about.
    #[must_use]
    pub fn fault(&self) -> (&'static str, Option<&str>) {
        match self {
            Self::There(_) => ("TRIGGER_EEXIST", None),
            Self::NotThere(_) => ("TRIGGER_ENOENT_CLEAR", None),
            Self::NoField { name, .. } => ("FIELD_NOT_FOUND", Some(name)),
            Self::BadField { field, .. } => ("BAD_FIELD_MODIFIER", Some(field)),
            Self::UserText(name) => ("ILLEGAL_FIELD_OP", Some(name)),
            Self::NotOnlyRecords | Self::TooMany(_) | Self::Pending => ("HIST_CREATE_FAIL", None),
        }
    }
}
