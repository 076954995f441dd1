//! error_log: the last faults of what was written (ftrace.rst, "error_log").

use std::collections::VecDeque;
use std::fmt::Write;

/// Faults that are kept (TRACING_LOG_ERRS_MAX).
const KEPT: usize = 8;
/// Text before a command.
const COMMAND: &str = "  Command: ";

/// A fault.
#[derive(Clone, Debug)]
struct Fault {
    /// Microseconds since the guest's power-on.
    time: u64,
    /// Its owner, as the file has it.
    part: String,
    message: String,
    command: String,
    column: usize,
}

/// The last faults.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog(VecDeque<Fault>);

impl ErrorLog {
    /// `column` is one of the command, from 0; `message` goes on one line.
    pub(crate) fn add(
        &mut self,
        time: u64,
        part: &str,
        message: &str,
        (command, column): (String, usize),
    ) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        let message = message.replace('\n', " ");
        let part = part.to_owned();
        self.0.push_back(Fault { time, part, message, command, column });
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for Fault { time, part, message, command, column } in &self.0 {
            let (seconds, micros) = (time / 1_000_000, time % 1_000_000);
            let beyond = column.saturating_sub(command.len());
            let before = COMMAND.len() + characters(command, *column) + beyond;
            writeln!(text, "[{seconds:>5}.{micros:06}] {part}: error: {message}")
                .and_then(|()| writeln!(text, "{COMMAND}{command}"))
                .and_then(|()| writeln!(text, "{}^", " ".repeat(before)))
                .expect("a String takes everything");
        }
        text
    }
}

/// The number of characters before a column of a text, or of all. Columns count bytes, as the
/// kernel's do; a caret is put under characters.
pub(crate) fn characters(text: &str, column: usize) -> usize {
    let begin = (0..=column.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text[..begin.unwrap_or_default()].chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_eight_are_shown_with_their_carets() {
        let mut log = ErrorLog::default();
        for n in 0..10 {
            log.add(1_000_007 * n, "trace_kprobe", "no\nregister", (format!("p:e{n} sym %zz"), 9));
        }
        let text = log.text();
        assert_eq!(text.lines().count(), 3 * 8);
        let last: Vec<&str> = text.lines().skip(3 * 7).collect();
        let expected = [
            "[    9.000063] trace_kprobe: error: no register",
            "  Command: p:e9 sym %zz",
            "                    ^",
        ];
        assert_eq!(last, expected);
        log.clear();
        assert_eq!(log.text(), "");
        log.add(0, "trace_kprobe", "no name", ("p:ä sym %zz".to_owned(), 9));
        assert!(
            log.text().ends_with(&format!("\n{:1$}^\n", "", COMMAND.len() + 8)),
            "{}",
            log.text()
        );
    }
}
