//! What `make lab`, `make lab-amd` and `make lab-stock` run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use exoprobe_lab::job::{Job, RESULTS, Step};
use exoprobe_tests::GUEST_ENV;
use exoprobe_tests::harness::{LACKS_ENV, PROGRESS_ENV, REPORT_ENV};

use crate::artifacts::{self, Programs};
use crate::error::LabError;
use crate::image::Contents;
use crate::machine::{AMD, INTEL, INTEL_LARGE, Machine};

/// A run in the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Plan {
    /// All tests, and the counts twice, on kvm_intel
    Intel,
    /// All tests that Bochs can run on kvm_amd, and the counts twice
    Amd,
    /// Debian's cloud kernel as the guest, on kvm_intel
    Stock,
}

/// The suite that only [`Plan::Stock`] runs, for it needs a kernel and minutes of its own.
pub(crate) const STOCK_SUITE: &str = "stock::";
/// File that the counts go to.
pub(crate) const COUNTS_FILE: &str = "counts.json";

impl Plan {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Intel => "intel",
            Self::Amd => "amd",
            Self::Stock => "stock",
        }
    }

    pub(crate) fn machine(self) -> &'static Machine {
        match self {
            Self::Intel => &INTEL,
            Self::Amd => &AMD,
            Self::Stock => &INTEL_LARGE,
        }
    }

    /// The programs to run; with a `filter`, only tests whose names contain it, and no counts.
    pub(crate) fn job(self, filter: Option<&str>) -> Job {
        let fixed = ["--test-threads", "2", "--color", "never"];
        let mut args: Vec<String> = fixed.map(str::to_owned).into();
        match self {
            Self::Stock => args.push(STOCK_SUITE.to_owned()),
            Self::Intel | Self::Amd => args.extend(filter.map(str::to_owned)),
        }
        let mut steps = vec![self.step("tests", "/bin/integration", args)];
        if self != Self::Stock && filter.is_none() {
            // Twice: the same program must give the same counts.
            steps.extend(["counts", "counts again"].map(|name| self.counts(name)));
            if self == Self::Intel {
                let args = ["--scaling", "--tsc-counts-instructions"].map(str::to_owned);
                steps.push(self.step("scaling", "/bin/counts", args.into()));
            }
        }
        Job { steps }
    }

    /// Whether it is right that this plan skips a test for this reason.
    pub(crate) fn may_skip(self, test: &str, reason: &str) -> bool {
        let lacks = self.machine().lacks.split(';').filter_map(|lack| lack.split_once('='));
        let told = lacks.into_iter().any(|(_, why)| why == reason);
        told || (self != Self::Stock && test.starts_with(STOCK_SUITE))
    }

    fn step(self, name: &str, program: &str, args: Vec<String>) -> Step {
        let env = [
            (GUEST_ENV, "/guest"),
            (REPORT_ENV, RESULTS),
            (PROGRESS_ENV, "1"),
            (LACKS_ENV, self.machine().lacks),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Step {
            name: name.to_owned(),
            program: PathBuf::from(program),
            args,
            env: BTreeMap::from(env),
            collect: Vec::new(),
        }
    }

    fn counts(self, name: &str) -> Step {
        let file = format!("/tmp/{COUNTS_FILE}");
        let mut args = vec!["--tsc-counts-instructions".to_owned(), "--json".to_owned()];
        args.push(file.clone());
        if self == Self::Amd {
            args.push("--no-single-step".to_owned());
        }
        Step { collect: vec![file.into()], ..self.step(name, "/bin/counts", args) }
    }

    /// Files of the initramfs, besides the job.
    pub(crate) fn contents(self, programs: &Programs) -> Result<Contents, LabError> {
        let mut contents = vec![
            ("init", programs.init.clone()),
            ("bin/exoprobe", programs.exoprobe.clone()),
            ("bin/integration", programs.tests.clone()),
            ("bin/counts", programs.counts.clone()),
        ];
        contents.extend(artifacts::guest_files()?);
        if self == Self::Stock {
            contents.push(("guest/out/stock/bzImage", artifacts::cloud_kernel()?));
        }
        Ok(contents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_taken_twice_unless_tests_were_chosen() {
        let names = |job: Job| job.steps.into_iter().map(|step| step.name).collect::<Vec<_>>();
        assert_eq!(names(Plan::Intel.job(None)), ["tests", "counts", "counts again", "scaling"]);
        assert_eq!(names(Plan::Intel.job(Some("hits"))), ["tests"]);
        assert_eq!(names(Plan::Stock.job(None)), ["tests"]);
        assert!(
            Plan::Intel.may_skip("stock::x", "why") && !Plan::Stock.may_skip("stock::x", "why")
        );
        assert!(!Plan::Intel.may_skip("hits::x", "why"));
        let reason = "KVM_GUESTDBG_SINGLESTEP ends Bochs under SVM";
        assert!(
            Plan::Amd.may_skip("counts::x", reason) && !Plan::Intel.may_skip("counts::x", reason)
        );
        let settings = [("SECONDS".to_owned(), "600".to_owned())];
        let steps = Plan::Amd.job(None).with_env(&settings).steps;
        let told = |step: &Step| step.env["SECONDS"] == "600" && step.env[GUEST_ENV] == "/guest";
        assert!(steps.iter().all(told));
        assert!(steps[1].args.contains(&"--no-single-step".to_owned()));
    }
}
