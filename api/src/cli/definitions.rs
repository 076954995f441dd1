//! Definitions of `probe add` that the service does not take as they are: bare symbols, source
//! lines,
//! and flags for filters and actions.

use clap::Args;
use exoprobe_probes::ProbeDefinition;
use exoprobe_probes::definition::{definition_lines, parse_conditional, words};
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::CliError;
use crate::client::{ApiPath, Client, ClientError, Payload, Problem};

/// Most places of one source line: the service returns no more at once.
const PLACES_MAX: usize = 10_000;

/// Flags that say of all definitions what their lines do not.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ActionArgs {
    /// Which hits count, as `if FILTER` at the end of a definition
    #[arg(long, value_name = "FILTER")]
    filter: Option<String>,
    /// Record back-traces, too
    #[arg(long, conflicts_with = "count")]
    stack: bool,
    /// Only count hits: write no events
    #[arg(long)]
    count: bool,
    /// Change a register at each hit, as `di=0x10`; may be repeated
    #[arg(long, value_name = "REG=VALUE", value_parser = register_value)]
    set: Vec<(String, String)>,
    /// Pause the machine at each hit
    #[arg(long)]
    stop: bool,
    /// Leave the function at once with this value, as `-12`
    #[arg(long = "return", value_name = "VALUE", allow_hyphen_values = true)]
    return_value: Option<String>,
}

fn register_value(text: &str) -> Result<(String, String), &'static str> {
    match text.trim_start_matches('%').split_once('=') {
        Some((register, value)) if !register.is_empty() && !value.is_empty() => {
            Ok((register.to_owned(), value.to_owned()))
        }
        _ => Err("write REG=VALUE, as di=0x10"),
    }
}

/// Reads a line, after which `if FILTER` may stand.
///
/// # Errors
/// [`CliError::Definition`], as the service refuses it.
pub(super) fn read_line(line: &str) -> Result<ProbeDefinition, CliError> {
    parse_conditional(line).map_err(|error| CliError::Definition {
        problem: Box::new(Problem {
            detail: error.message,
            code: "EINVAL".to_owned(),
            position: Some(error.position),
            ..Problem::default()
        }),
        definition: line.to_owned(),
    })
}

impl ActionArgs {
    /// Whether no flag is given.
    pub(super) fn is_empty(&self) -> bool {
        self.filter.is_none() && self.actions().is_empty()
    }

    /// The actions in the order in which they are run; none without a flag.
    fn actions(&self) -> Vec<Value> {
        let sets = self.set.iter();
        let mut actions: Vec<Value> =
            sets.map(|(reg, value)| json!({ "set_reg": { "reg": reg, "value": value } })).collect();
        actions.extend(self.stop.then(|| json!("stop")));
        actions.extend(self.return_value.as_ref().map(|value| json!({ "return": value })));
        if self.stack || self.count || !actions.is_empty() {
            let first = if self.stack { "stack" } else { "record" };
            actions.insert(0, json!(if self.count { "count" } else { first }));
        }
        actions
    }

    /// A line and the flags, as JSON.
    fn apply(&self, line: &str) -> Result<Value, CliError> {
        let definition = read_line(line)?;
        if self.filter.is_some() && definition.filter.is_some() {
            return Err(CliError::TwoFilters(line.to_owned()));
        }
        let mut json = serde_json::to_value(&definition).map_err(ClientError::from)?;
        if let Some(filter) = &self.filter {
            json["filter"] = json!(filter);
        }
        let actions = self.actions();
        if !actions.is_empty() {
            json["actions"] = Value::Array(actions);
        }
        Ok(json)
    }

    /// Requests for `lines`.
    pub(super) fn payload(&self, lines: &[Line]) -> Result<Payload, CliError> {
        if self.is_empty() {
            let text = lines.iter().map(|line| format!("{}\n", line.text)).collect();
            return Ok(Payload::Text(text));
        }
        let definitions: Result<_, _> = lines.iter().map(|line| self.apply(&line.text)).collect();
        Ok(Payload::Json(Value::Array(definitions?)))
    }
}

/// One definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) text: String,
    /// The place that a source line stood for.
    pub(super) matched: Option<String>,
}

/// Writes `p` before each line of `text` that begins with a place, so that `vfs_read` is
/// `p vfs_read`.
pub(super) fn with_kinds(text: &str) -> String {
    let line = |line: &str| match words(line).next() {
        Some((_, first)) if is_place(first) => format!("p {}\n", line.trim_start()),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// Whether a line's first word is no `p`, `r10`, `p:NAME`, nor a deletion.
fn is_place(word: &str) -> bool {
    let command = word.split_once(':').map_or(word, |(command, _)| command);
    let is_kind = command.strip_prefix(['p', 'r']);
    let is_kind = is_kind.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
    let begins = |c: char| c.is_ascii_alphanumeric() || "_*?".contains(c);
    !is_kind && word.starts_with(begins) && (!word.contains(':') || is_source_line(word))
}

/// Whether a place is `FILE:LINE`: no symbol's name begins with a digit.
pub(super) fn is_source_line(place: &str) -> bool {
    let parts = place.split_once(':').filter(|(file, _)| !file.is_empty());
    parts
        .is_some_and(|(_, line)| line.bytes().all(|byte| byte.is_ascii_digit()) && !line.is_empty())
}

/// Whether a line's place is a pattern, or a line of the source.
pub(super) fn has_pattern(text: &str) -> bool {
    let is_pattern =
        |line: &str| words(line).nth(1).is_some_and(|(_, place)| place.contains(['*', '?']));
    has_source_line(text) || definition_lines(text).any(|(_, line)| is_pattern(line))
}

/// Returns true if a line's place is a line of the source.
pub(super) fn has_source_line(text: &str) -> bool {
    definition_lines(text).any(|(_, line)| source_line_of(line).is_some())
}

/// The source line that a definition's place is, and where it begins.
fn source_line_of(line: &str) -> Option<(usize, &str)> {
    words(line).nth(1).filter(|(_, place)| is_source_line(place))
}

/// The definitions of a text, with a line for each place that has code of a source line.
///
/// # Errors
/// [`CliError::Pattern`] where more than `max` places have code of a line.
pub(super) async fn expand(client: &Client, text: &str, max: usize) -> Result<Vec<Line>, CliError> {
    let mut lines = Vec::new();
    for (_, line) in definition_lines(text) {
        let Some((at, source)) = source_line_of(line) else {
            lines.push(Line { text: line.to_owned(), matched: None });
            continue;
        };
        let (before, after) = (&line[..at], &line[at + source.len()..]);
        let places = places(client, source).await?;
        let definition = |place: &str| format!("{before}{place}{after}");
        if places.len() > max {
            let why = format!("{} places have code of it: --max allows {max}", places.len());
            return Err(CliError::Pattern { pattern: source.to_owned(), why });
        }
        lines.extend(places.into_iter().map(|p| Line { text: definition(&p), matched: Some(p) }));
    }
    Ok(lines)
}

/// A symbol of the guest's kernel.
#[derive(Deserialize)]
struct Symbol {
    name: String,
    module: Option<String>,
    /// Where it was asked for by a place in it.
    offset: Option<u64>,
}

impl Symbol {
    /// As a definition names it: `[MODULE:]NAME[+OFFSET]`.
    fn place(&self) -> String {
        let module = self.module.as_ref().map(|module| format!("{module}:")).unwrap_or_default();
        let offset = self.offset.filter(|offset| *offset != 0);
        let offset = offset.map(|offset| format!("+{offset}")).unwrap_or_default();
        format!("{module}{}{offset}", self.name)
    }
}

/// The places of the guest's kernel that have code of a source line.
///
/// # Errors
/// [`CliError::Pattern`] where the service does not give all of them.
async fn places(client: &Client, line: &str) -> Result<Vec<String>, CliError> {
    let path = ApiPath::new(&["symbols"]).query("line", line).query("limit", PLACES_MAX);
    let answer = client.get(&path).await?;
    let symbols: Vec<Symbol> = serde_json::from_slice(&answer).map_err(ClientError::from)?;
    if symbols.len() >= PLACES_MAX {
        let why = format!("{PLACES_MAX} places or more have code of it");
        return Err(CliError::Pattern { pattern: line.to_owned(), why });
    }
    Ok(symbols.iter().map(Symbol::place).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_symbol_is_a_kprobe() {
        let text = "vfs_read\np:e f\n r10 f\n# c\npick if common_pid == 1\n-:e\n0x10 %di\nr g";
        let expected =
            "p vfs_read\np:e f\n r10 f\n# c\np pick if common_pid == 1\n-:e\np 0x10 %di\nr g\n";
        assert_eq!(with_kinds(text), expected);
        assert!(has_pattern("p vfs_*\n") && !has_pattern("p f x=*\n"));
    }

    #[test]
    fn a_place_with_a_number_after_a_colon_is_a_source_line() {
        let source = |place: &str| {
            (is_source_line(place), has_pattern(&format!("p:e {place}")), with_kinds(place))
        };
        for place in ["kernel/sys.c:950", "a.c:1"] {
            assert_eq!(source(place), (true, true, format!("p {place}\n")), "{place}");
        }
        for place in ["ext4:read", "f+1", "sys.c:", ":12", "a:1x", "a:b:1"] {
            assert!(!is_source_line(place), "{place}");
        }
    }

    #[test]
    fn flags_are_actions_in_the_order_that_the_engine_needs() {
        let flags = ActionArgs {
            filter: Some("common_pid == 1".to_owned()),
            set: vec![register_value("%di=0x10").unwrap()],
            stop: true,
            return_value: Some("-12".to_owned()),
            ..ActionArgs::default()
        };
        let json = flags.apply("p:e f %di").unwrap();
        assert_eq!(json["filter"], "common_pid == 1");
        let set = json!({ "set_reg": { "reg": "di", "value": "0x10" } });
        assert_eq!(json["actions"], json!(["record", set, "stop", { "return": "-12" }]));
        assert!(flags.apply("p f if common_pid == 2").is_err(), "two filters");
        let error = flags.apply("p f %zz").unwrap_err().message().unwrap();
        assert!(error.contains("p f %zz") && error.contains('^'), "{error}");
        assert!(register_value("di").is_err() && register_value("=1").is_err());
    }
}
