//! Why a line is not a command.

use core::fmt;

use super::MAX_CHILDREN;
use crate::module::MAX_MODULE;
use crate::text::Shown;

/// Why a line is not a command.
#[derive(Debug, PartialEq, Eq)]
pub struct ParseError<'a> {
    /// The command word.
    pub command: &'a [u8],
    /// The fault.
    pub reason: Reason<'a>,
}

/// The reasons of a [`ParseError`].
#[derive(Debug, PartialEq, Eq)]
pub enum Reason<'a> {
    /// No such command.
    Unknown,
    /// An argument is missing.
    Missing(&'static str),
    /// More arguments than the command takes.
    Excess(&'a [u8]),
    /// Not a number, or too large a one.
    BadNumber(&'a [u8]),
    /// `spawn` and `par` cannot run this command.
    NotInChild(&'a [u8]),
    /// More children than [`MAX_CHILDREN`], or none.
    Children,
    /// No kind of requests.
    BadIo(&'a [u8]),
    /// No name that a module can have.
    BadModule(&'a [u8]),
    /// No IPv4 address with a port.
    BadAddress(&'a [u8]),
    /// No [`End`].
    BadEnd(&'a [u8]),
}

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("unknown command"),
            Self::Missing(what) => write!(f, "{what} missing"),
            Self::Excess(word) => write!(f, "unexpected argument {}", Shown(word)),
            Self::BadNumber(word) => write!(f, "bad number {}", Shown(word)),
            Self::NotInChild(word) => write!(f, "cannot run {} in a child", Shown(word)),
            Self::BadIo(word) => write!(f, "bad kind {}: read, write or sync", Shown(word)),
            Self::BadAddress(word) => write!(f, "bad address {}: give 10.0.2.2:7", Shown(word)),
            Self::BadEnd(word) => write!(f, "{} is neither fentry nor fexit", Shown(word)),
            Self::BadModule(word) => write!(
                f,
                "bad module name {}: 1 to {MAX_MODULE} letters, digits, _ and -",
                Shown(word)
            ),
            Self::Children => write!(f, "the number of children must be 1 to {MAX_CHILDREN}"),
        }
    }
}
