//! The language of kprobe_events:
//! `p|r[MAXACTIVE][:[GRP/][EVENT]] [MOD:]SYMBOL[+OFFS][%return]|ADDR [[NAME=]BODY[:TYPE] ...]`, and
//! `-:[GRP/][EVENT] [PLACE [ARGUMENT...]]` to delete.
//!
//! Positions are columns of the command as given, so that a caret can be put under them; [`normalised`] gives those of
//! error_log. Identifiers are the tracer's own.

mod argument;
mod body;
mod command;
mod place;
#[cfg(test)]
mod tests;
mod token;

pub use command::{
    Command, Deletion, definition_lines, parse_command, parse_conditional, parse_line,
    split_condition,
};
pub use token::{normalised, without_comment, words};

pub(crate) use argument::BODY_MAX;
pub(crate) use place::parse_place;
