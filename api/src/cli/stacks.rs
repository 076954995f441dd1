//! `exoprobe stacks`.

use std::collections::BTreeMap;

use clap::Args;

use super::collect::{CollectArgs, Collected, Entry, Key, Wanted, collect, definition};
use super::context::Context;
use super::error::CliError;
use super::event_text::frame_place;
use super::format::printable;
use crate::client::StackFrame;
use crate::log::say;

const EXAMPLES: &str = "\
Examples:
  exoprobe stacks vfs_read
  exoprobe stacks --for 10 'do_sys_openat2 if comm == \"cat\"'
  exoprobe stacks --folded --for 10 vfs_read > vfs_read.folded   # flamegraph.pl or inferno-flamegraph read it
  exoprobe stacks --json --for 10 vfs_read | jq '.entries[0]'

The service counts hits by task name and back-trace; no event is written. The last line has all counts: dropped hits found no room
in the table (--size), lost ones none in the rings, nmissed ones were calls that a return probe could not follow.";

/// Arguments of `stacks`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct StacksArgs {
    /// A function, or a definition as `probe add` takes it; `if FILTER` may follow
    #[arg(value_name = "FUNC")]
    definition: String,
    /// Print `COMM;OUTER;...;INNER COUNT`, a line each, for flame graphs
    #[arg(long, conflicts_with = "json")]
    folded: bool,
    #[command(flatten)]
    collect: CollectArgs,
}

/// Counts back-traces, and prints them.
pub(super) async fn run(context: &mut Context<'_>, args: &StacksArgs) -> Result<(), CliError> {
    let wanted = |_: &[String]| Wanted {
        keys: vec!["comm".to_owned(), "common_stacktrace".to_owned()],
        sort: "hitcount.descending".to_owned(),
    };
    let collected = collect(context, definition(&args.definition)?, &args.collect, wanted).await?;
    if context.json {
        return Ok(context.print_json(&collected.json.to_string())?);
    }
    if args.folded {
        write!(context.out, "{}", folded(&collected.histogram.entries))?;
        // Programs read the lines.
        say!("{}", collected.totals());
        return Ok(());
    }
    Ok(write!(context.out, "{}", text(&collected))?)
}

/// The task's name and the back-trace of an entry.
fn parts(entry: &Entry) -> (&str, &[StackFrame]) {
    match entry.keys.as_slice() {
        [Key::Text(comm), Key::Stack(stack)] => (comm, stack),
        _ => ("?", &[]),
    }
}

fn text(collected: &Collected) -> String {
    let mut text = String::new();
    for entry in &collected.histogram.entries {
        let (comm, stack) = parts(entry);
        text.push_str(&format!("{:>10} {}\n", entry.hits, printable(comm)));
        for frame in stack {
            text.push_str(&format!("           => {}\n", printable(&frame_place(frame))));
        }
        text.push('\n');
    }
    text + &collected.totals() + "\n"
}

/// Back-traces by functions alone, the outermost first, those with most hits first.
fn folded(entries: &[Entry]) -> String {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for entry in entries {
        let (comm, stack) = parts(entry);
        let name = |frame: &StackFrame| word(frame.symbol_name.as_ref().unwrap_or(&frame.addr));
        let line: Vec<String> =
            std::iter::once(word(comm)).chain(stack.iter().rev().map(name)).collect();
        *counts.entry(line.join(";")).or_default() += entry.hits;
    }
    let mut lines: Vec<(String, u64)> = counts.into_iter().collect();
    lines.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    lines.iter().map(|(line, count)| format!("{line} {count}\n")).collect()
}

/// A name in a folded line, where `;` ends it.
fn word(name: &str) -> String {
    printable(name).replace(';', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(comm: &str, hits: u64, frames: &[(Option<&str>, u64)]) -> Entry {
        let frame = |(name, offset): &(Option<&str>, u64)| StackFrame {
            addr: "0x1".to_owned(),
            symbol_name: name.map(str::to_owned),
            offset: *offset,
        };
        let stack = frames.iter().map(frame).collect();
        Entry { keys: vec![Key::Text(comm.to_owned()), Key::Stack(stack)], hits }
    }

    #[test]
    fn folded_lines_are_outermost_first_and_of_functions_alone() {
        let entries = [
            entry("a;\u{1b} b", 2, &[(Some("inner"), 0), (Some("outer"), 8)]),
            entry("sh", 3, &[(Some("inner"), 0), (Some("outer"), 8)]),
            entry("sh", 4, &[(Some("inner"), 0), (Some("outer"), 24)]),
            entry("sh", 1, &[(None, 0)]),
        ];
        assert_eq!(folded(&entries), "sh;outer;inner 7\na_\\u{1b} b;outer;inner 2\nsh;0x1 1\n");
    }
}
