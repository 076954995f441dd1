//! Lists of the sessions that may differ.

use std::collections::{BTreeMap, BTreeSet};

use super::difference::Difference;

/// The reasons.
const REASONS: &str = include_str!("../../../../../docs/tracer.md");

/// A list: headings, each the name of a reason in docs/tracer.md, and under them sessions by their
/// titles. Two kinds of lines are rules, for all sessions that differ so:
///
/// - `! IDENTIFIER TEXT`: the kernel reports this fault at a text that begins so; ours does not.
/// - `- NAME`: all that differs are faults with this identifier, or of this part of the tracer,
///   that ours reports.
#[derive(Clone, Copy)]
pub(super) struct List(pub(super) &'static str);

enum Line {
    Title(&'static str),
    Fault(&'static str, &'static str),
    Lack(&'static str),
}

impl List {
    /// The titles.
    pub(super) fn titles(self) -> impl Iterator<Item = &'static str> {
        self.lines().filter_map(|(_, line)| match line {
            Line::Title(title) => Some(title),
            Line::Fault(..) | Line::Lack(_) => None,
        })
    }

    /// Removes the sessions that the list has. Returns the lines that no session needs.
    ///
    /// # Panics
    /// When a heading has no reason.
    pub(super) fn remove_from(self, found: &mut BTreeMap<String, Difference>) -> Vec<&'static str> {
        for name in self.0.lines().filter_map(|line| line.strip_prefix("## ")) {
            assert!(REASONS.contains(&format!("| {name} |")), "docs/tracer.md lacks `{name}`");
        }
        let mut idle = Vec::new();
        let mut by_rule = BTreeSet::new();
        for (text, line) in self.lines() {
            let is = |difference: &Difference| match line {
                Line::Title(_) => false,
                Line::Fault(id, at) => difference.has(id, at),
                Line::Lack(name) => difference.is_lack_of(name),
            };
            let of_line = found.iter().filter(|(_, difference)| is(difference));
            let of_line: Vec<String> = of_line.map(|(title, _)| title.clone()).collect();
            if of_line.is_empty() && !matches!(line, Line::Title(_)) {
                idle.push(text);
            }
            by_rule.extend(of_line);
        }
        found.retain(|title, _| !by_rule.contains(title));
        idle.extend(self.titles().filter(|title| found.remove(*title).is_none()));
        idle
    }

    fn lines(self) -> impl Iterator<Item = (&'static str, Line)> {
        let lines = self.0.lines().filter(|line| !line.is_empty() && !line.starts_with("## "));
        lines.map(|text| {
            let fault = text.strip_prefix("! ").and_then(|fault| fault.split_once(' '));
            let lack = text.strip_prefix("- ");
            let line = match (fault, lack) {
                (Some((id, at)), _) => Line::Fault(id, at),
                (None, Some(name)) => Line::Lack(name),
                (None, None) => Line::Title(text),
            };
            (text, line)
        })
    }
}
