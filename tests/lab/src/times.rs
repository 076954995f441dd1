//! Where the time of `make test` went: its steps, and the slowest tests of each place.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use comfy_table::{Cell, CellAlignment, Table};
use serde::{Deserialize, Serialize};

use crate::error::{LabError, at};
use crate::places::Place;

/// Names the file to which steps are added; without it none are kept.
const STEPS_ENV: &str = "EXOPROBE_STEPS";
/// Tests shown of each place.
const SLOWEST: usize = 10;

/// A step of `make test`, as `scripts/timed.sh` writes it too.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Step {
    step: String,
    seconds: f64,
    /// CPU time of its processes, where that is measured: steps run side by side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cpu_seconds: Option<f64>,
    /// Its exit status; of a machine 0 or 1.
    status: i32,
}

/// The slowest tests of a place.
#[derive(Debug, Serialize)]
struct Slowest {
    place: String,
    tests: Vec<Test>,
}

#[derive(Debug, Serialize)]
struct Test {
    test: String,
    seconds: f64,
}

/// All of it, as the JSON file has it.
#[derive(Debug, Serialize)]
struct Times {
    steps: Vec<Step>,
    slowest: Vec<Slowest>,
}

/// Runs a step, and adds it to the file that [`STEPS_ENV`] names.
///
/// # Errors
/// Those of the step, or that the file cannot be written.
pub(crate) fn timed<T>(
    name: &str,
    step: impl FnOnce() -> Result<T, LabError>,
) -> Result<T, LabError> {
    let begun = Instant::now();
    let result = step();
    add(name, begun.elapsed(), result.is_ok())?;
    result
}

/// Adds a step that has ended.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn add(name: &str, took: Duration, ok: bool) -> Result<(), LabError> {
    let Some(path) = std::env::var_os(STEPS_ENV).map(PathBuf::from) else { return Ok(()) };
    let step = Step {
        step: name.to_owned(),
        seconds: took.as_secs_f64(),
        cpu_seconds: None,
        status: i32::from(!ok),
    };
    let line = serde_json::to_string(&step);
    let line = line.map_err(|source| LabError::Json { path: path.clone(), source })?;
    let file = File::options().create(true).append(true).open(&path);
    file.and_then(|mut file| writeln!(file, "{line}")).map_err(at(path))
}

/// Prints the steps and the slowest tests, and keeps all of it in `json`.
///
/// # Errors
/// A file that cannot be read or written.
pub(crate) fn show(steps: &Path, reports: &[PathBuf], json: &Path) -> Result<(), LabError> {
    let text = std::fs::read_to_string(steps).map_err(at(steps))?;
    let parse = |line| serde_json::from_str::<Step>(line);
    let parsed = text.lines().map(parse).collect::<Result<Vec<_>, _>>();
    let parsed = parsed.map_err(|source| LabError::Json { path: steps.to_owned(), source })?;
    let slowest = reports.iter().map(|path| Ok(slowest(&Place::read(path)?)));
    let times = Times { steps: parsed, slowest: slowest.collect::<Result<_, LabError>>()? };
    println!("{}\n{}", steps_table(&times.steps), tests_table(&times.slowest));
    let text = serde_json::to_vec_pretty(&times);
    let text = text.map_err(|source| LabError::Json { path: json.to_owned(), source })?;
    std::fs::write(json, text).map_err(at(json))
}

fn slowest(place: &Place) -> Slowest {
    let test = |(test, seconds): (&str, f64)| Test { test: test.to_owned(), seconds };
    let mut tests: Vec<Test> = place.seconds().map(test).collect();
    tests.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    tests.truncate(SLOWEST);
    Slowest { place: place.name().to_owned(), tests }
}

fn steps_table(steps: &[Step]) -> Table {
    let mut table = Table::new();
    table.set_header(["step", "seconds", "of CPUs", ""]);
    for step in steps {
        let end = Cell::new(if step.status == 0 { "" } else { "FAILED" });
        let cpu = step.cpu_seconds.map_or(Cell::new(""), seconds);
        table.add_row([Cell::new(&step.step), seconds(step.seconds), cpu, end]);
    }
    table
}

fn tests_table(places: &[Slowest]) -> Table {
    let mut table = Table::new();
    table.set_header(["place", "slowest tests", "seconds"]);
    for place in places {
        for test in &place.tests {
            table.add_row([Cell::new(&place.place), Cell::new(&test.test), seconds(test.seconds)]);
        }
    }
    table
}

fn seconds(seconds: f64) -> Cell {
    Cell::new(format!("{seconds:.1}")).set_alignment(CellAlignment::Right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_slowest_tests_are_shown_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let [steps, report, json] =
            ["steps", "host.jsonl", "times.json"].map(|f| dir.path().join(f));
        let lines = concat!(
            "{\"step\":\"lints\",\"seconds\":1.5,\"cpu_seconds\":2.25,\"status\":0}\n",
            "{\"step\":\"lab: smp\",\"seconds\":1.5,\"status\":0}\n",
        );
        std::fs::write(&steps, lines).unwrap();
        let test = |n| format!("{{\"test\":\"t{n}\",\"result\":\"passed\",\"seconds\":{n}.0}}\n");
        std::fs::write(&report, (0..12).map(test).collect::<String>()).unwrap();
        show(&steps, &[report], &json).unwrap();
        let kept: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        assert_eq!(kept["steps"][0]["step"], "lints");
        assert_eq!(kept["steps"][0]["cpu_seconds"], 2.25);
        assert_eq!(kept["steps"][1].get("cpu_seconds"), None);
        assert_eq!(kept["slowest"][0]["place"], "host");
        let tests = kept["slowest"][0]["tests"].as_array().unwrap();
        assert_eq!(tests.len(), SLOWEST);
        assert_eq!((&tests[0]["test"], &tests[9]["test"]), (&"t11".into(), &"t2".into()));
        assert!(matches!(show(dir.path(), &[], &json), Err(LabError::File { .. })));
        std::fs::write(&steps, "{}\n").unwrap();
        assert!(matches!(show(&steps, &[], &json), Err(LabError::Json { .. })));
    }
}
