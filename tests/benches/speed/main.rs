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
