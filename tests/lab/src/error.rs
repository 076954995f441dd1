//! Why a run in the lab gave no result, or a bad one.

use std::path::PathBuf;
use std::time::Duration;

/// Each says what to do, where that is not plain.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LabError {
    /// A file that Debian's packages install.
    #[error("{}: {source}\n  `make setup-lab` installs what the lab needs", path.display())]
    Package {
        /// Which.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file or folder of the run.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A program that must be there could not be started.
    #[error("cannot start `{program}`: {source}\n  `make setup-lab` installs what the lab needs")]
    Start {
        /// Its name.
        program: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// A program that prepares the run failed; it has said why.
    #[error("`{program}` failed ({how})")]
    Failed {
        /// Its name.
        program: &'static str,
        /// Its exit status.
        how: String,
    },
    /// Cargo built, but not the program asked for.
    #[error("cargo built no program `{0}`")]
    NoProgram(&'static str),
    /// A JSON text that is not what it should be.
    #[error("{}: {source}", path.display())]
    Json {
        /// Which.
        path: PathBuf,
        /// The fault.
        source: serde_json::Error,
    },
    /// A pseudo-terminal for Bochs.
    #[error("no terminal for Bochs: {0}")]
    Terminal(rustix::io::Errno),
    /// The watchdog ended the run.
    #[error("no sign of life from the lab for {} s: stopped it{}", silence.as_secs(), during(step.as_ref()))]
    Silence {
        /// How long.
        silence: Duration,
        /// The step or test that was running.
        step: Option<String>,
    },
    /// The watchdog's other limit.
    #[error("not done after {} s: stopped it{}", limit.as_secs(), during(step.as_ref()))]
    TooLong {
        /// How long.
        limit: Duration,
        /// The step or test that was running.
        step: Option<String>,
    },
    /// Bochs ended, and the steps had not.
    #[error("Bochs ended ({how}) before the lab was done{}", during(step.as_ref()))]
    Unfinished {
        /// Bochs' exit status.
        how: String,
        /// The step or test that was running.
        step: Option<String>,
    },
    /// The run was whole, and something in it failed.
    #[error("failed in the lab: {0}")]
    Steps(String),
    /// Machines and their errors, a line each.
    #[error("failed:{0}")]
    Runs(String),
    /// A line of the results was damaged on its way, or steps are missing.
    #[error("the lab's results are not whole: {0}")]
    Garbled(String),
    /// Nothing was tested.
    #[error("no test ran: is there one of that name?")]
    NoTests,
    /// Tests that this machine can run were skipped.
    #[error("skipped in the lab, which is there to run them: {0}")]
    Skipped(String),
    /// The counts are not what they should be.
    #[error("the counts are wrong: {0}")]
    Counts(String),
    /// A filter for a plan that has one test.
    #[error("the stock kernel and Debian have one suite each: leave --test out")]
    StockFilter,
    /// No such machine.
    #[error(
        "no machine is called `{0}` in these plans: intel has intel-counts, intel-1, intel-2 and intel-3"
    )]
    NoMachine(String),
    /// Tests that ran in no place.
    #[error("ran nowhere: {0}")]
    Nowhere(String),
}

fn during(step: Option<&String>) -> String {
    step.map(|step| format!(", in {step}")).unwrap_or_default()
}

/// For `map_err`: an error of the file or folder at `path`.
pub(crate) fn at(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> LabError {
    let path = path.into();
    move |source| LabError::File { path, source }
}
