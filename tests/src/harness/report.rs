//! The report of a run: JSON, one object a line, so that another program knows which tests ran.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// A line of the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The test's name, as `--list` prints it.
    pub test: String,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Seconds that it took.
    pub seconds: f64,
}

/// How a test ended: `result` in JSON, with a `reason` unless it passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "lowercase")]
pub enum Outcome {
    /// All held.
    Passed,
    /// It panicked.
    Failed {
        /// The panic's message.
        reason: String,
    },
    /// It did not run, because this place lacks what it needs.
    Skipped {
        /// The missing needs.
        reason: String,
    },
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReportError {
    /// The file cannot be had.
    #[error("cannot open the report {path}: {source}")]
    Open { path: PathBuf, source: io::Error },
    /// A line could not be added.
    #[error("cannot write the report: {0}")]
    Write(#[from] io::Error),
}

/// A report that grows.
pub(super) struct Report(Mutex<File>);

impl Report {
    /// Opens the file to append to it.
    pub(super) fn open(path: &Path) -> Result<Self, ReportError> {
        let file = File::options().create(true).append(true).open(path);
        let file = file.map_err(|source| ReportError::Open { path: path.to_owned(), source })?;
        Ok(Self(Mutex::new(file)))
    }

    /// Adds a line, which is in the file when this returns.
    pub(super) fn append(&self, record: &Record) -> Result<(), ReportError> {
        let mut line = serde_json::to_vec(record).map_err(io::Error::from)?;
        line.push(b'\n');
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(file.write_all(&line)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(test: &str, outcome: Outcome) -> Record {
        Record { test: test.to_owned(), outcome, seconds: 0.5 }
    }

    #[test]
    fn lines_come_back_as_they_went_also_behind_those_of_an_earlier_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report");
        let records = [
            record("hits::one [2 vCPUs]", Outcome::Passed),
            record("two", Outcome::Failed { reason: "left: 1\nright: \"2\"".to_owned() }),
            record("three", Outcome::Skipped { reason: "no KVM".to_owned() }),
        ];
        for record in &records {
            Report::open(&path).unwrap().append(record).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let read: Vec<Record> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(read, records);
    }

    #[test]
    fn the_fields_are_those_other_programs_read() {
        let passed = record("a", Outcome::Passed);
        let text = r#"{"test":"a","result":"passed","seconds":0.5}"#;
        assert_eq!(serde_json::to_string(&passed).unwrap(), text);
        let skipped = record("a", Outcome::Skipped { reason: "why".to_owned() });
        let text = r#"{"test":"a","result":"skipped","reason":"why","seconds":0.5}"#;
        assert_eq!(serde_json::to_string(&skipped).unwrap(), text);
    }

    #[test]
    fn a_report_that_cannot_be_opened_names_its_path() {
        let error = Report::open(Path::new("/nonexistent/report")).err().unwrap();
        assert!(error.to_string().contains("/nonexistent/report"), "{error}");
    }
}
