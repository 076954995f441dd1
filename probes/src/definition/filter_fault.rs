//! Faults of filters, as the kernel's tracer names and places them.

use std::fmt;

use super::error::ParseError;

/// A fault of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterFault {
    /// There is no comparison at all, nor a place for one.
    Empty,
    /// There is no comparison.
    NoComparison,
    /// The text ends where a comparison belongs.
    Incomplete,
    /// A character begins no comparison where one belongs.
    NoField,
    /// The event has no such field.
    UnknownField,
    /// No operator is after a field.
    NoOperator,
    /// The field does not have this operator.
    WrongOperator,
    /// Text is compared with a number.
    Text,
    /// A number is compared with text.
    Number,
    /// An operand is neither a number nor text.
    NoOperand,
    /// A number has other characters in it, or does not fit the field.
    WrongNumber,
    /// An operand is too long.
    LongOperand,
    /// A quote is not closed.
    OpenQuote,
    /// A `(` is not closed.
    OpenParenthesis,
    /// A `)` closes nothing.
    NoParenthesis,
    /// No `&&`, `||` or `)` is after a comparison.
    NotJoined,
    /// There are too many comparisons.
    TooMany,
    /// There are too many `(` and `!` in one another.
    TooDeep,
    /// No function of this name is known.
    NoFunction,
    /// No `{` is after `CPUS`.
    NoBrace,
    /// The `{` after `CPUS` is not closed.
    OpenBrace,
    /// A list of CPUs is empty or cannot be read.
    WrongCpus,
    /// The filter of a group does not fit one of its events.
    OfGroup,
}

impl FilterFault {
    /// The tracer's identifier (error_log).
    #[must_use]
    pub fn id(self) -> &'static str {
        match self {
            Self::Empty | Self::NoField => "ERRNO",
            Self::NoComparison => "NO_FILTER",
            Self::Incomplete => "INVALID_FILTER",
            Self::UnknownField => "FIELD_NOT_FOUND",
            Self::NoOperator => "INVALID_OP",
            Self::WrongOperator => "ILLEGAL_FIELD_OP",
            Self::Text => "EXPECT_STRING",
            Self::Number => "EXPECT_DIGIT",
            Self::NoOperand => "INVALID_VALUE",
            Self::WrongNumber => "ILLEGAL_INTVAL",
            Self::LongOperand => "OPERAND_TOO_LONG",
            Self::OpenQuote => "MISSING_QUOTE",
            Self::OpenParenthesis | Self::TooDeep => "TOO_MANY_OPEN",
            Self::NoParenthesis => "TOO_MANY_CLOSE",
            Self::NotJoined | Self::TooMany => "TOO_MANY_PREDS",
            Self::NoFunction => "NO_FUNCTION",
            Self::NoBrace => "MISSING_BRACE_OPEN",
            Self::OpenBrace => "MISSING_BRACE_CLOSE",
            Self::WrongCpus => "INVALID_CPULIST",
            Self::OfGroup => "BAD_SUBSYS_FILTER",
        }
    }

    /// The tracer's text for it; `None` where the tracer has none.
    #[must_use]
    pub fn text(self) -> Option<&'static str> {
        Some(match self {
            Self::Empty | Self::NoField => return None,
            Self::NoComparison => "No filter found",
            Self::Incomplete => "Meaningless filter expression",
            Self::UnknownField => "Field not found",
            Self::NoOperator => "Invalid operator",
            Self::WrongOperator => "Illegal operation for field type",
            Self::Text => "Expecting string field",
            Self::Number => "Expecting numeric field",
            Self::NoOperand => "Invalid value (did you forget quotes)?",
            Self::WrongNumber => "Illegal integer value",
            Self::LongOperand => "Operand too long",
            Self::OpenQuote => "Missing matching quote",
            Self::OpenParenthesis | Self::TooDeep => "Too many '('",
            Self::NoParenthesis => "Too few '('",
            Self::NotJoined | Self::TooMany => "Too many terms in predicate expression",
            Self::NoFunction => "Function not found",
            Self::NoBrace => "Missing '{'",
            Self::OpenBrace => "Missing '}'",
            Self::WrongCpus => "Invalid cpulist",
            Self::OfGroup => "Couldn't find or set field in one of a subsystem's events",
        })
    }

    /// The remedy.
    fn remedy(self) -> &'static str {
        match self {
            Self::Empty | Self::NoComparison | Self::Incomplete | Self::NoField => {
                "a comparison belongs here: write `NAME == 5` or `NAME ~ \"text*\"`, and `&&`, `||`, `!`, `( )` \
                 between such"
            }
            Self::UnknownField => "the file `format` has the fields of the event",
            Self::NoOperator => {
                "after a field comes `==`, `!=`, `<`, `<=`, `>`, `>=`, `&`, `~` or `!~`"
            }
            Self::WrongOperator => {
                "`~` is for text; `==`, `!=`, `~` and `!~` are all that is for it"
            }
            Self::Text => "the field is text: compare it by `==`, `!=` or `~` with a \"text\"",
            Self::Number => "the field is a number: compare it with one",
            Self::NoOperand => "write a number (`5`, `0x1f`, `-12`), or a text between quotes",
            Self::WrongNumber => "write a number that fits the field: `5`, `0x1f` or `-12`",
            Self::LongOperand => "a text has at most 255 bytes, a number 23 characters",
            Self::OpenQuote => "the quote at the text's end is missing",
            Self::OpenParenthesis => "the `)` of this is missing",
            Self::NoParenthesis => "this `)` closes nothing",
            Self::NotJoined => "after a comparison comes `&&`, `||`, a `)` or nothing",
            Self::TooMany => "a filter has at most 32 comparisons",
            Self::TooDeep => "at most 16 `(` and `!` are in one another",
            Self::NoFunction => {
                "write the name of a function of the kernel, or an address in it, and a blank after it"
            }
            Self::NoBrace | Self::OpenBrace | Self::WrongCpus => {
                "write a list of CPUs that exist: `CPUS{0,2-3}`"
            }
            Self::OfGroup => "the filter does not fit this event",
        }
    }

    /// The errno of a write of the filter.
    #[must_use]
    pub fn errno(self) -> &'static str {
        match self {
            Self::NoField | Self::NoParenthesis | Self::NotJoined => "EPERM",
            Self::OpenParenthesis => "ENOENT",
            Self::OpenQuote => "ESRCH",
            _ => "EINVAL",
        }
    }
}

impl fmt::Display for FilterFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.text().unwrap_or("Error"), self.remedy())
    }
}

/// A filter that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault}")]
pub struct FilterError {
    /// The fault.
    pub fault: FilterFault,
    /// Column of the fault, from 0, in bytes.
    pub position: usize,
    /// Column of the tracer's caret, from 0: as a rule, that after the fault.
    pub caret: usize,
}

impl From<FilterError> for ParseError {
    fn from(error: FilterError) -> Self {
        let FilterError { fault, position, .. } = error;
        Self { message: error.to_string(), position, id: fault.id() }
    }
}

/// A filter that was refused, which the tracer's file shows until the event has another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedFilter {
    /// The filter as written.
    pub text: Box<str>,
    /// Its fault.
    pub error: FilterError,
}
