//! `exoprobe hist`.

use clap::Args;
use exoprobe_probes::{ProbeDefinition, ProbeKind};
use unicode_width::UnicodeWidthStr;

use super::collect::{CollectArgs, Collected, Entry, Key, Wanted, collect, definition};
use super::context::Context;
use super::definitions::read_line;
use super::error::CliError;
use super::event_text::frame_place;
use super::format::printable;
use super::latency::duration;

/// Fields that each event has.
const COMMON: [&str; 6] =
    ["common_pid", "CPU", "comm", "common_timestamp", "common_stacktrace", LATENCY];
/// How long a return probe's call took, in nanoseconds.
const LATENCY: &str = "common_latency";
/// Most keys of a histogram.
const KEYS_MAX: usize = 3;
/// The widest bar.
const WIDEST: u64 = 40;
/// Longest key that is shown in a row, in columns.
const LABEL_MAX: usize = 60;

const EXAMPLES: &str = "\
Examples:
  exoprobe hist vfs_read count
  exoprobe hist --for 10 vfs_read comm
  exoprobe hist 'r vfs_read' common_latency
  exoprobe hist 'r:x vfs_read $retval:s64' arg1.buckets=4096
  exoprobe hist 'p vfs_write if common_pid != 1' common_pid.execname count
  exoprobe hist --exact do_sys_openat2 filename:string
  exoprobe hist --json --for 10 vfs_read count | jq '.entries[].hits'

A KEY is an argument of the definition by name, a value as in definitions (a parameter's name, %di, $retval, file->f_flags; :TYPE may
follow), or comm, common_pid, CPU, common_timestamp, common_stacktrace, common_latency (how long a return probe's call took).
Numbers are counted by powers of two, unless --exact or one of .hex, .sym, .sym-offset, .log2, .buckets=N, .usecs follows;
common_pid and CPU are counted as they are, and .execname adds the task's name. The service counts; no event is written. The
last line has all counts: dropped hits found no room in the table (--size), lost ones none in the rings, nmissed ones were calls that a
return probe could not follow.";

/// Arguments of `hist`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct HistArgs {
    /// A function, or a definition as `probe add` takes it; `if FILTER` may follow
    definition: String,
    /// Values to count by, at most three
    #[arg(value_name = "KEY", default_value = "comm", num_args = 1..=KEYS_MAX)]
    keys: Vec<String>,
    /// Count each number apart
    #[arg(long)]
    exact: bool,
    #[command(flatten)]
    collect: CollectArgs,
}

/// Counts hits, and prints the histogram.
pub(super) async fn run(context: &mut Context<'_>, args: &HistArgs) -> Result<(), CliError> {
    let mut definition = definition(&args.definition)?;
    let keys = args.keys.iter().map(|key| Field::of(key, &mut definition, args.exact));
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let wanted = |no_numbers: &[String]| {
        let powers = |key: &Field| key.powers && !no_numbers.contains(&key.name);
        let by_size = matches!(keys.as_slice(), [key] if powers(key) || key.is_ordered);
        Wanted {
            keys: keys.iter().map(|key| key.in_trigger(powers(key))).collect(),
            sort: if by_size { keys[0].name.clone() } else { "hitcount.descending".to_owned() },
        }
    };
    let collected = collect(context, definition, &args.collect, wanted).await?;
    if context.json {
        return Ok(context.print_json(&collected.json.to_string())?);
    }
    Ok(write!(context.out, "{}", text(&collected, &keys))?)
}

/// A key.
#[derive(Debug, PartialEq)]
struct Field {
    /// As given.
    title: String,
    /// The event's field.
    name: String,
    /// With its dot, or empty.
    modifier: String,
    /// To be counted by powers of two, if it is a number.
    powers: bool,
    /// Its entries are shown by their numbers.
    is_ordered: bool,
}

impl Field {
    /// Reads a key. A value that is no field of the definition yet becomes an argument of it.
    fn of(text: &str, definition: &mut ProbeDefinition, exact: bool) -> Result<Self, CliError> {
        let (base, modifier) = split_modifier(text);
        let mut names = (0..definition.args.len()).map(|index| definition.arg_name(index));
        let is_common = COMMON.contains(&base);
        let name = match names.any(|name| name == base) || is_common {
            true => base.to_owned(),
            false => add_argument(base, definition)?,
        };
        let is_number = !is_common || [LATENCY, "common_timestamp"].contains(&base);
        Ok(Self {
            title: text.to_owned(),
            name,
            modifier: modifier.to_owned(),
            powers: modifier.is_empty() && is_number && !exact,
            is_ordered: modifier == ".log2" || modifier.starts_with(".buckets="),
        })
    }

    fn in_trigger(&self, powers: bool) -> String {
        format!("{}{}", self.name, if powers { ".log2" } else { &self.modifier })
    }
}

/// A key, and its modifier with the dot. A member of a struct may have a dot, too.
fn split_modifier(text: &str) -> (&str, &str) {
    const MODIFIERS: [&str; 6] = ["hex", "sym", "sym-offset", "execname", "log2", "usecs"];
    match text.rsplit_once('.') {
        Some((base, last)) if MODIFIERS.contains(&last) || last.starts_with("buckets=") => {
            (base, &text[base.len()..])
        }
        _ => (text, ""),
    }
}

/// Adds an argument to a definition; returns its name, which is made of its text.
fn add_argument(text: &str, definition: &mut ProbeDefinition) -> Result<String, CliError> {
    let refuse = |why: String| CliError::Key { key: text.to_owned(), why };
    if text.is_empty() || text.contains(char::is_whitespace) {
        return Err(refuse("a key is one value, without blanks".to_owned()));
    }
    let kind = if definition.kind == ProbeKind::Kretprobe { "r" } else { "p" };
    let read = read_line(&format!("{kind} f {text}")).map_err(|error| match error {
        CliError::Definition { problem, .. } => refuse(problem.detail),
        other => other,
    })?;
    let [mut arg] = <[_; 1]>::try_from(read.args)
        .map_err(|_| refuse("a key is one value of a definition".to_owned()))?;
    let taken: Vec<String> =
        (0..definition.args.len()).map(|index| definition.arg_name(index)).collect();
    let index = definition.args.len();
    let own = arg.name.take().unwrap_or_else(|| made_up(text));
    let name = if taken.contains(&own) { format!("{own}_{index}") } else { own };
    arg.name = Some(name.clone());
    definition.args.push(arg);
    Ok(name)
}

/// An argument's name, of the letters of its text.
fn made_up(text: &str) -> String {
    let value = text.split(':').next().unwrap_or(text);
    let parts = value.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    let name: String = parts.join("_").chars().take(24).collect();
    let begins = |c: char| c.is_ascii_alphabetic() || c == '_';
    if name.starts_with(begins) { name } else { format!("key_{name}") }
}

/// A row: what it is, and how many hits.
type Row = (String, u64);

fn text(collected: &Collected, keys: &[Field]) -> String {
    let entries = &collected.histogram.entries;
    let rows = match keys {
        [key] => with_empty_ranges(entries, key),
        _ => entries.iter().map(|entry| (label(entry, keys), entry.hits)).collect(),
    };
    let title = keys.iter().map(|key| key.title.as_str()).collect::<Vec<_>>().join(", ");
    bars(&printable(&title), &rows) + &collected.totals() + "\n"
}

/// The rows of one key. Powers of two between the first and the last are there also without hits.
fn with_empty_ranges(entries: &[Entry], key: &Field) -> Vec<Row> {
    let is_power = key.powers || key.modifier == ".log2";
    let (mut rows, mut last) = (Vec::new(), None);
    for entry in entries {
        if let [Key::Range { from, to }] = entry.keys[..] {
            while let Some(before) = last.filter(|before| before + 1 < from) {
                let next = Key::Range { from: before + 1, to: before * 2 };
                rows.push((shown(&next, key), 0));
                last = Some(before * 2);
            }
            last = Some(to).filter(|to| is_power && *to <= u64::MAX / 2);
        }
        rows.push((label(entry, std::slice::from_ref(key)), entry.hits));
    }
    rows
}

fn label(entry: &Entry, keys: &[Field]) -> String {
    let each = entry.keys.iter().zip(keys).map(|(value, key)| shown(value, key));
    each.collect::<Vec<_>>().join(", ")
}

/// A key's value in a row.
fn shown(value: &Key, key: &Field) -> String {
    let number = |number: u64| match key.name == LATENCY && key.modifier != ".usecs" {
        true => duration(number),
        false => number.to_string(),
    };
    let text = match value {
        Key::Unsigned(value) => number(*value),
        Key::Signed(number) => number.to_string(),
        Key::Range { from, to } => format!("{:>6} .. {}", number(*from), number(*to)),
        Key::Task { comm, pid } => format!("{comm}-{pid}"),
        Key::Text(text) => text.clone(),
        Key::Stack(stack) => stack.iter().map(frame_place).collect::<Vec<_>>().join(" < "),
    };
    printable(&text)
}

/// A table of rows with a bar each, the longest of the row with most hits.
fn bars(title: &str, rows: &[Row]) -> String {
    let widest = rows.iter().map(|(label, _)| label.width()).chain([title.width()]).max();
    let width = widest.unwrap_or_default().min(LABEL_MAX);
    let most = rows.iter().map(|(_, hits)| *hits).max().unwrap_or(0).max(1);
    let padded = |text: &str| format!("{text}{}", " ".repeat(width.saturating_sub(text.width())));
    let mut text = format!("{} {:>10}\n", padded(title), "hits");
    for (label, hits) in rows {
        let bar = u128::from(*hits) * u128::from(WIDEST) / u128::from(most);
        let bar = "*".repeat(usize::try_from(bar).unwrap_or(0));
        text.push_str(&format!("{} {hits:>10} |{bar:<40}|\n", padded(label)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(line: &str, key: &str, exact: bool) -> (Field, String) {
        let mut definition = definition(line).unwrap();
        let field = Field::of(key, &mut definition, exact).unwrap();
        (field, definition.to_string())
    }

    #[test]
    fn keys_are_fields_or_become_arguments() {
        for (line, key, trigger, defined) in [
            ("f", "count", "count.log2", "p:kprobes/p_f_0 f count=count"),
            ("f", "count.hex", "count.hex", "p:kprobes/p_f_0 f count=count"),
            ("f", "%dx:u32", "dx.log2", "p:kprobes/p_f_0 f dx=%dx:u32"),
            ("f", "n=%dx.buckets=10", "n.buckets=10", "p:kprobes/p_f_0 f n=%dx"),
            ("r f", "$retval", "retval.log2", "r:kprobes/r_f_0 f retval=$retval"),
            ("f", "file->f_pos.sym", "file_f_pos.sym", "p:kprobes/p_f_0 f file_f_pos=file->f_pos"),
            ("f", "file->a.b", "file_a_b.log2", "p:kprobes/p_f_0 f file_a_b=file->a.b"),
            ("p:e f n=%di", "n", "n.log2", "p:kprobes/e f n=%di"),
            ("p:e f %di", "arg1", "arg1.log2", "p:kprobes/e f arg1=%di"),
            ("p:e f dx=%di", "%dx", "dx_1.log2", "p:kprobes/e f dx=%di dx_1=%dx"),
            ("f", "comm", "comm", "p:kprobes/p_f_0 f"),
            ("f", "common_pid.execname", "common_pid.execname", "p:kprobes/p_f_0 f"),
            ("r f", "common_latency", "common_latency.log2", "r:kprobes/r_f_0 f"),
        ] {
            let (field, definition) = field(line, key, false);
            assert_eq!(field.in_trigger(field.powers), trigger, "{key}");
            assert_eq!(definition, defined, "{key}");
        }
        assert!(!field("f", "count", true).0.powers);
        let mut definition = definition("f").unwrap();
        for wrong in ["", "a b", "%zz", "%di,%si.log2", "+8("] {
            let error = Field::of(wrong, &mut definition, false).unwrap_err();
            assert_eq!(error.status(), 2, "{wrong}: {error}");
        }
    }

    #[test]
    fn one_function_is_counted() {
        for wrong in ["vfs_*", "# none", "p:e f %zz", "-:e"] {
            assert!(definition(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bars_are_to_scale_and_powers_without_hits_have_rows() {
        let (key, _) = field("f", "count", false);
        let entry = |from, to, hits| Entry { keys: vec![Key::Range { from, to }], hits };
        let top = u64::MAX;
        let entries =
            [entry(0, 1, 1), entry(5, 8, 80), entry(9, 16, 40), entry((top >> 1) + 2, top, 3)];
        let rows = with_empty_ranges(&entries, &key);
        assert_eq!(rows[1..3], [("     2 .. 2".to_owned(), 0), ("     3 .. 4".to_owned(), 0)]);
        assert_eq!(rows.len(), 65, "{rows:?}");
        let text = bars("count", &rows[..5]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], format!("{:<12} {:>10}", "count", "hits"));
        assert_eq!(lines[4], format!("{:<12} {:>10} |{}|", "     5 .. 8", 80, "*".repeat(40)));
        assert_eq!(lines[5], format!("{:<12} {:>10} |{:<40}|", "     9 .. 16", 40, "*".repeat(20)));
    }

    #[test]
    fn what_the_guest_says_does_nothing_to_the_terminal() {
        let (key, _) = field("f", "comm", false);
        assert_eq!(shown(&Key::Text("\u{1b}[2J".to_owned()), &key), "\\u{1b}[2J");
        let task = Key::Task { comm: "\n".to_owned(), pid: 7 };
        assert_eq!(shown(&task, &key), "\\n-7");
    }
}
