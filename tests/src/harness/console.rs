//! The end of a failed test's console, which its report repeats.

use std::cell::RefCell;

/// Lines that a report has of it.
const LINES: usize = 12;

thread_local! {
    static LAST: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Keeps the last lines of a guest's console, or of a program's output, for the report of the test
/// that fails on this thread.
pub fn keep_console(text: &str) {
    let lines = text.lines().rev().filter(|line| !line.trim().is_empty()).take(LINES);
    let mut lines: Vec<String> = lines.map(|line| line.trim_end().to_owned()).collect();
    lines.reverse();
    LAST.set(lines);
}

/// The lines kept on this thread, each indented, with a heading; empty if there are none.
pub(super) fn take_console() -> String {
    let lines = LAST.take();
    if lines.is_empty() {
        return String::new();
    }
    let lines = lines.iter().map(|line| format!("\n    {line}"));
    format!("\n  last lines of the console:{}", lines.collect::<String>())
}
