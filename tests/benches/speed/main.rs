//! `make bench`: the figures of docs/benchmarks.md. Ratios are taken in one run, rounds of the two
//! sides alternating; the least of each side counts, because the machine is shared. Arguments name
//! the parts that are wanted: `make bench BENCH='symbols'`.

mod consumer;
mod detour;
mod figure;
mod functions;
mod hit;
mod idle;
mod large;
mod machine;
mod many;
mod own_event;
mod scripts;
mod service;
mod stops;
mod symbols;
mod tracer;

fn main() {
    let _snapshots = exoprobe_tests::SnapshotCleanup;
    let parts: [(&str, fn()); 13] = [
        ("detour", detour::run),
        ("consumer", consumer::run),
        ("hit", hit::run),
        ("idle", idle::run),
        ("large", large::run),
        ("own_event", own_event::run),
        ("machine", machine::run),
        ("many", many::run),
        ("scripts", scripts::run),
        ("service", service::run),
        ("stops", stops::run),
        ("symbols", symbols::run),
        ("tracer", tracer::run),
    ];
    // Cargo adds options of its own.
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_known = |name: &String| parts.iter().any(|(part, _)| part == name);
    if let Some(unknown) = wanted.iter().find(|name| !is_known(name)) {
        let names: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
        eprintln!("there is no part {unknown}: give some of {}, or none for all", names.join(", "));
        std::process::exit(2);
    }
    println!("{:<58} {:>14}   asked", "figure", "measured");
    for (name, run) in parts {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            run();
        }
    }
}
