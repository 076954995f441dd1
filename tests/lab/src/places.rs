//! Compares the places that ran tests: the reports of several places side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use comfy_table::{Cell, Table};
use exoprobe_tests::harness::{NO_DEBIAN_IMAGE, Outcome, Record};

use crate::error::{LabError, at};

/// A place, and how its tests ended.
pub(crate) struct Place {
    name: String,
    tests: BTreeMap<String, Outcome>,
    /// Of tests that ran.
    seconds: BTreeMap<String, f64>,
}

impl Place {
    /// Reads a report; the place is named after the file. A place that left none ran nothing.
    pub(crate) fn read(path: &Path) -> Result<Self, LabError> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            read => read.map_err(at(path))?,
        };
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let parse = |line| serde_json::from_str::<Record>(line);
        let records = text.lines().map(parse).collect::<Result<Vec<_>, _>>();
        let records = records.map_err(|source| LabError::Json { path: path.to_owned(), source })?;
        let ran = records.iter().filter(|r| !matches!(r.outcome, Outcome::Skipped { .. }));
        let seconds = ran.map(|r| (r.test.clone(), r.seconds)).collect();
        let tests = records.into_iter().map(|r| (r.test, r.outcome)).collect();
        Ok(Self { name, tests, seconds })
    }

    /// The file's name without its ending.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Tests that ran, and how long each took.
    pub(crate) fn seconds(&self) -> impl Iterator<Item = (&str, f64)> {
        self.seconds.iter().map(|(test, seconds)| (test.as_str(), *seconds))
    }

    fn count(&self, which: impl Fn(&Outcome) -> bool) -> usize {
        self.tests.values().filter(|outcome| which(outcome)).count()
    }
}

/// Prints what ran where.
///
/// # Errors
/// A report that cannot be read, a test that failed in a place, or one that ran in none.
pub(crate) fn compare(reports: &[std::path::PathBuf]) -> Result<(), LabError> {
    let places = reports.iter().map(|path| Place::read(path)).collect::<Result<Vec<_>, _>>()?;
    let mut table = Table::new();
    table.set_header(["place", "passed", "failed", "skipped"]);
    for place in &places {
        let counts = [
            place.count(|o| *o == Outcome::Passed),
            place.count(|o| matches!(o, Outcome::Failed { .. })),
            place.count(|o| matches!(o, Outcome::Skipped { .. })),
        ];
        table.add_row(std::iter::once(Cell::new(&place.name)).chain(counts.map(Cell::new)));
    }
    println!("{table}");
    let each = || places.iter().flat_map(|place| place.tests.iter().map(move |test| (place, test)));
    for (place, (test, outcome)) in each() {
        if let Outcome::Skipped { reason } = outcome {
            println!("skipped {} {test}: {reason}", place.name);
        }
    }
    // Last, where a reader looks first.
    for (place, (test, outcome)) in each() {
        if let Outcome::Failed { reason } = outcome {
            println!("FAILED {} {test}: {reason}", place.name);
        }
    }
    judge(&places)
}

fn judge(places: &[Place]) -> Result<(), LabError> {
    let failed: Vec<&str> = places
        .iter()
        .filter(|place| place.count(|o| matches!(o, Outcome::Failed { .. })) > 0)
        .map(|place| place.name.as_str())
        .collect();
    if !failed.is_empty() {
        return Err(LabError::Steps(failed.join(", ")));
    }
    if let Some(empty) = places.iter().find(|place| place.tests.is_empty()) {
        return Err(LabError::Nowhere(format!("every test of {}: it left no report", empty.name)));
    }
    let nowhere = nowhere(places);
    if nowhere.is_empty() {
        return Ok(());
    }
    Err(LabError::Nowhere(nowhere.join(", ")))
}

/// Tests that some place knows and none has run. Those that `make debian` alone runs do not count.
fn nowhere(places: &[Place]) -> Vec<String> {
    let known: BTreeSet<&String> = places.iter().flat_map(|place| place.tests.keys()).collect();
    let ran = |test: &String| {
        let ends = places.iter().filter_map(|place| place.tests.get(test));
        ends.into_iter().any(|outcome| match outcome {
            Outcome::Skipped { reason } => reason == NO_DEBIAN_IMAGE,
            _ => true,
        })
    };
    known.into_iter().filter(|test| !ran(test)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(dir: &Path, name: &str, lines: &[(&str, &str)]) -> std::path::PathBuf {
        let path = dir.join(name);
        let line = |(test, result): &(&str, &str)| {
            format!(
                "{{\"test\":\"{test}\",\"result\":\"{result}\",\"reason\":\"r\",\"seconds\":1.0}}\n"
            )
        };
        std::fs::write(&path, lines.iter().map(line).collect::<String>()).unwrap();
        path
    }

    #[test]
    fn a_test_must_run_somewhere_and_fail_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let one = report(dir.path(), "host.jsonl", &[("a", "passed"), ("b", "skipped")]);
        let two = report(dir.path(), "lab.jsonl", &[("a", "skipped"), ("b", "passed")]);
        assert!(compare(&[one.clone(), two.clone()]).is_ok());
        let Err(LabError::Nowhere(tests)) = compare(std::slice::from_ref(&one)) else { panic!() };
        assert_eq!(tests, "b");
        let line = format!(
            "{{\"test\":\"d\",\"result\":\"skipped\",\"reason\":\"{NO_DEBIAN_IMAGE}\",\"seconds\":0}}\n"
        );
        let debian = dir.path().join("debian.jsonl");
        std::fs::write(&debian, line).unwrap();
        assert!(compare(&[one.clone(), two.clone(), debian]).is_ok());
        let bad = report(dir.path(), "bad.jsonl", &[("a", "failed"), ("b", "passed")]);
        assert!(matches!(compare(&[one, bad]), Err(LabError::Steps(place)) if place == "bad"));
        assert!(matches!(compare(&[dir.path().join("none")]), Err(LabError::Nowhere(_))));
        assert!(matches!(compare(&[dir.path().to_owned()]), Err(LabError::File { .. })));
        let empty = report(dir.path(), "empty.jsonl", &[]);
        assert!(matches!(compare(&[two, empty]), Err(LabError::Nowhere(_))));
        let garbage = dir.path().join("garbage.jsonl");
        std::fs::write(&garbage, "{}\n").unwrap();
        assert!(matches!(compare(&[garbage]), Err(LabError::Json { .. })));
    }
}
