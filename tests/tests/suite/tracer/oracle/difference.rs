//! A session that differs.

use super::refusals::{self, Refusal};
use super::session::{Answers, Session};

/// A session with both answers, as they are compared.
pub(super) struct Difference {
    session: Session,
    theirs: Answers,
    ours: Answers,
    /// The faults that the kernel reports, and ours does not.
    refusals: Vec<Refusal>,
}

impl Difference {
    /// The difference of two answers, if there is one.
    pub(super) fn of(session: &Session, theirs: Answers, ours: Answers) -> Option<Self> {
        if theirs == ours {
            return None;
        }
        let [mut refusals, of_ours] = [&theirs, &ours].map(|answers| {
            let logs = session.reads.iter().zip(&answers.reads).filter(|(file, _)| is_log(file));
            logs.flat_map(|(_, log)| refusals::of_log(log)).collect::<Vec<_>>()
        });
        refusals.retain(|refusal| !of_ours.contains(refusal));
        Some(Self { session: session.clone(), theirs, ours, refusals })
    }

    /// Returns true if the kernel reports this fault at a text that begins so, and ours does not.
    pub(super) fn has(&self, id: &str, text: &str) -> bool {
        self.refusals.iter().any(|refusal| refusal.is(id, text))
    }

    /// Returns true if the answers are equal but for faults with this identifier, or of this part
    /// of the tracer, that ours reports and the kernel does not.
    pub(super) fn is_lack_of(&self, name: &str) -> bool {
        let pairs = self.theirs.reads.iter().zip(&self.ours.reads);
        let mut texts = self.session.reads.iter().zip(pairs);
        self.theirs.writes == self.ours.writes
            && texts.all(|(file, (theirs, ours))| {
                theirs == ours || is_log(file) && *theirs == refusals::without(ours, name)
            })
    }

    /// The faults that the kernel alone reports, as lines of a list, and what differs.
    pub(super) fn shown(&self) -> String {
        let mut shown = String::new();
        for refusal in &self.refusals {
            shown += &format!("! {refusal}\n");
        }
        let (theirs, ours) = (&self.theirs, &self.ours);
        if theirs.writes != ours.writes {
            shown += &format!("writes: {:?}, ours {:?}\n", theirs.writes, ours.writes);
        }
        let texts = self.session.reads.iter().zip(theirs.reads.iter().zip(&ours.reads));
        for (file, (theirs, ours)) in texts {
            if theirs != ours {
                shown += &format!("{file}:\n{theirs}\nours:\n{ours}\n");
            }
        }
        shown
    }
}

fn is_log(file: &str) -> bool {
    file.rsplit('/').next() == Some("error_log")
}
