//! Triggers, in the form of their commands.

use std::fmt;

use super::expression::{Expression, Variable};
use super::variables::VariableError;
use crate::definition::WrittenFilter;

/// Name of the field with the duration of a return probe's call, in nanoseconds.
pub const LATENCY_FIELD: &str = "common_latency";
/// Name of the count of hits, which is a value of every histogram.
pub(crate) const HITCOUNT_FIELD: &str = "hitcount";
/// Name of the time of a hit, as a field.
pub(crate) const TIME_FIELD: &str = "common_timestamp";
/// The clock of histograms with times, as they are listed.
pub(crate) const CLOCK: &str = "global";
/// Default number of entries of a histogram.
pub(crate) const SIZE_DEFAULT: u32 = 2048;

/// A command of the file `trigger`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TriggerCommand {
    /// Sets a trigger, or changes a histogram.
    Add(Trigger),
    /// Removes one.
    Remove(Trigger),
}

impl TriggerCommand {
    /// The same one as a command of this event.
    pub(crate) fn of_event(self, group: &str, event: &str) -> Self {
        let of_event =
            |trigger: Trigger| Trigger { kind: trigger.kind.of_event(group, event), ..trigger };
        match self {
            Self::Add(trigger) => Self::Add(of_event(trigger)),
            Self::Remove(trigger) => Self::Remove(of_event(trigger)),
        }
    }
}

/// An action that hits of an event trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// Its action.
    pub kind: TriggerKind,
    /// Most times that it is triggered; unlimited if `None`.
    pub count: Option<u64>,
    /// The hits that trigger it; all if `None`.
    pub filter: Option<WrittenFilter>,
}

/// Action of a trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TriggerKind {
    /// Events are kept from that hit on.
    TraceOn,
    /// Events are no longer kept after that hit.
    TraceOff,
    /// The trace is moved to the snapshot, and begins anew with that hit.
    Snapshot,
    /// The hit's event has a back-trace.
    Stacktrace,
    /// Another event is enabled or disabled, or its histograms count on or pause.
    Switch(EventSwitch),
    /// The hit is counted by the values of its fields.
    Hist(Hist),
}

/// A switch of an event, by a trigger of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSwitch {
    /// Its subject.
    pub subject: SwitchSubject,
    /// On: the event is enabled, or its histograms count.
    pub on: bool,
    /// Group of the event.
    pub group: String,
    /// Name of the event.
    pub event: String,
}

/// The part of an event that a trigger switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchSubject {
    /// The event itself: its hits become events or not.
    Event,
    /// Its histograms: they count or pause.
    Histograms,
}

impl EventSwitch {
    fn name(&self) -> &'static str {
        match (self.subject, self.on) {
            (SwitchSubject::Event, true) => "enable_event",
            (SwitchSubject::Event, false) => "disable_event",
            (SwitchSubject::Histograms, true) => "enable_hist",
            (SwitchSubject::Histograms, false) => "disable_hist",
        }
    }
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
            Self::Switch(switch) => switch.name(),
            Self::Hist(_) => "hist",
        }
    }

    /// Returns true if a command with `other` refers to this trigger; for a histogram, all its
    /// parts must agree.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Hist(one), Self::Hist(other)) => one.is_same(other),
            // As in the kernel, an event is either enabled or disabled by another one.
            (Self::Switch(one), Self::Switch(other)) => {
                (one.subject, &one.group, &one.event) == (other.subject, &other.group, &other.event)
            }
            _ => self.name() == other.name(),
        }
    }
}

/// A histogram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hist {
    /// Histograms of one name, of several events, have their entries together.
    pub name: Option<String>,
    /// Keys: one to three.
    pub keys: Vec<Expression>,
    /// Summed up, besides the count of hits.
    pub values: Vec<Expression>,
    /// Variables, each with a value in each entry.
    pub variables: Vec<Variable>,
    /// Sort keys: one or two.
    pub sort: Vec<SortKey>,
    /// Most entries, a power of two.
    pub size: u32,
    /// The count of hits is not shown: there is another value.
    pub no_hitcount: bool,
    /// Change of an existing histogram.
    pub change: Option<HistChange>,
}

impl Hist {
    /// A sort key with its field's modifier, as the kernel lists it.
    fn listed(&self, key: &SortKey) -> SortKey {
        let found = sort_field(&key.field, &self.keys, &self.values);
        let field = found.map_or_else(|| key.field.clone(), ToString::to_string);
        SortKey { field, ..*key }
    }

    fn is_same(&self, other: &Self) -> bool {
        (&self.name, &self.keys, &self.variables) == (&other.name, &other.keys, &other.variables)
            && (&self.values, &self.sort) == (&other.values, &other.sort)
    }
}

/// Change of an existing histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistChange {
    /// Pauses the counting; a new histogram begins paused.
    Pause,
    /// Continues the counting.
    Continue,
    /// Clears all entries.
    Clear,
}

/// A field in a histogram.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HistField {
    /// Its name.
    pub name: String,
    /// Its modifier.
    pub modifier: Modifier,
}

/// The way in which a field of a histogram is counted or shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Modifier {
    /// As it is.
    #[default]
    None,
    /// `.hex`: in hexadecimal digits.
    Hex,
    /// `.sym`: by the function that contains it.
    Sym,
    /// `.sym-offset`: by the function, with the offset in it.
    SymOffset,
    /// `.execname`: a task's number with its name.
    Execname,
    /// `.log2`: grouped by powers of two.
    Log2,
    /// `.buckets=N`: grouped by multiples of N.
    Buckets(u64),
    /// `.usecs`: in microseconds.
    Usecs,
    /// `.syscall`: a system call's number with its name.
    Syscall,
    /// `.percent`: a value's share in the sum of all entries.
    Percent,
    /// `.graph`: a value as a bar, beside the largest one.
    Graph,
}

impl Modifier {
    /// Its name in commands; empty for none.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Hex => "hex",
            Self::Sym => "sym",
            Self::SymOffset => "sym-offset",
            Self::Execname => "execname",
            Self::Log2 => "log2",
            Self::Buckets(_) => "buckets",
            Self::Usecs => "usecs",
            Self::Syscall => "syscall",
            Self::Percent => "percent",
            Self::Graph => "graph",
        }
    }

    /// Returns true if values are shown in this way.
    pub(crate) fn is_of_values(self) -> bool {
        matches!(self, Self::None | Self::Hex | Self::Usecs | Self::Percent | Self::Graph)
    }

    /// Returns true if keys are shown in this way.
    pub(crate) fn is_of_keys(self) -> bool {
        !matches!(self, Self::Percent | Self::Graph)
    }
}

impl HistField {
    /// Returns true for the count of hits as it is.
    pub(crate) fn is_hitcount(&self) -> bool {
        self.name == HITCOUNT_FIELD && self.modifier == Modifier::None
    }
}

/// The field that a sort key names: a value or a key.
pub(crate) fn sort_field<'a>(
    name: &str,
    keys: &'a [Expression],
    values: &'a [Expression],
) -> Option<&'a Expression> {
    values.iter().chain(keys).find(|found| found.is_sorted_as(name))
}

impl fmt::Display for HistField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match self.modifier {
            Modifier::None => Ok(()),
            Modifier::Buckets(size) => write!(f, ".buckets={size}"),
            other => write!(f, ".{}", other.name()),
        }
    }
}

/// A sort key.
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

/// The trigger as the file `trigger` lists it, without a histogram's state.
impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        if let TriggerKind::Switch(EventSwitch { group, event, .. }) = &self.kind {
            write!(f, ":{group}:{event}")?;
        }
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
        if let Some(name) = &self.name {
            write!(f, "name={name}:")?;
        }
        f.write_str("keys=")?;
        list(f, &each(&self.keys))?;
        f.write_str(":vals=")?;
        let hits: Option<&dyn fmt::Display> = (!self.no_hitcount).then_some(&HITCOUNT_FIELD);
        list(f, &hits.into_iter().chain(each(&self.values)).collect::<Vec<_>>())?;
        if !self.variables.is_empty() {
            f.write_str(":")?;
            list(f, &each(&self.variables))?;
        }
        f.write_str(":sort=")?;
        list(f, &each(&self.sort.iter().map(|key| self.listed(key)).collect::<Vec<_>>()))?;
        write!(f, ":size={}", self.size)?;
        let variables = self.variables.iter().map(|variable| &variable.value);
        if self.keys.iter().chain(&self.values).chain(variables).any(Expression::has_time) {
            write!(f, ":clock={CLOCK}")?;
        }
        f.write_str(if self.no_hitcount { ":nohitcount" } else { "" })
    }
}

/// The reason why an event does not get or lose a trigger.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TriggerError {
    /// The event has such a trigger already.
    #[error("the event has a `{0}` trigger already: remove it by `!{0}...` first")]
    There(&'static str),
    /// The event has no such trigger.
    #[error("the event has no such `{0}` trigger: its file `trigger` lists those that it has")]
    NotThere(&'static str),
    /// A histogram's field does not exist.
    #[error("`{name}` is no field of this event, which has {known}")]
    NoField {
        /// The field.
        name: String,
        /// The event's fields.
        known: String,
    },
    /// A field does not fit this use.
    #[error("`{field}`: {why}")]
    BadField {
        /// The field, as it was written.
        field: String,
        /// The reason, with a remedy.
        why: &'static str,
    },
    /// A field does not have this modifier.
    #[error("`{field}`: {why}")]
    BadModifier {
        /// The field, as it was written.
        field: HistField,
        /// The reason, with a remedy.
        why: &'static str,
    },
    /// A histogram of this name has other fields.
    #[error(
        "a histogram `{0}` with other keys, values, variables or sort keys exists: give this one another name"
    )]
    OtherOfName(String),
    /// `nohitcount` leaves no value.
    #[error("`nohitcount` needs another value: write `values=FIELD`")]
    NoValue,
    /// A histogram's variables.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// A filter compares a value that is not recorded.
    #[error(
        "the filter's `{0}` is the user's memory at the hit, and triggers go by what is recorded: record the text as \
         an argument"
    )]
    UserText(String),
    /// The probe has other actions, or does not record.
    #[error(
        "the probe does more than to record its hits, or does not: triggers, which look at every hit, are for those \
         that only record"
    )]
    NotOnlyRecords,
    /// The event that is to be switched does not exist.
    #[error("there is no event `{0}` to switch: `available_events` has those that there are")]
    NoEvent(String),
    /// The event has too many triggers.
    #[error("an event has at most {0} triggers")]
    TooMany(usize),
    /// The probe waits for its place.
    #[error("the probe waits for its place; its fields are known only after that")]
    Pending,
}

impl TriggerError {
    /// Name of the errno.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::There(_) => "EEXIST",
            Self::NotThere(_) | Self::NoValue => "ENOENT",
            Self::Pending => "EAGAIN",
            Self::TooMany(_) => "E2BIG",
            Self::Variable(error) => error.code(),
            Self::NoEvent(_)
            | Self::OtherOfName(_)
            | Self::NoField { .. }
            | Self::BadField { .. }
            | Self::BadModifier { .. }
            | Self::UserText(_)
            | Self::NotOnlyRecords => "EINVAL",
        }
    }

    /// The tracer's identifier (error_log), and the part of the command at fault.
    #[must_use]
    pub fn fault(&self) -> (&'static str, Option<&str>) {
        match self {
            Self::There("hist") => ("HIST_TRIGGER_EXISTS", None),
            Self::There(_) => ("TRIGGER_EEXIST", None),
            Self::OtherOfName(_) => ("NAMED_MISMATCH", Some("name")),
            Self::NotThere(_) => ("TRIGGER_ENOENT_CLEAR", None),
            Self::NoField { name, .. } => ("FIELD_NOT_FOUND", Some(name)),
            Self::BadField { field, .. } => ("BAD_FIELD_MODIFIER", Some(field)),
            Self::BadModifier { field, .. } => ("BAD_FIELD_MODIFIER", Some(field.modifier.name())),
            Self::NoValue => ("NEED_NOHC_VAL", None),
            Self::UserText(name) => ("ILLEGAL_FIELD_OP", Some(name)),
            Self::Variable(error) => error.fault(),
            Self::NoEvent(_) | Self::NotOnlyRecords | Self::TooMany(_) | Self::Pending => {
                ("HIST_CREATE_FAIL", None)
            }
        }
    }
}
