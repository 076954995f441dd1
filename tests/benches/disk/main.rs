//! `make bench-disk`: the cost of a request to a disk, in exoprobe and in QEMU, with the same
//! guest, the same file and the same kind of host back end. Each number is that of a command of the
//! guest's workload less that of the same command with half the requests, so that its ends cancel
//! out; of several rounds the least counts, so that timer ticks fall out.
//!
//! In Bochs the time-stamp counter goes up by one an instruction, whoever runs it: guest, KVM,
//! Linux, or VMM. Elsewhere the numbers are times.

mod exoprobe;
mod measure;
mod qemu;
mod report;
mod subject;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Compares the cost of requests to a disk in exoprobe and in QEMU.
#[derive(Parser)]
#[command(name = "disk")]
struct Options {
    /// The folder of QEMU, as scripts/qemu.sh prints it.
    #[arg(long, value_name = "FOLDER")]
    qemu: PathBuf,
    /// Write the report to FILE as JSON, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// QEMU's CPU model.
    #[arg(long, value_name = "MODEL", default_value = "host")]
    cpu: String,
    /// Requests in each of the shorter rounds; the longer ones have twice as many.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=100))]
    requests: u64,
    /// Rounds of each length.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// `cargo bench` passes it.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("disk: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Measures all twice, and fails if the two differ.
fn run(options: &Options) -> Result<(), String> {
    let [first, again] = [1, 2].map(|pass| {
        eprintln!("pass {pass} of 2");
        measure::all(options)
    });
    print!("{first}");
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&first).map_err(|error| error.to_string())?;
        std::fs::write(path, text + "\n")
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    first.compare(&again)
}
