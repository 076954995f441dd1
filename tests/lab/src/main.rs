//! `lab`: boots a small Linux with KVM in Bochs, and runs the end-to-end tests in it.

mod artifacts;
mod batch;
mod bochs;
mod build;
mod counts;
mod error;
mod image;
mod machine;
mod outcome;
mod places;
mod plan;
mod times;
mod watch;

use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use error::LabError;
use exoprobe_tests::harness::Need;
use plan::{Plan, Run};
use watch::Limits;

#[derive(Parser)]
#[command(
    about = "Runs exoprobe's tests in Bochs, against a real kvm_intel or kvm_amd",
    after_help = "Examples:\n  \
        lab run intel smp stock\n  \
        lab run intel --test hits::\n  \
        lab run intel --machine intel-counts --release\n  \
        lab run kernels --machine kernels-6.12-rt\n  \
        lab run debian\n  \
        lab run disk-speed --release\n  \
        lab places target/tests/host.jsonl target/tests/lab-intel.jsonl"
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
    /// Show where the time of `make test` went: its steps, and the slowest tests of each place
    Times {
        /// The steps, as scripts/timed.sh keeps them
        steps: PathBuf,
        /// Reports, one a place, named after it
        reports: Vec<PathBuf>,
        /// Keep all of it here
        #[arg(long, value_name = "FILE", default_value = "target/tests/times.json")]
        json: PathBuf,
    },
}

#[derive(clap::Args)]
struct RunArgs {
    /// Steps to run
    #[arg(required = true)]
    plans: Vec<Plan>,
    /// Run only this one of the plans' machines, as intel-counts
    #[arg(long, value_name = "NAME", conflicts_with = "test")]
    machine: Option<String>,
    /// How many machines may run side by side [default: one a CPU]
    #[arg(long, value_name = "MACHINES")]
    at_once: Option<NonZero<usize>>,
    /// Run only tests whose names contain this, and no counts
    #[arg(long, value_name = "NAME")]
    test: Option<String>,
    /// Give up after so many seconds without a byte from the lab
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    silence: u64,
    /// Give up after so many seconds for one machine, counted from its power-on
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    limit: u64,
    /// Leave out what `make test` runs on this host: tests with two vCPUs that are run with one
    /// here, and loads of the service; ignored without /dev/kvm
    #[arg(long)]
    once: bool,
    /// Build the programs as users have them, for counts to compare; else as `make test` does
    #[arg(long)]
    release: bool,
    /// How many instructions make a second of the machine's time, for a slower clock
    #[arg(long, value_name = "INSTRUCTIONS", value_parser = clap::value_parser!(u32).range(1_000_000..))]
    ips: Option<u32>,
    /// An environment variable for the tests, as EXOPROBE_STRESS_SECONDS=600
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    env: Vec<(String, String)>,
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
        Command::Times { steps, reports, json } => times::show(&steps, &reports, &json),
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
    let is_stock = |plan: &Plan| {
        matches!(plan, Plan::Stock | Plan::Kernels | Plan::Debian | Plan::DiskSpeed | Plan::Stops)
    };
    if args.plans.iter().any(is_stock) && args.test.is_some() {
        return Err(LabError::StockFilter);
    }
    let runs = args.plans.iter().flat_map(|plan| plan.runs(args.test.as_deref()));
    let runs = runs.filter(|run| args.machine.as_ref().is_none_or(|name| *name == run.name));
    let runs: Vec<Run> = runs
        .map(|run| Run {
            machine: run.machine.at_rate(args.ips),
            job: run.job.with_env(&args.env),
            ..run
        })
        .collect();
    // Elsewhere, or nowhere: then they run here.
    let once = args.once && Need::Kvm.lack().is_none();
    let runs: Vec<Run> = runs.into_iter().map(|run| if once { run.once() } else { run }).collect();
    if runs.is_empty() {
        return Err(LabError::NoMachine(args.machine.clone().unwrap_or_default()));
    }
    let cpus = || std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    let batch = batch::Batch {
        runs,
        at_once: args.at_once.unwrap_or_else(cpus).get(),
        limits: Limits {
            silence: Duration::from_secs(args.silence),
            total: Duration::from_secs(args.limit),
        },
        profile: if args.release { "release" } else { "dev" },
        reports: args.test.is_none() && args.machine.is_none(),
    };
    batch.carry_out()
}
