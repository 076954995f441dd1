//! Runs the suites wherever the test program is: what a place cannot do is skipped by name, with
//! the reason, and a report lists the tests that ran for another program.
//!
//! The command line is libtest's, through libtest-mimic.

mod case;
mod console;
mod environment;
mod need;
mod part;
mod report;
mod session;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::Arguments;

pub use case::{Case, Run, VCPU_COUNTS};
pub use console::keep_console;
pub use environment::{BEGIN, PART_ENV, PROGRESS_ENV, REPORT_ENV};
pub use need::{
    LACKS_ENV, Lack, NO_APT, NO_BPFTRACE_TOOLS, NO_CGROUP, NO_DEBIAN_IMAGE, NO_DEBUG_INFO, NO_FUSE,
    NO_HUGE_PAGES, NO_IPROUTE2, NO_LANDLOCK, NO_NAMESPACES, NO_PASST, NO_PERF, NO_PYTHON, NO_SHELL,
    NO_STUNNEL, NO_SYSTEMD, NO_SYSTEMD_ANALYZE, NO_TAP, NO_TRACE_CMD, NO_USER_NAMESPACES, Need,
};
pub use report::{Outcome, Record};
use session::Session;

/// Runs the cases that the command line selects. Returns the exit code of `main`.
#[must_use]
pub fn run(suites: &[&[Case]]) -> ExitCode {
    let args = Arguments::from_args();
    let session = match Session::from_environment() {
        Ok(session) => Arc::new(session),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let cases = suites.iter().copied().flatten().enumerate();
    let cases = cases.filter(|(at, _)| session.part().has(*at)).map(|(_, case)| case);
    let trials = cases.flat_map(Case::tests).map(|test| session.trial(test)).collect();
    let conclusion = libtest_mimic::run(&args, trials);
    if let Some(skipped) = session.skipped() {
        eprintln!("{skipped}\n");
    }
    conclusion.exit_code()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Functions marked `#[test]` and files that are no module: the compiler drops both without a
    /// word.
    #[test]
    fn nothing_in_the_suites_is_left_out() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite");
        check(&folder, &folder.join("mod.rs"));
    }

    /// Checks the files of `folder`, whose modules `parent` declares.
    fn check(folder: &Path, parent: &Path) {
        let modules = std::fs::read_to_string(parent).unwrap();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                let (inside, beside) = (path.join("mod.rs"), path.with_extension("rs"));
                check(&path, if inside.exists() { &inside } else { &beside });
                continue;
            }
            if path.extension() != Some("rs".as_ref()) {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(!text.contains("#[test]"), "{}: list it in cases![]", path.display());
            let name = path.file_stem().unwrap().to_str().unwrap();
            assert!(name == "mod" || modules.contains(&format!("mod {name};")), "mod {name}");
        }
    }
}
