//! One run of the suites: each test is carried out, recorded and reported to libtest-mimic.

use std::any::Any;
use std::ffi::OsStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use libtest_mimic::{Completion, Failed, Trial};

use super::case::Test;
use super::console::take_console;
use super::need::{LacksError, parse_lacks};
use super::part::{Part, PartError};
use super::report::{Report, ReportError};
use super::{BEGIN, LACKS_ENV, Lack, Need, Outcome, PART_ENV, PROGRESS_ENV, REPORT_ENV, Record};

/// Why a session cannot begin.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error(transparent)]
    Lacks(#[from] LacksError),
    #[error(transparent)]
    Part(#[from] PartError),
}

pub(super) struct Session {
    report: Option<Report>,
    progress: bool,
    /// The cases that are this process's.
    part: Part,
    examine: fn(Need) -> Option<Lack>,
    /// Needs that the place's owner declares as missing, with the reasons.
    lacks: Vec<(Need, String)>,
    /// Names and reasons.
    skipped: Mutex<Vec<(String, String)>>,
}

impl Session {
    /// A session as the environment wants it.
    pub(super) fn from_environment() -> Result<Self, SessionError> {
        let report = std::env::var_os(REPORT_ENV);
        let report = report.map(|path| Report::open(Path::new(&path))).transpose()?;
        let progress = std::env::var_os(PROGRESS_ENV).as_deref() == Some(OsStr::new("1"));
        let lacks = parse_lacks(&std::env::var(LACKS_ENV).unwrap_or_default())?;
        let part = std::env::var(PART_ENV).ok().map(|part| part.parse()).transpose()?;
        let part = part.unwrap_or(Part::WHOLE);
        Ok(Self { report, progress, part, examine: Need::lack, lacks, skipped: Mutex::default() })
    }

    pub(super) fn part(&self) -> Part {
        self.part
    }

    pub(super) fn trial(self: &Arc<Self>, test: Test) -> Trial {
        let session = Arc::clone(self);
        Trial::ignorable_test(test.name.clone(), move || session.carry_out(test))
    }

    fn carry_out(&self, test: Test) -> Result<Completion, Failed> {
        if self.progress {
            eprintln!("{BEGIN}{}", test.name);
        }
        let begun = Instant::now();
        let outcome = match test.needs.iter().find_map(|need| self.lack(*need)) {
            Some(Lack::Missing(reason)) => Outcome::Skipped { reason },
            Some(Lack::Broken(reason)) => Outcome::Failed { reason },
            None => outcome_of(test.body),
        };
        let seconds = begun.elapsed().as_secs_f64();
        let record = Record { test: test.name, outcome, seconds };
        if let Some(report) = &self.report {
            report.append(&record)?;
        }
        match record.outcome {
            Outcome::Passed => Ok(Completion::Completed),
            Outcome::Failed { reason } => Err(reason.into()),
            Outcome::Skipped { reason } => {
                let completion = Completion::ignored_with(&reason);
                let mut skipped = self.skipped.lock().unwrap_or_else(PoisonError::into_inner);
                skipped.push((record.test, reason));
                Ok(completion)
            }
        }
    }

    /// The first of a test's needs that this place lacks.
    fn lack(&self, need: Need) -> Option<Lack> {
        let declared = self.lacks.iter().find(|(lack, _)| *lack == need);
        declared.map(|(_, reason)| Lack::Missing(reason.clone())).or_else(|| (self.examine)(need))
    }

    /// The summary for the reader: every skipped test, and the reason.
    pub(super) fn skipped(&self) -> Option<String> {
        let skipped = self.skipped.lock().unwrap_or_else(PoisonError::into_inner);
        if skipped.is_empty() {
            return None;
        }
        let lines = skipped.iter().map(|(test, reason)| format!("\n  {test}: {reason}"));
        Some(format!("SKIPPED here ({}):{}", skipped.len(), lines.collect::<String>()))
    }
}

fn outcome_of(body: Box<dyn FnOnce() + Send>) -> Outcome {
    // What an earlier test on this thread may have left.
    drop(take_console());
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(()) => Outcome::Passed,
        Err(payload) => Outcome::Failed { reason: message(payload.as_ref()) + &take_console() },
    }
}

/// The message of a panic: `panic!` carries a `String` or a `&str`.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use libtest_mimic::{Arguments, Conclusion};

    use super::*;
    use crate::cases;
    use crate::harness::{Case, keep_console};

    fn passes() {}
    fn panics() {
        panic!("one is not {}", 2)
    }
    fn panics_with_a_console() {
        keep_console("one\r\n\n\ntwo\n");
        panic!("none")
    }
    fn panics_without_words() {
        std::panic::panic_any(5)
    }

    #[test]
    fn a_failure_has_the_end_of_its_console() {
        let reason = |body: fn()| match outcome_of(Box::new(body)) {
            Outcome::Failed { reason } => reason,
            other => panic!("{other:?}"),
        };
        let expected = "none\n  last lines of the console:\n    one\n    two";
        assert_eq!(reason(panics_with_a_console), expected);
        assert_eq!(reason(panics), "one is not 2", "it is of the test before");
        fn many() {
            let lines: Vec<String> = (0..100).map(|line| line.to_string()).collect();
            keep_console(&lines.join("\n"));
            panic!("none")
        }
        assert!(reason(many).starts_with("none\n  last lines of the console:\n    88\n"));
    }

    const CASES: &[Case] = cases![
        passes,
        passes needs [Smp],
        passes needs [Kvm, Root, Loopback],
        panics,
        panics_without_words needs [],
        passes needs [HardwareKvm],
    ];

    fn examine(need: Need) -> Option<Lack> {
        match need {
            Need::Root => Some(Lack::Missing("not root".to_owned())),
            Need::HardwareKvm => Some(Lack::Broken("no KVM that we know".to_owned())),
            _ => None,
        }
    }

    fn run(report: Option<Report>) -> (Conclusion, Arc<Session>) {
        let session = Session {
            report,
            progress: false,
            part: Part::WHOLE,
            examine,
            lacks: vec![(Need::Smp, "one CPU".to_owned())],
            skipped: Mutex::default(),
        };
        let session = Arc::new(session);
        let trials = CASES.iter().flat_map(Case::tests).map(|test| session.trial(test)).collect();
        let args = Arguments {
            test_threads: Some(1),
            logfile: Some("/dev/null".to_owned()),
            ..Arguments::default()
        };
        (libtest_mimic::run(&args, trials), session)
    }

    #[test]
    fn each_test_is_told_as_it_ended_and_reported_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report");
        let (conclusion, session) = run(Some(Report::open(&path).unwrap()));
        assert_eq!((conclusion.num_passed, conclusion.num_ignored), (1, 2));
        assert!(conclusion.has_failed() && conclusion.num_failed == 3);
        let text = std::fs::read_to_string(&path).unwrap();
        let outcomes: Vec<Outcome> =
            text.lines().map(|l| serde_json::from_str::<Record>(l).unwrap().outcome).collect();
        let expected = [
            Outcome::Passed,
            Outcome::Skipped { reason: "one CPU".to_owned() },
            Outcome::Skipped { reason: "not root".to_owned() },
            Outcome::Failed { reason: "one is not 2".to_owned() },
            Outcome::Failed { reason: "a panic without a message".to_owned() },
            Outcome::Failed { reason: "no KVM that we know".to_owned() },
        ];
        assert_eq!(outcomes, expected);
        let skipped = session.skipped().unwrap();
        let lines = "\n  tests::passes: one CPU\n  tests::passes: not root";
        assert_eq!(skipped, format!("SKIPPED here (2):{lines}"));
    }

    #[test]
    fn a_test_whose_record_is_lost_has_failed() {
        let full = Report::open(Path::new("/dev/full")).unwrap();
        let (conclusion, _) = run(Some(full));
        assert_eq!(conclusion.num_failed, 6);
    }

    #[test]
    fn without_a_report_tests_run_all_the_same() {
        let (conclusion, _) = run(None);
        assert_eq!((conclusion.num_passed, conclusion.num_failed), (1, 3));
    }
}
