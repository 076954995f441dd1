//! `lab`: boots a small Linux with KVM in Bochs, and runs the end-to-end tests in it.

mod artifacts;
mod bochs;
mod error;
mod image;
mod machine;
mod places;
mod plan;
mod watch;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use error::{LabError, at};
use plan::{COUNTS_FILE, Plan};
use watch::{Limits, Outcome};

#[derive(Parser)]
#[command(
    about = "Runs exoprobe's tests in Bochs, against a real kvm_intel or kvm_amd",
    after_help = "Examples:\n  \
        cargo run -p exoprobe-lab -- run intel\n  \
        cargo run -p exoprobe-lab -- run intel --test hits::\n  \
        cargo run -p exoprobe-lab -- places target/tests/host.jsonl target/tests/lab-intel.jsonl"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build what is needed, boot it, run, and give the outcome as exit status
    Run(RunArgs),
    /// Compare reports of tests: fails if a test failed in a place, or ran in none
    Places {
        /// Reports, one a place, named after it
        #[arg(required = true)]
        reports: Vec<PathBuf>,
    },
}

#[derive(clap::Args)]
struct RunArgs {
    /// What to run
    plan: Plan,
    /// Run only tests whose names contain this, and no counts
    #[arg(long, value_name = "NAME")]
    test: Option<String>,
    /// Give up after so many seconds without a byte from the lab
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    silence: u64,
    /// Give up after so many seconds in all, counted from power-on
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    limit: u64,
    /// Commands for Bochs' debugger, in place of `c` (continue); what it prints goes to debugger.txt
    #[arg(long, value_name = "FILE")]
    debugger: Option<PathBuf>,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run(&args),
        Command::Places { reports } => places::compare(&reports),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &RunArgs) -> Result<(), LabError> {
    let target = artifacts::root().join("target");
    let dir = target.join("lab").join(args.plan.name());
    if dir.exists() {
        std::fs::remove_dir_all(&dir).map_err(at(&dir))?;
    }
    std::fs::create_dir_all(&dir).map_err(at(&dir))?;
    prepare(args, &dir)?;
    println!(
        "lab: {} in Bochs; console, results and logs are in {}",
        args.plan.machine().kvm,
        dir.display()
    );
    let limits = Limits {
        silence: Duration::from_secs(args.silence),
        total: Duration::from_secs(args.limit),
    };
    let outcome = watch::follow(&dir, limits)?;
    write_report(&outcome, &target, args.plan)?;
    let counts = write_counts(&outcome, &dir);
    if !outcome.failed.is_empty() {
        let failed = outcome.failed.iter().map(|(step, how)| format!("{step} ({how})"));
        return Err(LabError::Steps(failed.collect::<Vec<_>>().join(", ")));
    }
    counts
}

/// Builds the CD and the configuration in `dir`.
fn prepare(args: &RunArgs, dir: &Path) -> Result<(), LabError> {
    let (plan, machine) = (args.plan, args.plan.machine());
    let kernel = artifacts::host_kernel()?;
    println!("lab: building the programs");
    let programs = artifacts::programs()?;
    let mut contents = plan.contents(&programs)?;
    let job = dir.join("job.json");
    let text = serde_json::to_vec_pretty(&plan.job(args.test.as_deref()));
    let text = text.map_err(|source| LabError::Json { path: job.clone(), source })?;
    std::fs::write(&job, text).map_err(at(&job))?;
    contents.push(("job.json", job));
    let initramfs = dir.join("initrd");
    image::initramfs(&contents, &initramfs)?;
    image::iso(dir, &kernel, &initramfs, &machine.cmdline())?;
    let bochsrc = dir.join("bochsrc");
    std::fs::write(&bochsrc, machine.bochsrc(Path::new("debugger.txt"))).map_err(at(bochsrc))?;
    let rc = dir.join("rc");
    match &args.debugger {
        Some(commands) => std::fs::copy(commands, &rc).map(drop).map_err(at(commands)),
        None => std::fs::write(&rc, "c\n").map_err(at(&rc)),
    }
}

/// Keeps the tests' records where `lab places` finds them; those of the stock kernel are no place of
/// their own.
fn write_report(outcome: &Outcome, target: &Path, plan: Plan) -> Result<(), LabError> {
    let dir = target.join("tests");
    std::fs::create_dir_all(&dir).map_err(at(&dir))?;
    let path = dir.join(format!("lab-{}.jsonl", plan.name()));
    let mut text = String::new();
    for test in &outcome.tests {
        let line = serde_json::to_string(test);
        text += &line.map_err(|source| LabError::Json { path: path.clone(), source })?;
        text.push('\n');
    }
    std::fs::write(&path, text).map_err(at(path))
}

/// Keeps the first counts; they must equal the second.
fn write_counts(outcome: &Outcome, dir: &Path) -> Result<(), LabError> {
    let mut texts = outcome.files.iter().filter(|(_, name, _)| name == COUNTS_FILE);
    let Some((_, _, first)) = texts.next() else { return Ok(()) };
    let path = dir.join(COUNTS_FILE);
    std::fs::write(&path, first).map_err(at(&path))?;
    for (step, _, text) in texts {
        if text != first {
            let other = dir.join("counts-again.json");
            std::fs::write(&other, text).map_err(at(&other))?;
            let both = format!("{} and {} ({step})", path.display(), other.display());
            return Err(LabError::Counts(both));
        }
        println!("lab: the counts are the same twice: {}", path.display());
    }
    Ok(())
}
