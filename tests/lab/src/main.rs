//! `lab`: boots a small Linux with KVM in Bochs, and runs the end-to-end tests in it.

mod artifacts;
mod bochs;
mod counts;
mod error;
mod image;
mod machine;
mod outcome;
mod places;
mod plan;
mod watch;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use error::{LabError, at};
use exoprobe_lab::job::Job;
use outcome::Outcome;
use plan::Plan;
use watch::Limits;

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
    /// An environment variable for the tests, as EXOPROBE_STRESS_SECONDS=600
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    env: Vec<(String, String)>,
    /// Commands for Bochs' debugger, in place of `c` (continue); what it prints goes to debugger.txt
    #[arg(long, value_name = "FILE")]
    debugger: Option<PathBuf>,
}

fn setting(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("give NAME=VALUE")?;
    if name.is_empty() {
        Err("the name is missing")
    } else {
        Ok((name.to_owned(), value.to_owned()))
    }
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
    let plan = args.plan;
    if plan == Plan::Stock && args.test.is_some() {
        return Err(LabError::StockFilter);
    }
    let target = artifacts::root().join("target");
    let dir = target.join("lab").join(plan.name());
    let report = target.join("tests").join(format!("lab-{}.jsonl", plan.name()));
    // What an earlier run left must not pass for this one's.
    for old in [&dir, &report] {
        remove(old)?;
    }
    std::fs::create_dir_all(&dir).map_err(at(&dir))?;
    let job = plan.job(args.test.as_deref()).with_env(&args.env);
    prepare(args, &job, &dir)?;
    let kvm = plan.machine().kvm;
    println!("lab: {kvm} in Bochs; console, results and logs are in {}", dir.display());
    let limits = Limits {
        silence: Duration::from_secs(args.silence),
        total: Duration::from_secs(args.limit),
    };
    let (outcome, ended) = watch::follow(&dir, limits, || bochs::Bochs::start(&dir))?;
    if args.test.is_none() {
        write_report(&outcome, &report)?;
    }
    ended?;
    outcome.judge(&job, |test, reason| plan.may_skip(test, reason))?;
    counts::check(plan, &job, &outcome.files, &dir)
}

fn remove(path: &Path) -> Result<(), LabError> {
    let removed =
        if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

/// Builds the CD and the configuration in `dir`.
fn prepare(args: &RunArgs, job: &Job, dir: &Path) -> Result<(), LabError> {
    let (plan, machine) = (args.plan, args.plan.machine());
    let kernel = artifacts::host_kernel()?;
    println!("lab: building the programs");
    let programs = artifacts::programs()?;
    let mut contents = plan.contents(&programs)?;
    let file = dir.join("job.json");
    let text = serde_json::to_vec_pretty(job);
    let text = text.map_err(|source| LabError::Json { path: file.clone(), source })?;
    std::fs::write(&file, text).map_err(at(&file))?;
    contents.push(("job.json", file));
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

/// Keeps the tests' records where `lab places` finds them.
fn write_report(outcome: &Outcome, path: &Path) -> Result<(), LabError> {
    let dir = path.parent().unwrap_or(path);
    std::fs::create_dir_all(dir).map_err(at(dir))?;
    let mut text = String::new();
    for test in &outcome.tests {
        let line = serde_json::to_string(test);
        text += &line.map_err(|source| LabError::Json { path: path.to_owned(), source })?;
        text.push('\n');
    }
    std::fs::write(path, text).map_err(at(path))
}
