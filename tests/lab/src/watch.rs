//! Following a run: its two serial ports, what they say of its progress, and the watchdog.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use exoprobe_lab::job::Record;
use exoprobe_tests::harness::{self, Outcome as Ending};

use crate::bochs::Bochs;
use crate::error::{LabError, at};
use crate::machine::{CONSOLE, RESULTS};

const POLL: Duration = Duration::from_millis(100);
/// How the tests tell that one begins (`PROGRESS_ENV` of the harness).
const BEGIN: &str = "begin ";
/// Console lines shown when a run ends badly.
const LAST_LINES: usize = 30;

/// When to give a run up.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Without a byte from the lab.
    pub(crate) silence: Duration,
    /// In all.
    pub(crate) total: Duration,
}

/// A file that grows, read line by line.
struct Follower {
    file: File,
    partial: Vec<u8>,
}

impl Follower {
    fn open(path: &Path) -> Result<Self, LabError> {
        // Bochs would create it, but later than we look.
        File::create(path).map_err(at(path))?;
        Ok(Self { file: File::open(path).map_err(at(path))?, partial: Vec::new() })
    }

    /// Bytes that came since, as whole lines; and whether any came.
    fn lines(&mut self) -> std::io::Result<(bool, Vec<String>)> {
        let before = self.partial.len();
        self.file.read_to_end(&mut self.partial)?;
        let grown = self.partial.len() > before;
        let whole = self.partial.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let rest = self.partial.split_off(whole);
        let text = String::from_utf8_lossy(&self.partial).into_owned();
        self.partial = rest;
        // The lab's programs choose these bytes; none may steer the user's terminal.
        let clean = |line: &str| line.chars().filter(|c| !c.is_control() || *c == '\t').collect();
        Ok((grown, text.lines().map(clean).collect()))
    }
}

/// What a run has told so far.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Tests, in order of their end.
    pub(crate) tests: Vec<harness::Record>,
    /// Files that steps left: the step, the name, the text.
    pub(crate) files: Vec<(String, String, String)>,
    /// Steps that failed, and how.
    pub(crate) failed: Vec<(String, String)>,
    /// The step that runs.
    step: Option<String>,
    /// Tests that have begun and not ended.
    running: BTreeSet<String>,
    done: bool,
}

impl Outcome {
    /// Takes a line of the second serial port, and gives what the user should see of it. A line that
    /// is neither is shown, for it can only be an error.
    fn take(&mut self, line: &str) -> Option<String> {
        if let Ok(record) = serde_json::from_str::<Record>(line) {
            return self.record(record);
        }
        match serde_json::from_str::<harness::Record>(line) {
            Ok(test) => {
                // How the others end is on the console already.
                let shown = match &test.outcome {
                    Ending::Skipped { reason } => Some(format!("SKIPPED {}: {reason}", test.test)),
                    Ending::Passed | Ending::Failed { .. } => None,
                };
                self.running.remove(&test.test);
                self.tests.push(test);
                shown
            }
            Err(_) => Some(format!("unexpected: {line}")),
        }
    }

    /// Takes a line of the console.
    fn hear(&mut self, line: &str) {
        if let Some(test) = line.strip_prefix(BEGIN) {
            self.running.insert(test.to_owned());
        }
    }

    /// What runs at the moment, in words.
    fn running(&self) -> Option<String> {
        let step = self.step.as_ref()?;
        let tests: Vec<&str> = self.running.iter().map(String::as_str).collect();
        Some(if tests.is_empty() { step.clone() } else { format!("{step}: {}", tests.join(", ")) })
    }

    fn record(&mut self, record: Record) -> Option<String> {
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
                if !ok {
                    self.failed.push((step, how));
                }
                Some(shown)
            }
            Record::Done => {
                self.done = true;
                None
            }
        }
    }
}

/// Follows Bochs to its end, and shows what comes. An error has shown the last lines of the console.
pub(crate) fn follow(dir: &Path, limits: Limits) -> Result<Outcome, LabError> {
    let mut console = Follower::open(&dir.join(CONSOLE))?;
    let mut results = Follower::open(&dir.join(RESULTS))?;
    let mut bochs = Bochs::start(dir)?;
    let mut outcome = Outcome::default();
    let mut last = std::collections::VecDeque::new();
    let (begun, mut heard) = (Instant::now(), Instant::now());
    let result = loop {
        // Asked before reading, so that what it wrote last is read.
        let ended = bochs.ended().map_err(at("bochs"))?;
        let (spoke, lines) = console.lines().map_err(at(CONSOLE))?;
        let (reported, reports) = results.lines().map_err(at(RESULTS))?;
        lines.iter().for_each(|line| outcome.hear(line));
        let shown = reports.iter().filter_map(|line| outcome.take(line));
        for line in lines.into_iter().chain(shown) {
            println!("{:5.0} s | {line}", begun.elapsed().as_secs_f64());
            last.push_back(line);
            if last.len() > LAST_LINES {
                last.pop_front();
            }
        }
        if spoke || reported {
            heard = Instant::now();
        }
        let step = outcome.running();
        if let Some(status) = ended {
            break if outcome.done {
                Ok(())
            } else {
                Err(LabError::Unfinished { how: status.to_string(), step })
            };
        }
        if heard.elapsed() > limits.silence {
            break Err(LabError::Silence { silence: limits.silence, step });
        }
        if begun.elapsed() > limits.total {
            break Err(LabError::TooLong { limit: limits.total, step });
        }
        std::thread::sleep(POLL);
    };
    if result.is_err() {
        eprintln!(
            "lab: the last lines from the lab (all of them: {}):",
            dir.join(CONSOLE).display()
        );
        for line in last {
            eprintln!("    {line}");
        }
    }
    result.map(|()| outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_and_clean() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut follower = Follower::open(&path).unwrap();
        assert_eq!(follower.lines().unwrap(), (false, vec![]));
        std::fs::write(&path, b"one\r\ntw").unwrap();
        assert_eq!(follower.lines().unwrap(), (true, vec!["one".to_owned()]));
        std::fs::write(&path, b"one\r\ntwo\x1b[31m\n").unwrap();
        assert_eq!(follower.lines().unwrap(), (true, vec!["two[31m".to_owned()]));
    }

    #[test]
    fn results_are_sorted_by_what_they_are() {
        let mut outcome = Outcome::default();
        let begun = serde_json::to_string(&Record::Begin { step: "tests".to_owned() }).unwrap();
        assert_eq!(outcome.take(&begun).as_deref(), Some("== tests"));
        assert_eq!(outcome.step.as_deref(), Some("tests"));
        let skipped = r#"{"test":"a::b","result":"skipped","reason":"no SMP","seconds":0.0}"#;
        assert_eq!(outcome.take(skipped).as_deref(), Some("SKIPPED a::b: no SMP"));
        assert_eq!(outcome.take(r#"{"test":"a::c","result":"passed","seconds":1.5}"#), None);
        assert_eq!(outcome.tests.len(), 2);
        assert!(outcome.take("garbage").is_some());
        for line in ["begin a::b [1 vCPU]", "begin a::d", "noise"] {
            outcome.hear(line);
        }
        outcome.take(r#"{"test":"a::d","result":"failed","reason":"","seconds":1.5}"#);
        assert_eq!(outcome.running().as_deref(), Some("tests: a::b [1 vCPU]"));
        let end = Record::End { step: "tests".to_owned(), ok: false, how: "signal: 9".to_owned() };
        outcome.take(&serde_json::to_string(&end).unwrap());
        assert_eq!(outcome.failed, [("tests".to_owned(), "signal: 9".to_owned())]);
        assert!(!outcome.done);
        outcome.take(r#"{"lab":"done"}"#);
        assert!(outcome.done);
    }
}
