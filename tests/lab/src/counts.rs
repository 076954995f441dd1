//! The counts that a run took: all there, whole, and the same each time.

use std::path::Path;

use exoprobe_tests::counts::Report;

use crate::error::{LabError, at};
use crate::plan::{COUNTS_FILE, Plan, Run};

/// Keeps the files that the steps of `run` left; counts are compared, too.
///
/// # Errors
/// When a step left none, they lack what this machine can give, or they differ.
pub(crate) fn check(
    run: &Run,
    files: &[(String, String, String)],
    dir: &Path,
) -> Result<(), LabError> {
    if run.plan == Plan::DiskSpeed {
        // It compares by itself.
        let keep = |(_, name, text): &(String, String, String)| {
            std::fs::write(dir.join(name), text).map_err(at(dir.join(name)))
        };
        return files.iter().try_for_each(keep);
    }
    let mut kept: Option<(&str, Report)> = None;
    for step in run.job.steps.iter().filter(|step| !step.collect.is_empty()) {
        let left = files.iter().find(|(from, name, _)| *from == step.name && name == COUNTS_FILE);
        let (_, _, text) =
            left.ok_or_else(|| LabError::Counts(format!("`{}` left none", step.name)))?;
        let path = dir.join(format!("{}.json", step.name.replace(' ', "-")));
        std::fs::write(&path, text).map_err(at(path))?;
        let report = complete(run.plan, text)
            .map_err(|what| LabError::Counts(format!("`{}`: {what}", step.name)))?;
        match &kept {
            None => kept = Some((&step.name, report)),
            Some((first, same)) if same.agrees_with(&report) => {
                println!("lab: `{first}` and `{}` are the same", step.name);
            }
            Some((first, _)) => {
                let both = format!("`{first}` and `{}` differ: see {}", step.name, dir.display());
                return Err(LabError::Counts(both));
            }
        }
    }
    Ok(())
}

/// A report, if it has all that `plan`'s machine can count; if not, what is wrong with it. On
/// kvm_amd an `out` takes KVM not the same number of instructions each time, so that its count is
/// not whole.
fn complete(plan: Plan, text: &str) -> Result<Report, String> {
    let report = Report::parse(text).map_err(|error| error.to_string())?;
    let mut problems = match plan {
        Plan::Amd => Vec::new(),
        _ => report.problems(&[]),
    };
    let kvm = plan.machine().kvm;
    if report.host.kvm != kvm {
        problems.push(format!("taken on {}, not on {kvm}", report.host.kvm));
    }
    if problems.is_empty() { Ok(report) } else { Err(problems.join("; ")) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use exoprobe_tests::counts::{Clock, Column, HostKind, RowCounts, SCHEMA};

    use super::*;

    fn report(kvm: &str, missing: &[Column], instructions: f64) -> String {
        let guest = (!missing.contains(&Column::Guest)).then_some(1.0);
        let row = RowCounts {
            name: "int3, boosted".to_owned(),
            displaced: None,
            registers: 0,
            exits: BTreeMap::from([("breakpoint".to_owned(), 1.0)]),
            kvm_exits: Some(1.0),
            guest_instructions: guest,
            all_instructions: Some(instructions),
            host_instructions: guest.map(|guest| instructions - guest),
            kvm_emulated: Some(0.0),
        };
        let host = HostKind { kvm: kvm.to_owned(), software: false, kernel: "6.1".to_owned() };
        let missing = missing.iter().map(|column| (*column, "why".to_owned())).collect();
        let rows = vec![row];
        let (schema, clock) = (SCHEMA, Clock::Instructions);
        let report = Report { schema, host, clock, turns: 16, rounds: 32, missing, rows };
        serde_json::to_string(&report).unwrap()
    }

    #[test]
    fn each_step_must_leave_the_same_counts() {
        let dir = tempfile::tempdir().unwrap();
        let runs = Plan::Intel.runs(None);
        let run = &runs[0];
        let file =
            |step: &str, text: &str| (step.to_owned(), COUNTS_FILE.to_owned(), text.to_owned());
        let check = |files: &[_]| check(run, files, dir.path());
        let one = report("kvm_intel", &[], 3362.0);
        assert!(check(&[file("counts", &one), file("counts again", &one)]).is_ok());
        assert_eq!(std::fs::read_to_string(dir.path().join("counts.json")).unwrap(), one);
        let other = report("kvm_intel", &[], 3363.0);
        for files in [
            vec![],
            vec![file("counts", &one)],
            vec![file("counts", &one), file("counts again", &other)],
            vec![file("counts", "{}"), file("counts again", "{}")],
        ] {
            assert!(matches!(check(&files), Err(LabError::Counts(_))), "{files:?}");
        }
    }

    #[test]
    fn a_machine_must_count_all_that_it_can() {
        let lacking = [Column::Guest, Column::Host];
        assert!(complete(Plan::Intel, &report("kvm_intel", &[], 1.0)).is_ok());
        assert!(complete(Plan::Amd, &report("kvm_amd", &lacking, 1.5)).is_ok());
        assert!(complete(Plan::Intel, &report("kvm_intel", &lacking, 1.0)).is_err());
        assert!(complete(Plan::Intel, &report("kvm_amd", &[], 1.0)).is_err());
        assert!(complete(Plan::Intel, &report("kvm_intel", &[], 1.5)).is_err());
    }
}
