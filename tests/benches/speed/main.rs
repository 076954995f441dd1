//! `make bench`: the figures of docs/benchmarks.md. Ratios are taken in one run, rounds of the two
//! sides alternating; the least of each side counts, because the machine is shared.

mod consumer;
mod detour;
mod hit;
mod machine;
mod own_event;
mod service;
mod symbols;

/// Prints one figure beside what is asked of it.
fn figure(name: &str, value: &str, asked: &str) {
    println!("{name:<58} {value:>14}   {asked}");
}

/// The least of so many measurements.
fn least(rounds: usize, measure: impl FnMut() -> f64) -> f64 {
    std::iter::repeat_with(measure).take(rounds).fold(f64::INFINITY, f64::min)
}

fn main() {
    let _snapshots = exoprobe_tests::SnapshotCleanup;
    println!("{:<58} {:>14}   asked", "figure", "measured");
    detour::run();
    consumer::run();
    hit::run();
    own_event::run();
    machine::run();
    service::run();
    symbols::run();
}
