//! `make bench-disk`: the cost of a request to a disk, in exoprobe and in QEMU, with the same
//! guest, the same file and the same kind of host back end. Each number is that of a command of the
//! guest's workload less that of the same command with half the requests, so that its ends cancel
//! out; of several rounds the least counts, so that timer ticks fall out.
//!
//! In Bochs the time-stamp counter goes up by one an instruction, in each of them: guest, KVM,
//! Linux, or VMM. Elsewhere the numbers are times.

mod exoprobe;
mod measure;
mod options;
mod qemu;
mod report;
mod subject;

use std::process::ExitCode;

use clap::Parser;

use options::Options;

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
