//! Handlers of histograms (histogram.rst, "Handlers" and "Actions"): an action is done at hits of
//! which a variable of the histogram has a new value.

use std::fmt;

use super::expression::Expression;

/// A handler, and its action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handler {
    /// The hits at which its action is done.
    pub condition: HandlerCondition,
    /// One of the histogram's variables.
    pub variable: String,
    /// Its action.
    pub action: HandlerAction,
}

/// How the value of a variable has to differ from the one that an entry keeps. That is 0 at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerCondition {
    /// `onmax`: it is larger.
    Max,
    /// `onchange`: it is another one.
    Change,
}

/// Action of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandlerAction {
    /// The entry keeps values of the hit.
    Save(Vec<SavedField>),
    /// The trace goes into the snapshot, if the condition holds for all entries together.
    Snapshot,
}

/// A value of a hit that an entry keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedField {
    /// Its name: the value as it was written.
    pub name: String,
    /// A field, a constant or a variable.
    pub value: Expression,
}

impl HandlerCondition {
    /// Its name in commands.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Max => "onmax",
            Self::Change => "onchange",
        }
    }

    /// Its name in the file `hist`.
    #[must_use]
    pub fn shown(self) -> &'static str {
        match self {
            Self::Max => "max",
            Self::Change => "changed",
        }
    }

    /// Returns true if it holds for a new value.
    pub(crate) fn holds(self, kept: u64, new: u64) -> bool {
        match self {
            Self::Max => new > kept,
            Self::Change => new != kept,
        }
    }
}

impl Handler {
    /// Its condition and variable, as in `onmax($VAR)`.
    #[must_use]
    pub fn head(&self) -> String {
        format!("{}(${})", self.condition.name(), self.variable)
    }

    /// The values that it saves.
    pub(crate) fn saved(&self) -> &[SavedField] {
        match &self.action {
            HandlerAction::Save(saved) => saved,
            HandlerAction::Snapshot => &[],
        }
    }

    /// The values that it saves.
    pub(crate) fn saved_mut(&mut self) -> &mut [SavedField] {
        match &mut self.action {
            HandlerAction::Save(saved) => saved,
            HandlerAction::Snapshot => &mut [],
        }
    }
}

impl fmt::Display for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.", self.head())?;
        match &self.action {
            HandlerAction::Save(saved) => {
                let names: Vec<&str> = saved.iter().map(|field| &*field.name).collect();
                write!(f, "save({})", names.join(","))
            }
            HandlerAction::Snapshot => f.write_str("snapshot()"),
        }
    }
}
