//! Entries of an error_log.

/// A fault that a tracer reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The part of the tracer that found it, such as `trace_kprobe`.
    pub(super) part: String,
    pub(super) id: String,
    /// The command from the caret on.
    at: String,
    /// All its lines.
    lines: String,
}

impl Refusal {
    /// Returns true if the fault has this identifier, and is at a text that begins so. A name at
    /// the end of the text is a whole one.
    pub(super) fn is(&self, id: &str, text: &str) -> bool {
        let in_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let whole = |rest: &str| !(text.ends_with(in_name) && rest.starts_with(in_name));
        self.id == id && self.at.strip_prefix(text).is_some_and(whole)
    }

    fn of_lines(lines: &[&str]) -> Option<Self> {
        let (part, id) = lines.first()?.rsplit_once(": ")?;
        let caret = lines.iter().rfind(|line| line.trim() == "^")?.find('^')?;
        let at = lines.get(1)?.get(caret..).unwrap_or_default();
        let [part, id, at] = [part, id, at].map(str::to_owned);
        Some(Self { part, id, at, lines: lines.join("\n") })
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.id, self.at)
    }
}

/// The entries of a log. Each has a line with the identifier, the command, and a line with the
/// caret.
pub(super) fn of_log(log: &str) -> Vec<Refusal> {
    let lines: Vec<&str> = log.lines().collect();
    let begins = |n: &usize| lines.get(n + 1).is_some_and(|line| line.starts_with("  Command: "));
    let mut places: Vec<usize> = (0..lines.len()).filter(begins).collect();
    places.push(lines.len());
    places.windows(2).filter_map(|ends| Refusal::of_lines(&lines[ends[0]..ends[1]])).collect()
}

/// A log without the entries of this part, or with this identifier.
pub(super) fn without(log: &str, name: &str) -> String {
    let entries = of_log(log).into_iter();
    let others = entries.filter(|entry| entry.part != name && entry.id != name);
    others.map(|entry| entry.lines).collect::<Vec<_>>().join("\n")
}
