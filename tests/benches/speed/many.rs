//! Thousands of probes at once: registered, armed, optimized, listed, hit, disabled and removed.

use std::collections::BTreeMap;
use std::time::Instant;

use exoprobe_probes::{Batch, NewProbe, ProbeDefinition, ProbeStatus, Selection, StopStatistics};
use exoprobe_tests::{TestGuest, definition};

use crate::figure::{figure, milliseconds};
use crate::functions::{Functions, optimize};

const SIZES: [usize; 2] = [1000, 10_000];
/// The function whose probe is hit, alone and among the others.
const HIT: &str = "__x64_sys_getpid";
const EVENT: &str = "hit";
const CALLS: u64 = 2000;
const ROUNDS: usize = 10;

/// Measures and prints.
pub(crate) fn run() {
    for size in SIZES {
        measure(size);
    }
}

/// The first functions of all that the engine takes, and before them the one that is hit. Prints
/// how long the check of all takes.
fn definitions(guest: &TestGuest, count: usize) -> Vec<ProbeDefinition> {
    let all = timed(guest, "a pattern of all functions written out", "", || Functions::of(guest));
    let name = format!("{} functions checked by a dry run", all.count());
    let rehearsal = timed(guest, &name, "", || all.rehearse(guest));
    let mut rules = BTreeMap::<&str, usize>::new();
    for refused in &rehearsal.refused {
        *rules.entry(refused.error.rule()).or_default() += 1;
    }
    rules.iter().for_each(|(rule, count)| figure(&format!("  {rule}"), &count.to_string(), ""));
    // Its code is the longest: a record with four registers.
    let mut taken = vec![definition(&format!("p:kprobes/{EVENT} {HIT} %di %si %dx %cx"))];
    let is_other = |probe: &ProbeStatus| probe.symbol_name.as_deref() != Some(HIT);
    taken.extend(all.accepted(&rehearsal, is_other).take(count - 1));
    taken
}

/// Prints how long `act` takes, and its stops.
fn timed<T>(guest: &TestGuest, name: &str, asked: &str, act: impl FnOnce() -> T) -> T {
    let stops = || guest.engine.stop_statistics();
    let before = stops();
    let begun = Instant::now();
    let done = act();
    let took = begun.elapsed();
    let StopStatistics { stops, longest, .. } = stops();
    figure(name, &milliseconds(took), asked);
    let rest = format!("{} / {}", stops - before.stops, milliseconds(longest));
    figure("  stops / longest of all so far", &rest, "");
    done
}

fn measure(size: usize) {
    let guest = TestGuest::restored(1);
    let definitions = definitions(&guest, size);
    let found = definitions.len();
    guest.engine.register(definitions[..1].to_vec()).expect("taken");
    let alone = hit_cost(&guest);
    guest.engine.unregister(Selection::all()).expect("it is there");
    let probes: Vec<NewProbe> = definitions.into_iter().map(NewProbe::from).collect();
    let of = |what: &str| format!("{found} probes: {what}");
    let engine = &guest.engine;
    timed(&guest, &of("armed"), "< 1 s", || engine.register(Batch::from(probes)).expect("taken"));
    timed(&guest, &of("listed, all int3s"), "< 100 ms", || engine.list().len());
    timed(&guest, &of("patrol, all int3s"), "", || engine.patrol());
    timed(&guest, &of("optimized"), "one stop", || optimize(&guest));
    let list = timed(&guest, &of("listed"), "< 100 ms", || engine.list());
    let mut reasons = std::collections::BTreeMap::<String, usize>::new();
    for probe in &list {
        let why = probe.unoptimized_reason.as_deref().unwrap_or(if probe.optimized {
            "optimized"
        } else {
            "?"
        });
        *reasons.entry(why.split(':').next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    for (why, count) in reasons {
        figure(&format!("  {why}"), &count.to_string(), "");
    }
    timed(&guest, &of("patrol"), "", || engine.patrol());
    timed(&guest, &of("a drain of nothing"), "", || engine.drain());
    let among = hit_cost(&guest);
    figure("a hit of a probe that is alone, optimized", &microseconds(alone), "");
    figure(&of("a hit of one of them, optimized"), &microseconds(among), "");
    figure("  of one that is alone", &format!("{:.2}", among / alone), "1");
    timed(&guest, &of("disabled"), "one stop", || {
        engine.set_enabled(Selection::all(), false).expect("they are there");
    });
    timed(&guest, &of("enabled"), "one stop", || {
        engine.set_enabled(Selection::all(), true).expect("they are there");
    });
    timed(&guest, &of("removed"), "one stop", || {
        engine.unregister(Selection::all()).expect("they are there");
    });
    guest.assert_unharmed();
}

/// Seconds that a hit takes: a call of the probed function beside one while that probe alone is
/// disabled, for a call runs into the others' probes, too.
fn hit_cost(guest: &TestGuest) -> f64 {
    let calls = || {
        let begun = Instant::now();
        assert_eq!(guest.work(&format!("getpid {CALLS}")), CALLS);
        begun.elapsed().as_secs_f64()
    };
    let enable = |is_enabled| {
        let hit = Selection::event("kprobes", EVENT);
        guest.engine.set_enabled(hit, is_enabled).expect("it is there");
    };
    let (mut with, mut without) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        enable(false);
        without = without.min(calls());
        enable(true);
        guest.optimize(EVENT);
        with = with.min(calls());
    }
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    let hits = CALLS as f64;
    (with - without) / hits
}

fn microseconds(seconds: f64) -> String {
    format!("{:.2} us", seconds * 1e6)
}
