//! Reasons why an event does not get, or lose, a trigger.

use super::expression::VariableName;
use super::field::HistField;

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
    /// A histogram's handlers.
    #[error(transparent)]
    Handler(#[from] HandlerError),
    /// Synthetic events have no back-trace.
    #[error("a synthetic event is made of values, and has no back-trace")]
    NoStack,
    /// Two handlers would take snapshots.
    #[error("one handler takes snapshots, not several: remove the histogram that has it first")]
    TakesSnapshots,
    /// A filter of a synthetic event compares a user's text.
    #[error(
        "the filter's `{0}` is a user's memory, and a synthetic event has only its fields: have the text as one"
    )]
    UserText(String),
    /// The probe has other actions, or does not record.
    #[error(
        "the probe does more than to record its hits, or does not: triggers and instances, which look at every hit, \
         are for those that only record"
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
            Self::TakesSnapshots => "EBUSY",
            Self::Variable(error) => error.code(),
            Self::NoEvent(_)
            | Self::OtherOfName(_)
            | Self::NoField { .. }
            | Self::BadField { .. }
            | Self::BadModifier { .. }
            | Self::UserText(_)
            | Self::Handler(_)
            | Self::NoStack
            | Self::NotOnlyRecords => "EINVAL",
        }
    }

    /// The tracer's identifier (error_log), and the part of the command at fault.
    #[must_use]
    pub fn fault(&self) -> (&'static str, Option<&str>) {
        match self {
            Self::There(_) => ("TRIGGER_EEXIST", None),
            Self::OtherOfName(_) => ("NAMED_MISMATCH", Some("name")),
            Self::NotThere(_) => ("TRIGGER_ENOENT_CLEAR", None),
            Self::NoField { name, .. } => ("FIELD_NOT_FOUND", Some(name)),
            Self::BadField { field, .. } => ("BAD_FIELD_MODIFIER", Some(field)),
            Self::BadModifier { field, .. } => ("BAD_FIELD_MODIFIER", Some(field.modifier.name())),
            Self::NoValue => ("NEED_NOHC_VAL", None),
            Self::UserText(name) => ("ILLEGAL_FIELD_OP", Some(name)),
            Self::Variable(error) => error.fault(),
            Self::Handler(error) => error.fault(),
            Self::NoEvent(_)
            | Self::NotOnlyRecords
            | Self::TooMany(_)
            | Self::TakesSnapshots
            | Self::NoStack
            | Self::Pending => ("HIST_CREATE_FAIL", None),
        }
    }
}

/// Reason why variables or expressions are refused, or why a histogram cannot be removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VariableError {
    /// A histogram of the event has a variable of this name.
    #[error("a histogram of this event has a variable `{0}` already: give this one another name")]
    Duplicate(String),
    /// No other histogram has such a variable.
    #[error(
        "no other histogram has the variable `{0}`: set that one first; a histogram cannot refer to its own \
         computed variables"
    )]
    Unknown(VariableName),
    /// Histograms of several events have a variable of this name.
    #[error("several events have a variable `{0}`: write `GROUP.EVENT.${0}`")]
    Ambiguous(String),
    /// A handler's variable is none of its histogram.
    #[error("the histogram has no variable `{0}`: a handler is of one of its own")]
    NotOwn(String),
    /// A key refers to a variable.
    #[error("`{0}`: a key cannot refer to a variable")]
    InKey(String),
    /// Microseconds are computed with other numbers.
    #[error("`{0}`: one operand is in microseconds (.usecs), the other is not")]
    Units(String),
    /// An operand or a variable's value is no number.
    #[error("`{0}` is no number: expressions and variables are of numbers")]
    NoNumber(String),
    /// A division by a constant 0.
    #[error("division by the constant 0 (`{0}`)")]
    DivisionByZero(String),
    /// Other histograms refer to the variables.
    #[error("another histogram refers to variables of `{0}`: remove that histogram first")]
    Referenced(String),
}

impl VariableError {
    /// Name of the errno.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::DivisionByZero(_) => "EDOM",
            Self::Referenced(_) => "EBUSY",
            _ => "EINVAL",
        }
    }

    /// The tracer's identifier (error_log), and the part of the command at fault.
    #[must_use]
    pub fn fault(&self) -> (&'static str, Option<&str>) {
        match self {
            Self::Duplicate(name) => ("DUPLICATE_VAR", Some(name)),
            Self::Unknown(VariableName { name, .. }) => ("VAR_NOT_FOUND", Some(name)),
            Self::Ambiguous(name) => ("VAR_NOT_UNIQUE", Some(name)),
            Self::NotOwn(name) => ("ONX_VAR_NOT_FOUND", Some(name)),
            Self::InKey(key) => ("INVALID_REF_KEY", Some(key)),
            Self::Units(_) => ("TIMESTAMP_MISMATCH", None),
            Self::NoNumber(name) => ("INVALID_STR_OPERAND", Some(name)),
            Self::DivisionByZero(operand) => ("DIVISION_BY_ZERO", Some(operand)),
            Self::Referenced(_) => ("HIST_CREATE_FAIL", None),
        }
    }
}

/// Reason why a handler or its action is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandlerError {
    /// The event of `onmatch` does not exist.
    #[error("there is no event `{0}` of that group: `available_events` has those that there are")]
    NoEvent(String),
    /// The synthetic event does not exist.
    #[error("there is no synthetic event `{0}`: `synthetic_events` has those that there are")]
    NoSynthetic(String),
    /// A parameter is no variable of the histogram, or of the event of `onmatch`.
    #[error("neither the histogram nor the event of `onmatch` has a variable `{0}`")]
    NoParam(String),
    /// The event of a field that is a parameter does not exist.
    #[error(
        "there is no event `{group}.{event}` that has `{field}`: `available_events` has those that there are"
    )]
    NoFieldEvent {
        /// Group of the event.
        group: String,
        /// Name of the event.
        event: String,
        /// The field.
        field: String,
    },
    /// The event of a field that is a parameter has no histogram whose keys can be compared.
    #[error(
        "no histogram of the event of `{0}` has keys of the number and the types of this one: set one first"
    )]
    NoKeys(String),
    /// A parameter is of another type than its field.
    #[error(
        "`{0}` has not the type of its field: numbers have one width and sign (a field of an event counts as one without), \
         texts are char[N]"
    )]
    OtherType(String),
    /// There are fewer parameters than fields.
    #[error("the synthetic event `{0}` has more fields")]
    OtherCount(String),
}

impl HandlerError {
    /// The tracer's identifier (error_log), and the part of the command at fault.
    #[must_use]
    pub fn fault(&self) -> (&'static str, Option<&str>) {
        match self {
            Self::NoEvent(event) => ("INVALID_SUBSYS_EVENT", Some(event)),
            Self::NoSynthetic(event) => ("SYNTH_EVENT_NOT_FOUND", Some(event)),
            Self::NoParam(name) => ("PARAM_NOT_FOUND", Some(name)),
            Self::NoFieldEvent { field, .. } => ("EVENT_FILE_NOT_FOUND", Some(field)),
            Self::NoKeys(field) => ("HIST_NOT_FOUND", Some(field)),
            Self::OtherType(name) => ("SYNTH_TYPE_MISMATCH", Some(name)),
            Self::OtherCount(event) => ("SYNTH_COUNT_MISMATCH", Some(event)),
        }
    }
}
