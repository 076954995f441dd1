//! Triggers of events (events.rst, "Event triggers"; histogram.rst).
//!
//! A trigger's command is `NAME[:COUNT][ if FILTER]`, for a histogram `hist:keys=...[:...][ if
//! FILTER]`; with a leading `!`, the trigger is removed. Variables of one histogram are values of
//! others (histogram.rst, "Inter-event hist triggers").

mod column;
mod command;
mod entries;
mod error;
mod expression;
mod field;
mod handler;
mod hist;
mod live;
mod parse;
mod parse_expression;
mod parse_handler;
mod part;
mod sort;
mod syscalls;
#[cfg(test)]
mod tests;
mod tracked;
mod value;
mod variables;
mod view;

pub use command::{
    EventSwitch, Hist, HistChange, SortKey, SwitchSubject, Trigger, TriggerCommand, TriggerKind,
};
pub use entries::{HistogramKey, SavedValue, SnapshotTaken, Tracked};
pub use error::{HandlerError, TriggerError, VariableError};
pub use expression::{Expression, Operator, Variable, VariableName};
pub use field::{HistField, LATENCY_FIELD, Modifier};
pub use handler::{ActionParam, FieldOf, Handler, HandlerAction, HandlerCondition};
pub(crate) use live::{
    Fields, GivenStep, Live, SwitchedEvents, Taker, Triggers, holds, switched_events,
};
pub use parse::{parse_trigger, split_trigger};
pub use syscalls::syscall_name;
pub(crate) use tracked::MadeEvent;
pub(crate) use variables::{FoundVariable, OtherField, Variables};
pub use view::{
    CountedEntry, Histogram, HistogramEntry, HistogramField, HistogramNumber, HistogramTable,
    HistogramValue,
};
