//! Faults of commands as the tracer reports them: an identifier and a place in the command
//! (kprobetrace.rst; error_log).

use exoprobe_introspect::LookupError;
use exoprobe_probes::definition::words;
use exoprobe_probes::insn::BoundaryError;
use exoprobe_probes::{Fetch, ParameterError, ProbeDefinition, ProbeError};

/// Identifier and column of the fault in a command that the engine refused.
pub(crate) fn fault(
    error: &ProbeError,
    command: &str,
    definition: &ProbeDefinition,
) -> (&'static str, usize) {
    let words = Words::of(command);
    match error {
        ProbeError::Syntax(error) => (error.id, error.position),
        ProbeError::OtherKind(_) => ("DIFF_PROBE_TYPE", words.start(0)),
        ProbeError::OtherArgument { index, .. } => ("DIFF_ARG_TYPE", words.start(index + 2)),
        ProbeError::SameProbe(_) => ("SAME_PROBE", words.start(0)),
        ProbeError::NameTaken(_) => ("EVENT_EXIST", words.start(0)),
        ProbeError::TooManyArgs(_) => ("TOO_MANY_ARGS", words.start(2)),
        ProbeError::EventTooBig { index, .. } => ("EVENT_TOO_BIG", words.body(*index)),
        ProbeError::DuplicateArg(name) => ("USED_ARG_NAME", words.argument(name)),
        ProbeError::NotEntry(_) => ("BAD_RETPROBE", words.start(1)),
        ProbeError::Boundary(BoundaryError::Inside { .. } | BoundaryError::Undecodable { .. }) => {
            ("BAD_INSN_BNDRY", words.start(1))
        }
        ProbeError::NoMatch(_) => ("BAD_PROBE_ADDR", words.start(1)),
        ProbeError::PatternName(_) => ("BAD_EVENT_NAME", words.start(0)),
        ProbeError::Symbol(error) => symbol(error, definition, &words),
        ProbeError::Types(_) => {
            let first = definition.args.iter().position(|arg| arg.body.asks_for_types());
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
            let (LookupError::Unknown { name: of, .. } | LookupError::Ambiguous { name: of, .. }) =
                error
            else {
                return false;
            };
            of == name && definition.symbol_name.as_ref() != Some(name)
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
        match (error, named) {
            (ParameterError::NotText { .. }, Some(name)) => text == name,
            (ParameterError::Member { .. } | ParameterError::NoPointer { .. }, Some(name)) => {
                text.contains("->") && text.contains(name)
            }
            (_, Some(name)) => body.innermost().to_string() == name || text == name,
            (ParameterError::NoReturnValue(_), None) => text.contains("$retval->"),
            (ParameterError::NoParameters(_), None) => *body == Fetch::AllParameters,
            (ParameterError::NoNames(_), None) => matches!(body, Fetch::NameOf { .. }),
            (_, None) => body.asks_for_types(),
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
        Self(words(command).collect())
    }

    /// Where a word begins; where the last ends, when there is none.
    fn start(&self, index: usize) -> usize {
        let end = self.0.last().map_or(0, |(at, word)| at + word.len());
        self.0.get(index).map_or(end, |(at, _)| *at)
    }

    /// Where an argument's body begins, after its name.
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

/// Where a field is in a text; its begin, where it is not.
pub(crate) fn field_fault(text: &str, name: &str) -> usize {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_whole = |at: &usize| {
        !text[..*at].ends_with(is_part) && !text[at + name.len()..].starts_with(is_part)
    };
    text.match_indices(name).map(|(at, _)| at).find(is_whole).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use exoprobe_introspect::btf::FieldError;
    use exoprobe_probes::definition::parse_line;

    use super::*;

    /// The identifier, and what stands from the caret on.
    fn at(error: impl Into<ProbeError>, command: &str) -> (&'static str, String) {
        let definition = parse_line(command).expect("it is right but for the kernel");
        let (id, column) = fault(&error.into(), command, &definition);
        (id, command.get(column..).expect("within the command").to_owned())
    }

    #[test]
    fn carets_of_parameters_are_where_the_tracer_puts_them() {
        let name = |name: &str| name.to_owned();
        let command = "p:e get  a=%di b=+8(task->mm->pgd) c=fd:string $arg*";
        let member = |path: &str| ParameterError::Member {
            name: name(path),
            source: FieldError::NoType(name("x")),
        };
        let rest = |from: &str| command[command.find(from).expect("it is there")..].to_owned();
        assert_eq!(at(member("task->mm"), command), ("NO_BTF_FIELD", rest("mm->pgd")));
        assert_eq!(at(member("task->mm->pgd"), command), ("NO_BTF_FIELD", rest("pgd")));
        let pointer =
            ParameterError::NoPointer { name: name("task"), declaration: name("int task") };
        assert_eq!(at(pointer, command), ("NO_PTR_STRCT", rest("mm->pgd")));
        let text = ParameterError::NotText { name: name("fd"), declaration: name("int fd") };
        assert_eq!(at(text, command), ("BAD_TYPE4STR", rest("fd:string")));
        let no_such = |has: Vec<String>| {
            let (function, name) = (name("get"), name("fd"));
            ParameterError::NoSuch { function, name, has }
        };
        assert_eq!(at(no_such(vec![name("fx")]), command), ("NO_BTFARG", rest("fd:string")));
        assert_eq!(at(no_such(Vec::new()), command), ("NO_BTF_ENTRY", rest("fd:string")));
        let whole = ParameterError::NoArguments(name("$arg*"));
        assert_eq!(at(whole, command), ("NOFENTRY_ARGS", rest("$arg*")));
        let none = ParameterError::NoNames(FieldError::NoType(name("dentry")));
        assert_eq!(at(none, "p:e get fd x=fd:%pd"), ("NOSUP_BTFARG", "fd:%pd".to_owned()));
        let many = ParameterError::TooManyKept(name("$arg17"));
        assert_eq!(at(many, "r:e get %di x=+8($arg17)").1, "$arg17)");
        let unknown = ParameterError::NoPrototype(name("get"));
        assert_eq!(at(unknown, command), ("NO_BTF_ENTRY", rest("+8(task")));
        let none = ParameterError::NoParameters(name("get"));
        assert_eq!(at(none, command), ("NOSUP_BTFARG", rest("$arg*")));
        let void = ParameterError::NoReturnValue(name("get"));
        assert_eq!(
            at(void, "r:e get x=%ax y=$retval->z # $retval"),
            ("NO_RETVAL", name("$retval->z # $retval"))
        );
    }

    #[test]
    fn other_carets_are_at_words() {
        let command = "p:e  get+4 one=%di   fd  fd2=%si ";
        let rest = |from: &str| command[command.find(from).expect("it is there")..].to_owned();
        assert_eq!(
            at(ProbeError::DuplicateArg("fd".to_owned()), command),
            ("USED_ARG_NAME", rest("fd "))
        );
        assert_eq!(at(ProbeError::TooManyArgs(200), command), ("TOO_MANY_ARGS", rest("one")));
        assert_eq!(
            at(ProbeError::EventTooBig { index: 2, bytes: 4000 }, command),
            ("EVENT_TOO_BIG", rest("%si "))
        );
        let name = || "e".to_owned();
        assert_eq!(at(ProbeError::OtherKind(name()), command), ("DIFF_PROBE_TYPE", rest("p:e")));
        assert_eq!(at(ProbeError::SameProbe(name()), command), ("SAME_PROBE", rest("p:e")));
        let other = |index| ProbeError::OtherArgument { event: name(), index, there: name() };
        assert_eq!(at(other(1), command), ("DIFF_ARG_TYPE", rest("fd ")));
        assert_eq!(at(other(3), command), ("DIFF_ARG_TYPE", " ".to_owned()), "after the last");
        let types = exoprobe_introspect::btf::NoTypes::None;
        assert_eq!(at(types, command), ("NOSUP_BTFARG", rest("fd ")));
        let unknown = |name: &str| LookupError::Unknown { name: name.to_owned(), near: Vec::new() };
        assert_eq!(at(unknown("get"), command), ("BAD_PROBE_ADDR", rest("get+4")));
        let twice = LookupError::Ambiguous { name: "get".to_owned(), addresses: Vec::new() };
        assert_eq!(at(twice, command), ("NON_UNIQ_SYMBOL", rest("get+4")));
        let data = "p:e get a=+8(@data+4)";
        assert_eq!(at(unknown("data"), data), ("BAD_MEM_ADDR", "@data+4)".to_owned()));
        assert_eq!(at(ProbeError::Place("x"), "p:e get"), ("FAIL_REG_PROBE", "get".to_owned()));
    }
}
