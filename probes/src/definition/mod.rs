//! Definitions of probes: JSON, or a line of kprobe_events' language.

mod action;
mod argument;
mod error;
mod fetch;
mod field_kind;
mod filter;
mod filter_balance;
mod filter_cpus;
mod filter_fault;
mod filter_function;
mod filter_text;
mod kind;
mod language;
mod names;
mod number;
mod probe;
mod register;
mod value;
mod written_filter;

pub use action::Action;
pub(crate) use argument::Argument;
pub use error::ParseError;
pub(crate) use error::fault;
pub use fetch::{Fetch, FetchArg, NESTING_MAX, Named};
pub(crate) use field_kind::common_field;
pub use field_kind::{FieldKind, FieldKinds};
pub use filter::{
    Comparison, Field, FieldError, FieldUse, FieldValue, Filter, FilterField, TextTest,
};
pub use filter_fault::{FilterError, FilterFault, RefusedFilter};
pub use filter_function::FilterFunction;
pub use filter_text::FILTER_MAX;
pub use kind::ProbeKind;
pub(crate) use language::{BODY_MAX, parse_place};
pub use language::{
    Command, Deletion, definition_lines, normalised, parse_command, parse_conditional, parse_line,
    split_condition, without_comment, words,
};
pub use names::{
    ARG_NAME_MAX, ARGS_MAX, COMM_FIELD, CPU_FIELD, DEFAULT_GROUP, MAXACTIVE_MAX, NAME_MAX,
    PID_FIELD, RECORD_MAX, is_event_name,
};
pub(crate) use names::{STACK_WORDS, USER_TEXT, is_arg_name};
pub(crate) use number::parse_number;
pub use probe::{Flag, ProbeDefinition, ReturnMode};
pub use register::{Register, Segment, UnknownRegister};
pub use value::{ARRAY_MAX, Bits, TEXT_MAX, ValueType, Width};
pub use written_filter::WrittenFilter;
