//! Handlers of histograms (histogram.rst, "Handlers" and "Actions"): an action is done at some of
//! the hits that a histogram counts.

use std::fmt;

use super::expression::Expression;

/// A handler, and its action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handler {
    /// The hits at which its action is done.
    pub condition: HandlerCondition,
    /// Its action.
    pub action: HandlerAction,
}

/// The hits at which a handler acts, of those that the histogram counts.
///
/// `onmax` and `onchange` are of one of the histogram's variables. Each entry keeps its value at
/// the last hit at which the handler acted, 0 at first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandlerCondition {
    /// `onmatch(GROUP.EVENT)`: all. Parameters may be variables of that event.
    Match {
        /// Group of the event.
        group: String,
        /// Name of the event.
        event: String,
    },
    /// `onmax($VAR)`: the value is larger than the one that the entry keeps.
    Max(String),
    /// `onchange($VAR)`: the value is another one than the one that the entry keeps.
    Change(String),
}

/// Action of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandlerAction {
    /// The entry keeps values of the hit.
    Save(Vec<ActionParam>),
    /// The trace goes into the snapshot, if the condition holds for all entries together.
    Snapshot,
    /// A synthetic event is made.
    Trace {
        /// Its name.
        event: String,
        /// It is written as `trace(NAME,...)`, not as `NAME(...)`.
        has_keyword: bool,
        /// Values of its fields.
        params: Vec<ActionParam>,
    },
}

/// A value of a hit, as a parameter of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionParam {
    /// Its name: the value as it was written.
    pub name: String,
    /// The event of a field.
    pub of: FieldOf,
    /// A field, a constant or a variable.
    pub value: Expression,
}

impl ActionParam {
    /// Its name without the event.
    pub(crate) fn without_event(&self) -> &str {
        self.name.splitn(3, '.').last().unwrap_or(&self.name)
    }
}

/// The event of a field that is a parameter of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldOf {
    /// No event is written: that of the histogram, or that of `onmatch`.
    Any,
    /// That of the histogram.
    Own,
    /// Another one, by group and name.
    Event(String, String),
}

impl HandlerCondition {
    /// The variable that it is of.
    #[must_use]
    pub fn variable(&self) -> Option<&str> {
        match self {
            Self::Match { .. } => None,
            Self::Max(variable) | Self::Change(variable) => Some(variable),
        }
    }

    /// Its name in the file `hist`, where that shows the value that an entry keeps.
    #[must_use]
    pub fn shown(&self) -> Option<&'static str> {
        match self {
            Self::Match { .. } => None,
            Self::Max(_) => Some("max"),
            Self::Change(_) => Some("changed"),
        }
    }

    /// Returns true if it holds for a new value.
    pub(crate) fn holds(&self, kept: u64, new: u64) -> bool {
        match self {
            Self::Match { .. } => true,
            Self::Max(_) => new > kept,
            Self::Change(_) => new != kept,
        }
    }
}

impl fmt::Display for HandlerCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Match { group, event } => write!(f, "onmatch({group}.{event})"),
            Self::Max(variable) => write!(f, "onmax(${variable})"),
            Self::Change(variable) => write!(f, "onchange(${variable})"),
        }
    }
}

impl HandlerAction {
    /// The values that it takes of a hit.
    pub(crate) fn params(&self) -> &[ActionParam] {
        match self {
            Self::Save(params) | Self::Trace { params, .. } => params,
            Self::Snapshot => &[],
        }
    }

    /// The values that it takes of a hit.
    pub(crate) fn params_mut(&mut self) -> &mut [ActionParam] {
        match self {
            Self::Save(params) | Self::Trace { params, .. } => params,
            Self::Snapshot => &mut [],
        }
    }

    /// The synthetic event that it makes.
    pub(crate) fn makes(&self) -> Option<&str> {
        match self {
            Self::Trace { event, .. } => Some(event),
            Self::Save(_) | Self::Snapshot => None,
        }
    }
}

impl fmt::Display for HandlerAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.params().iter().map(|param| &*param.name).collect();
        let names = names.join(",");
        match self {
            Self::Save(_) => write!(f, "save({names})"),
            Self::Snapshot => f.write_str("snapshot()"),
            Self::Trace { event, has_keyword: true, params } => {
                let between = if params.is_empty() { "" } else { "," };
                write!(f, "trace({event}{between}{names})")
            }
            Self::Trace { event, has_keyword: false, .. } => write!(f, "{event}({names})"),
        }
    }
}

impl fmt::Display for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.condition, self.action)
    }
}
