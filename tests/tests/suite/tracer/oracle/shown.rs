//! Texts of the trace without what differs between two runs: times, sizes, who wrote.

use super::session::{Answers, Session};

/// Files and folders of an instance that ours lacks (docs/tracer.md).
const LACKING: [&str; 13] = [
    "buffer_percent",
    "buffer_subbuf_size_kb",
    "free_buffer",
    "set_event_notrace_pid",
    "set_event_pid",
    "set_ftrace_filter",
    "set_ftrace_notrace",
    "set_ftrace_notrace_pid",
    "set_ftrace_pid",
    "timestamp_mode",
    "trace_marker_raw",
    "tracing_cpumask",
    "tracing_max_latency",
];

/// Names of the options that both tracers have.
const OPTIONS: [&str; 5] = ["sym-offset", "sym-addr", "context-info", "irq-info", "markers"];

/// Answers that are equal where the tracers show the same.
pub(super) fn comparable(mut answers: Answers, session: &Session) -> Answers {
    for (file, text) in session.reads.iter().zip(&mut answers.reads) {
        let shown = match file.rsplit('/').next() {
            Some("") => by_line(text, |line| (!LACKING.contains(&line)).then(|| line.to_owned())),
            Some("trace") => by_line(text, |line| Some(without_time(line))),
            Some("stats") => by_line(text, |line| Some(without_size(line))),
            Some("trace_options") => by_line(text, |line| {
                let name = line.strip_prefix("no").unwrap_or(line);
                OPTIONS.contains(&name).then(|| line.to_owned())
            }),
            // The current one.
            Some("trace_clock") => text.split(['[', ']']).nth(1).unwrap_or_default().to_owned(),
            _ => continue,
        };
        *text = shown;
    }
    answers
}

fn by_line(text: &str, shown: impl Fn(&str) -> Option<String>) -> String {
    text.lines().filter_map(shown).collect::<Vec<_>>().join("\n")
}

/// A line of an event without the task, the flags and the time, each column at its place.
fn without_time(line: &str) -> String {
    let parts = line.split_once(" [").and_then(|(_, rest)| rest.split_once(": "));
    let parts = parts.and_then(|(context, shown)| Some((context.split_once(']')?, shown)));
    let Some(((cpu, columns), shown)) = parts.filter(|_| !line.starts_with('#')) else {
        return line.to_owned();
    };
    let mut words = columns.split_whitespace();
    let flags = words.next().filter(|_| words.next().is_some()).unwrap_or_default();
    let columns = columns.replacen(flags, &".".repeat(flags.len()), 1);
    let columns: String = columns.chars().map(|c| if c == '.' { c } else { ' ' }).collect();
    format!("[{cpu}]{columns}: {shown}")
}

/// A line of `stats` without what depends on the layout in memory and on the clock.
fn without_size(line: &str) -> String {
    let measured = ["bytes: ", "oldest event ts: ", "now ts: "];
    let name = measured.iter().find(|name| line.starts_with(**name));
    let Some(name) = name else { return line.to_owned() };
    let shape = |c: char| if c.is_ascii_digit() || c == ' ' { '#' } else { c };
    let size: String = line[name.len()..].chars().map(shape).collect();
    format!("{name}{}", if *name == "bytes: " { "#" } else { &size })
}
