//! Triggers, in the form of their commands.

use std::fmt;

use super::expression::{Expression, Variable};
use super::field::{HITCOUNT_FIELD, Modifier};
use super::handler::{FieldOf, Handler};
use crate::definition::WrittenFilter;

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

impl Trigger {
    /// Returns true if a command with `other` refers to this trigger: histograms may differ in
    /// their conditions alone, others in more than their conditions.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_hist = matches!(self.kind, TriggerKind::Hist(_));
        self.kind.is_same(&other.kind) && (!is_hist || self.filter == other.filter)
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
    /// Handlers, each of one of the variables.
    pub handlers: Vec<Handler>,
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
        let field = match found {
            // But for that of back-traces.
            Some(found) if found.modifier() == Modifier::Stacktrace => found.name(),
            Some(found) => found.to_string(),
            None => key.field.clone(),
        };
        SortKey { field, ..*key }
    }

    fn is_same(&self, other: &Self) -> bool {
        (&self.name, &self.keys, &self.variables) == (&other.name, &other.keys, &other.variables)
            && (&self.values, &self.sort) == (&other.values, &other.sort)
            && self.handlers == other.handlers
    }

    /// A histogram by some keys, which only sets a variable.
    pub(crate) fn setting(keys: &[Expression], variable: Variable) -> Self {
        Self {
            name: None,
            keys: keys.to_vec(),
            values: Vec::new(),
            variables: vec![variable],
            handlers: Vec::new(),
            sort: vec![SortKey { field: HITCOUNT_FIELD.to_owned(), descending: false }],
            size: SIZE_DEFAULT,
            no_hitcount: false,
            change: None,
        }
    }

    /// All its expressions over the event's fields.
    fn expressions(&self) -> impl Iterator<Item = &Expression> {
        let variables = self.variables.iter().map(|variable| &variable.value);
        let params = self.handlers.iter().flat_map(|handler| handler.action.params());
        let of_hit = params.filter(|param| !matches!(param.of, FieldOf::Event(..)));
        let saved = of_hit.map(|param| &param.value);
        self.keys.iter().chain(&self.values).chain(variables).chain(saved)
    }

    /// Returns true if it has times, which are of a clock.
    pub(super) fn has_time(&self) -> bool {
        self.expressions().any(Expression::has_time)
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

/// The field that a sort key names: a value or a key.
pub(crate) fn sort_field<'a>(
    name: &str,
    keys: &'a [Expression],
    values: &'a [Expression],
) -> Option<&'a Expression> {
    values.iter().chain(keys).find(|found| found.is_sorted_as(name))
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
        if self.has_time() {
            write!(f, ":clock={CLOCK}")?;
        }
        f.write_str(if self.no_hitcount { ":nohitcount" } else { "" })?;
        self.handlers.iter().try_for_each(|handler| write!(f, ":{handler}"))
    }
}
