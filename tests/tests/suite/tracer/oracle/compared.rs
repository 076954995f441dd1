//! Which sessions differ, and which of them may.

use std::collections::BTreeMap;

use super::difference::Difference;
use super::faults::Reached;
use super::listed::List;
use super::session::{Answers, Session};
use super::shown::comparable;

/// The sessions that may differ from Linux 6.12.
const OF_6_12: List = List(include_str!("differences.txt"));
/// The sessions where Linux 6.1 differs from Linux 6.12, and ours does not.
const OF_6_1: List = List(include_str!("differences-6.1.txt"));

/// Sessions that differ from those of a kernel, by their titles.
#[derive(Default)]
pub(super) struct Comparison {
    sessions: usize,
    found: BTreeMap<String, Difference>,
    /// Faults in the kernel's answers.
    faults: Reached,
}

impl Comparison {
    pub(super) fn add(&mut self, session: &Session, theirs: Answers, ours: &Answers) {
        self.sessions += 1;
        theirs.reads.iter().for_each(|text| self.faults.add(text));
        let theirs = without_default(theirs, session);
        let (theirs, ours) = (comparable(theirs, session), comparable(ours.clone(), session));
        let difference = Difference::of(session, theirs, ours);
        self.found.extend(difference.map(|difference| (session.title(), difference)));
    }

    /// Judges a comparison with Linux 6.12.
    ///
    /// # Panics
    /// When a session differs that is not listed, when one no longer does, when a difference has no
    /// reason, or when a fault of the kernel's tables is in no session.
    pub(super) fn judge_6_12(self) {
        println!("{} sessions, {} differ from Linux 6.12", self.sessions, self.found.len());
        self.faults.judge();
        self.judge(OF_6_12);
    }

    /// Judges a comparison with Linux 6.1. Where it differs from Linux 6.12, our answer is that of
    /// 6.12: [`Self::judge_6_12`] fails on others, but for the sessions that it lists.
    ///
    /// # Panics
    /// As [`Self::judge_6_12`] does, but for faults of its tables, and when both lists have a
    /// session.
    pub(super) fn judge_6_1(mut self) {
        let differ = self.found.len();
        OF_6_12.titles().for_each(|title| drop(self.found.remove(title)));
        let of_6_12 = differ - self.found.len();
        println!(
            "{} sessions, {differ} differ from Linux 6.1, {of_6_12} of them are of those \
            that may differ from Linux 6.12",
            self.sessions
        );
        self.judge(OF_6_1);
    }

    fn judge(mut self, list: List) {
        let idle = list.remove_from(&mut self.found);
        let others = self.found.iter();
        let others: Vec<String> =
            others.map(|(title, found)| format!("== {title}\n{}", found.shown())).collect();
        assert!(others.is_empty(), "these differ, and are not listed:\n{}", others.join("\n"));
        assert!(idle.is_empty(), "these are listed, and no longer differ: {idle:#?}");
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
