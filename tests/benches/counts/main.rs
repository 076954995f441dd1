//! `make counts`: what one hit costs in VM exits and instructions, exactly. Every count is that of
//! a loop with the probe less that of the same loop without, at two lengths of both, so that the
//! ends of the loops cancel out; of several rounds the least counts, of instructions the number
//! that most rounds took (the fewest where they do not agree), so that the host's interrupts fall
//! out and the numbers are the same in each run.

mod bare;
mod crowd;
mod measure;
mod rows;
mod scaling;
mod script;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use exoprobe_tests::counts::Report;
use exoprobe_vmm::{DEFAULT_KVM, Host};

use measure::Plan;

/// Counts VM exits and instructions of one probe hit, for each way of running the displaced
/// instruction.
#[derive(Parser)]
#[command(name = "counts")]
struct Options {
    /// Write the counts to FILE as JSON, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The host's time stamp counter counts executed instructions, host and guest together (Bochs).
    #[arg(long)]
    tsc_counts_instructions: bool,
    /// Do not single-step the guest (kvm_amd inside Bochs).
    #[arg(long)]
    no_single_step: bool,
    /// Leave out the rows that take most of the time: the probe among 10,000 others, and the
    /// guest's own event, which needs the kernel of `make guest-events`.
    #[arg(long)]
    quick: bool,
    /// Hits in each of the shorter rounds; the longer ones have twice as many.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    turns: u32,
    /// Rounds with and without the probe.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Instead: how hits of one probe scale from one vCPU to two.
    #[arg(long)]
    scaling: bool,
    /// `cargo bench` passes it.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    match measure_all(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("counts: {message}");
            ExitCode::FAILURE
        }
    }
}

fn measure_all(options: &Options) -> Result<(), String> {
    if options.scaling {
        scaling::run(if options.tsc_counts_instructions { "instructions" } else { "ticks" });
        return Ok(());
    }
    let host = Host::open(Path::new(DEFAULT_KVM)).map_err(|e| e.to_string())?;
    let report = measure::all(&Plan {
        turns: options.turns,
        rounds: options.rounds,
        tsc_counts_instructions: options.tsc_counts_instructions,
        single_step: !options.no_single_step,
        quick: options.quick,
        software_kvm: host.profile().software.is_some(),
    });
    print!("{}", table::text(&report));
    options.json.as_deref().map_or(Ok(()), |path| write(&report, path))
}

fn write(report: &Report, path: &Path) -> Result<(), String> {
    let mut text = serde_json::to_string_pretty(report).map_err(|e| e.to_string())?;
    text.push('\n');
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}
