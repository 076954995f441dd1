//! Which sessions differ, and which of them may.

use std::collections::BTreeMap;

use super::faults::Reached;
use super::session::{Answers, Session};
use super::shown::comparable;

/// The sessions that may differ: a heading is the difference's name, as docs/tracer.md has it.
const LISTED: &str = include_str!("differences.txt");
/// The reasons.
const REASONS: &str = include_str!("../../../../../docs/tracer.md");

/// Sessions that differ, by their titles, with both answers.
#[derive(Default)]
pub(super) struct Comparison {
    sessions: usize,
    found: BTreeMap<String, String>,
    /// Faults in the kernel's answers.
    faults: Reached,
}

impl Comparison {
    pub(super) fn add(&mut self, session: &Session, theirs: Answers, ours: &Answers) {
        self.sessions += 1;
        theirs.reads.iter().for_each(|text| self.faults.add(text));
        let theirs = of_probes(without_default(theirs, session), session);
        let (theirs, ours) = (comparable(theirs, session), comparable(ours.clone(), session));
        if theirs == ours {
            return;
        }
        let mut shown = String::new();
        if theirs.writes != ours.writes {
            shown += &format!("writes: {:?}, ours {:?}\n", theirs.writes, ours.writes);
        }
        for ((file, theirs), ours) in session.reads.iter().zip(&theirs.reads).zip(&ours.reads) {
            if theirs != ours {
                shown += &format!("{file}:\n{theirs}\nours:\n{ours}\n");
            }
        }
        self.found.insert(session.title(), shown);
    }

    /// # Panics
    /// When a session differs that is not listed, when one no longer does, when a difference has no
    /// reason, or when a fault of the kernel's tables is in no session.
    pub(super) fn judge(mut self) {
        println!("{} sessions, {} differ", self.sessions, self.found.len());
        self.faults.judge();
        let mut agreeing = Vec::new();
        for line in LISTED.lines() {
            if let Some(name) = line.strip_prefix("## ") {
                assert!(REASONS.contains(&format!("| {name} |")), "docs/tracer.md lacks `{name}`");
            } else if !line.is_empty() && self.found.remove(line).is_none() {
                agreeing.push(line);
            }
        }
        let others: Vec<String> =
            self.found.iter().map(|(title, shown)| format!("== {title}\n{shown}")).collect();
        assert!(others.is_empty(), "these differ, and are not listed:\n{}", others.join("\n"));
        assert!(agreeing.is_empty(), "these are listed, and no longer differ: {agreeing:#?}");
    }
}

/// The answers without the maxactive that the kernel lists where none was given: that would make a
/// difference of each session with a return probe (docs/tracer.md has it).
fn without_default(mut answers: Answers, session: &Session) -> Answers {
    if session.title().contains("r10:") {
        return answers;
    }
    for (file, text) in session.reads.iter().zip(&mut answers.reads) {
        if file == "kprobe_events" || file == "dynamic_events" {
            let lines = text.lines().map(|line| match line.strip_prefix("r10:") {
                Some(rest) => format!("r:{rest}"),
                None => line.to_owned(),
            });
            *text = lines.collect::<Vec<_>>().join("\n");
        }
    }
    answers
}

/// The answers without the events that the kernel has of itself.
fn of_probes(mut answers: Answers, session: &Session) -> Answers {
    for (file, text) in session.reads.iter().zip(&mut answers.reads) {
        if file == "available_events" {
            let is_ours = |line: &&str| {
                ["kprobes:", "g:", "synthetic:"].iter().any(|group| line.starts_with(group))
            };
            *text = text.lines().filter(is_ours).collect::<Vec<_>>().join("\n");
        }
    }
    answers
}
