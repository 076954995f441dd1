//! The arguments of the bench.

use std::path::PathBuf;

use clap::Parser;

/// Compares the cost of requests to a disk in exoprobe and in QEMU.
#[derive(Parser)]
#[command(name = "disk")]
pub(crate) struct Options {
    /// The folder of QEMU, as scripts/qemu.sh prints it.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) qemu: PathBuf,
    /// Write the report to FILE as JSON, too.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// QEMU's CPU model.
    #[arg(long, value_name = "MODEL", default_value = "host")]
    pub(crate) cpu: String,
    /// Requests in each of the shorter rounds; the longer ones have twice as many.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) requests: u64,
    /// Rounds of each length.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// `cargo bench` passes it.
    #[arg(long, hide = true)]
    pub(crate) bench: bool,
}
