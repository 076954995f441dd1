//! Faults of commands as the tracer tells them: an identifier and a place in the command (kprobetrace.rst; error_log).

use exoprobe_introspect::LookupError;
use exoprobe_probes::insn::BoundaryError;
use exoprobe_probes::{Fetch, ParameterError, ProbeDefinition, ProbeError};

/// What is wrong with a command that the engine refused, and at which of its columns.
pub(crate) fn fault(
    error: &ProbeError,
    command: &str,
    definition: &ProbeDefinition,
) -> (&'static str, usize) {
    let words = Words::of(command);
    match error {
        ProbeError::Syntax(error) => (error.id, error.position),
        ProbeError::NameTaken(_) => ("EVENT_EXIST", words.start(0)),
        ProbeError::TooManyArgs(_) => ("TOO_MANY_ARGS", words.start(2)),
        ProbeError::DuplicateArg(name) => ("USED_ARG_NAME", words.argument(name)),
        ProbeError::NotEntry(_) => ("BAD_RETPROBE", words.start(1)),
        ProbeError::Boundary(BoundaryError::Inside { .. } | BoundaryError::Undecodable { .. }) => {
            ("BAD_INSN_BNDRY", words.start(1))
        }
        ProbeError::Symbol(error) => symbol(error, definition, &words),
        ProbeError::Types(_) => {
            let first = definition.args.iter().position(|arg| {
                arg.body.parameter().is_some()
                    || matches!(arg.body, Fetch::AllParameters | Fetch::Member { .. })
            });
            ("NOSUP_BTFARG", words.body(first.unwrap_or_default()))
        }
        ProbeError::Parameter(error) => (error.id(), parameter(error, definition, &words)),
        _ => ("FAIL_REG_PROBE", words.start(1)),
    }
}

/// An unknown symbol: the place's, or that of an argument.
fn symbol(
    error: &LookupError,
    definition: &ProbeDefinition,
    words: &Words<'_>,
) -> (&'static str, usize) {
    let of_arg = definition.args.iter().position(|arg| match arg.body.innermost() {
        Fetch::Symbol { name, .. } => {
            matches!(error, LookupError::Unknown { name: unknown, .. } if unknown == name)
        }
        _ => false,
    });
    match (of_arg, error) {
        (Some(index), _) => ("BAD_MEM_ADDR", words.within(index, "@")),
        (None, LookupError::Ambiguous { .. }) => ("NON_UNIQ_SYMBOL", words.start(1)),
        (None, _) => ("BAD_PROBE_ADDR", words.start(1)),
    }
}

/// Where the parameter is that is wrong.
fn parameter(error: &ParameterError, definition: &ProbeDefinition, words: &Words<'_>) -> usize {
    let named = error.body();
    let is_it = |body: &Fetch| {
        let text = body.to_string();
        match named {
            Some(name) => text.contains(name),
            None => body.parameter().is_some() || text.contains("$retval") || text == "$arg*",
        }
    };
    let index = definition.args.iter().position(|arg| is_it(&arg.body)).unwrap_or_default();
    match (error, named) {
        // At the member, not at what it is one of.
        (ParameterError::Member { .. }, Some(name)) => {
            let last = name.rfind("->").map_or(0, |at| at + "->".len());
            words.within(index, name) + last
        }
        (ParameterError::NoPointer { .. }, Some(name)) => {
            words.within(index, name) + name.len() + "->".len()
        }
        (ParameterError::NotText { .. }, _) | (_, None) => words.body(index),
        (_, Some(name)) => words.within(index, name),
    }
}

/// The words of a command, with their columns.
struct Words<'a>(Vec<(usize, &'a str)>);

impl<'a> Words<'a> {
    fn of(command: &'a str) -> Self {
        let command = command.split_once('#').map_or(command, |(command, _)| command);
        let each = command.split_whitespace();
        Self(each.map(|word| (word.as_ptr().addr() - command.as_ptr().addr(), word)).collect())
    }

    /// Where a word begins; where the last ends, when there is none.
    fn start(&self, index: usize) -> usize {
        let end = self.0.last().map_or(0, |(at, word)| at + word.len());
        self.0.get(index).map_or(end, |(at, _)| *at)
    }

    /// Where an argument's body begins, behind its name.
    fn body(&self, index: usize) -> usize {
        let word = self.0.get(index + 2).map_or("", |(_, word)| word);
        self.start(index + 2) + word.find('=').map_or(0, |at| at + 1)
    }

    /// Where a text is in an argument's body; its begin, when it is not.
    fn within(&self, index: usize, text: &str) -> usize {
        let (body, start) = (self.body(index), self.start(index + 2));
        let word = self.0.get(index + 2).map_or("", |(_, word)| word);
        body + word.get(body - start..).and_then(|word| word.find(text)).unwrap_or_default()
    }

    /// Where the last argument of a name begins.
    fn argument(&self, name: &str) -> usize {
        let is_it = |word: &str| word.split(['=', ':']).next() == Some(name);
        let found = self.0.iter().skip(2).rev().find(|(_, word)| is_it(word));
        found.map_or_else(|| self.start(2), |(at, _)| *at)
    }
}
