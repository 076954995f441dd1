//! The results of a run, and whether they are complete.

use std::collections::BTreeSet;

use exoprobe_lab::job::Record;
use exoprobe_tests::harness::{self, BEGIN, Outcome as Ending};

use crate::error::LabError;
use crate::plan::Run;

/// The results of a run so far.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Tests, in order of their end.
    pub(crate) tests: Vec<harness::Record>,
    /// Files that steps left: the step, the name, the text.
    pub(crate) files: Vec<(String, String, String)>,
    /// All steps have run.
    pub(crate) done: bool,
    /// Steps that have ended, and how those failed that did.
    ended: Vec<(String, Result<(), String>)>,
    /// The step that runs.
    step: Option<String>,
    /// Tests that have begun and not ended.
    running: BTreeSet<String>,
    /// Lines of the results that are none.
    garbled: Vec<String>,
}

impl Outcome {
    /// Takes a line of the console.
    pub(crate) fn on_console_line(&mut self, line: &str) {
        // The two ports are read one after the other: its end may have come first.
        if let Some(name) = line.strip_prefix(BEGIN)
            && !self.tests.iter().any(|test| test.test == name)
        {
            self.running.insert(name.to_owned());
        }
    }

    /// Takes a line of the second serial port, and returns the part to show to the user.
    pub(crate) fn on_result_line(&mut self, line: &str) -> Option<String> {
        if let Ok(record) = serde_json::from_str::<Record>(line) {
            return self.on_record(record);
        }
        let Ok(test) = serde_json::from_str::<harness::Record>(line) else {
            self.garbled.push(line.to_owned());
            return Some(format!("unexpected: {line}"));
        };
        // How the others end is on the console already.
        let shown = match &test.outcome {
            Ending::Skipped { reason } => Some(format!("SKIPPED {}: {reason}", test.test)),
            Ending::Passed | Ending::Failed { .. } => None,
        };
        self.running.remove(&test.test);
        self.tests.push(test);
        shown
    }

    fn on_record(&mut self, record: Record) -> Option<String> {
        match record {
            Record::Begin { step } => {
                let shown = format!("== {step}");
                self.step = Some(step);
                Some(shown)
            }
            Record::File { step, name, text } => {
                self.files.push((step, name, text));
                None
            }
            Record::End { step, ok, how } => {
                self.step = None;
                let shown = format!("== {step}: {}", if ok { "passed" } else { &how });
                self.ended.push((step, if ok { Ok(()) } else { Err(how) }));
                Some(shown)
            }
            Record::Done => {
                self.done = true;
                None
            }
        }
    }

    /// Records of the tests that began and did not end, as failures for this reason.
    pub(crate) fn unfinished(&self, reason: &str) -> impl Iterator<Item = harness::Record> {
        self.running.iter().map(move |test| harness::Record {
            test: test.clone(),
            outcome: Ending::Failed { reason: reason.to_owned() },
            seconds: 0.0,
        })
    }

    /// The step and tests that run at the moment, in words.
    pub(crate) fn running(&self) -> Option<String> {
        let step = self.step.as_ref()?;
        let tests: Vec<&str> = self.running.iter().map(String::as_str).collect();
        Some(if tests.is_empty() { step.clone() } else { format!("{step}: {}", tests.join(", ")) })
    }

    /// Whether all of `run` ran and passed, some of `tests` among it, and only such tests were
    /// skipped as its plan allows.
    ///
    /// # Errors
    /// The first of these that is not so.
    pub(crate) fn judge(&self, run: &Run, tests: &[harness::Record]) -> Result<(), LabError> {
        if let Some(line) = self.garbled.first() {
            return Err(LabError::Garbled(line.clone()));
        }
        let failed: Vec<String> = self
            .ended
            .iter()
            .filter_map(|(step, end)| Some(format!("{step} ({})", end.as_ref().err()?)))
            .collect();
        if !failed.is_empty() {
            return Err(LabError::Steps(failed.join(", ")));
        }
        let ended: Vec<&String> = self.ended.iter().map(|(step, _)| step).collect();
        if ended != run.job.steps.iter().map(|step| &step.name).collect::<Vec<_>>() {
            return Err(LabError::Garbled(format!("steps that ended: {ended:?}")));
        }
        let ran = |test: &&harness::Record| !matches!(test.outcome, Ending::Skipped { .. });
        if run.has_tests() && !tests.iter().any(|test| ran(&test)) {
            return Err(LabError::NoTests);
        }
        let skipped: Vec<&str> = tests
            .iter()
            .filter(|test| match &test.outcome {
                Ending::Skipped { reason } => !run.plan.may_skip(&test.test, reason),
                Ending::Passed | Ending::Failed { .. } => false,
            })
            .map(|test| test.test.as_str())
            .collect();
        if skipped.is_empty() { Ok(()) } else { Err(LabError::Skipped(skipped.join(", "))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    const PASSED: &str = r#"{"test":"a::c","result":"passed","seconds":1.5}"#;
    const SKIPPED: &str =
        r#"{"test":"stock::b","result":"skipped","reason":"no SMP","seconds":0.0}"#;
    const END: &str = r#"{"lab":"end","step":"tests","ok":true,"how":"exit status: 0"}"#;

    fn outcome(lines: &[&str]) -> Outcome {
        let mut outcome = Outcome::default();
        for line in lines {
            outcome.on_result_line(line);
        }
        outcome
    }

    #[test]
    fn results_are_sorted_by_what_they_are() {
        let mut outcome = Outcome::default();
        let begun = serde_json::to_string(&Record::Begin { step: "tests".to_owned() }).unwrap();
        assert_eq!(outcome.on_result_line(&begun).as_deref(), Some("== tests"));
        assert_eq!(outcome.on_result_line(SKIPPED).as_deref(), Some("SKIPPED stock::b: no SMP"));
        for line in ["begin a::c", "begin a::d [1 vCPU]", "begin stock::b", "noise"] {
            outcome.on_console_line(line);
        }
        assert_eq!(outcome.on_result_line(PASSED), None);
        assert_eq!(outcome.running().as_deref(), Some("tests: a::d [1 vCPU]"));
        let unfinished: Vec<_> = outcome.unfinished("silence").map(|record| record.test).collect();
        assert_eq!(unfinished, ["a::d [1 vCPU]"]);
        assert_eq!(outcome.on_result_line(END).as_deref(), Some("== tests: passed"));
        assert!(!outcome.done && outcome.running().is_none());
        outcome.on_result_line(r#"{"lab":"done"}"#);
        assert!(outcome.done);
    }

    #[test]
    fn a_run_is_good_only_when_all_of_it_ran() {
        let run = &Plan::Intel.runs(Some("a::"))[0];
        let judge = |lines: &[&str]| {
            let outcome = outcome(lines);
            outcome.judge(run, &outcome.tests)
        };
        assert!(judge(&[SKIPPED, PASSED, END]).is_ok());
        assert!(matches!(judge(&[SKIPPED, END]), Err(LabError::NoTests)));
        assert!(matches!(judge(&[END]), Err(LabError::NoTests)));
        assert!(matches!(judge(&[PASSED]), Err(LabError::Garbled(_))), "a step is missing");
        assert!(matches!(judge(&[PASSED, "{\"te", END]), Err(LabError::Garbled(_))));
        let failed = END.replace("true", "false");
        assert!(matches!(judge(&[PASSED, &failed]), Err(LabError::Steps(_))));
        let other = SKIPPED.replace("stock::b", "a::b");
        assert!(matches!(judge(&[PASSED, &other, END]), Err(LabError::Skipped(_))));
    }
}
