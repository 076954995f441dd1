//! `make hostile`: attacks on services, by clients, guests, other users and killed processes,
//! bounded in time and number. Each attack has a service of its own, over the tiny
//! guest's snapshot. Prints a table, and fails if an attack found a fault.

mod attack;
mod connections;
mod kernel;
mod lengths;
mod lifetimes;
mod load;
mod names;
mod parts;
mod registrations;
mod scripts;
mod snapshots;
mod storm;
mod users;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::{Table, presets};
use exoprobe_tests::{TestKernel, harness::Need, take_snapshot};

use attack::{Attack, Ground, Tally};

/// Attacks services for some time, and reports what was found.
#[derive(Parser)]
#[command(name = "hostile")]
struct Options {
    /// Time for all attacks together.
    #[arg(long, value_name = "N", default_value = "600")]
    seconds: u64,
    /// A snapshot of the tiny guest at its prompt; without it a guest is booted first.
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
    /// Seed of all choices: the same one makes the same.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Only attacks with this in their name.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

/// All attacks, and their shares of the time.
const ATTACKS: [Attack; 15] = [
    Attack { name: "silent and slow connections", share: 3, run: connections::silent },
    Attack { name: "large and broken requests", share: 2, run: connections::broken },
    Attack { name: "wrong tokens", share: 1, run: connections::tokens },
    Attack { name: "registrations under load", share: 4, run: registrations::churn },
    Attack { name: "reboots, snapshots, pauses", share: 4, run: storm::storm },
    Attack { name: "scripts without end", share: 3, run: scripts::hostile },
    Attack { name: "hostile snapshots", share: 4, run: snapshots::hostile },
    Attack { name: "files that are no snapshots", share: 1, run: snapshots::no_files },
    Attack { name: "hostile names", share: 1, run: names::hostile },
    Attack { name: "a hostile kernel", share: 4, run: kernel::hostile },
    Attack { name: "texts of a guest's choice", share: 2, run: lengths::hostile },
    Attack { name: "another user", share: 1, run: users::hostile },
    Attack { name: "a dead standard error", share: 2, run: lifetimes::dead_standard_error },
    Attack { name: "killed and started again", share: 2, run: lifetimes::killed },
    Attack { name: "ended with many return probes", share: 2, run: lifetimes::many_returns },
];

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(lack) = Need::Kvm.lack() {
        println!("hostile: skipped: {lack:?}");
        return ExitCode::SUCCESS;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let snapshot = options.snapshot.clone().unwrap_or_else(|| booted(folder.path()));
    let seed = options.seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("hostile: {} s, --seed {seed}", options.seconds);
    let chosen: Vec<&Attack> =
        ATTACKS.iter().filter(|attack| attack.name.contains(&options.only)).collect();
    let shares: u32 = chosen.iter().map(|attack| attack.share).sum();
    let share = Duration::from_secs(options.seconds) / shares.max(1);
    let tallies: Vec<(&str, Tally)> = (0..)
        .zip(chosen)
        .map(|(at, attack)| {
            let ground =
                Ground::new(&snapshot, folder.path(), attack.share * share, seed.wrapping_add(at));
            let begun = Instant::now();
            let tally = attack.carry_out(ground);
            println!("hostile: {}: {:.0} s", attack.name, begun.elapsed().as_secs_f64());
            (attack.name, tally)
        })
        .collect();
    report(&tallies)
}

/// The snapshot of a guest that is booted for it.
fn booted(folder: &Path) -> PathBuf {
    let path = folder.join("snapshot");
    println!("hostile: booting the tiny guest");
    take_snapshot(&TestKernel::Tiny.config(1), &path);
    path
}

fn report(tallies: &[(&str, Tally)]) -> ExitCode {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["ATTACK", "TIMES", "FINDINGS"]);
    for (name, tally) in tallies {
        let numbers = [tally.times.to_string(), tally.findings.len().to_string()];
        table.add_row(std::iter::once((*name).to_owned()).chain(numbers));
    }
    println!("{table}");
    for (name, tally) in tallies {
        tally.findings.iter().for_each(|finding| println!("FINDING: {name}: {finding}"));
    }
    let is_good = tallies.iter().all(|(_, tally)| tally.findings.is_empty());
    if is_good && !tallies.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
