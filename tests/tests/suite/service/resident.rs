//! The service's use of host memory, in bytes (docs/limits.md).

use std::time::{Duration, Instant};

use exoprobe_tests::harness::Case;
use exoprobe_tests::http;
use exoprobe_tests::{PATIENCE, Service, TestGuest, cases};
use serde_json::{Value, json};

use crate::support::tracer::getpid_in_steps;

pub(crate) const CASES: &[Case] = cases![
    return_probes_cost_by_their_calls_and_not_by_maxactive needs [Kvm, Repeat],
    events_cost_their_budget_and_answers_are_streamed needs [Kvm, Repeat],
    probes_beyond_the_operators_limit_are_refused_with_the_figure needs [Kvm, Repeat],
    memory_that_was_freed_goes_back_to_the_host needs [Repeat],
    maps_of_a_script_cost_their_budget needs [Kvm, Repeat],
    optimized_probes_cost_their_hidden_memory needs [Kvm, Repeat],
    a_snapshot_of_the_tracer_costs_the_events_budget_once_more needs [Kvm, Repeat],
];

const PROBES: usize = 1000;
/// The largest that there is.
const MAXACTIVE: u32 = 4096;
/// Most that so many may cost, in KiB, as docs/limits.md says. With all instances made beforehand
/// it was 1,356,040.
const MOST_KIB: u64 = 32 << 10;

fn return_probes_cost_by_their_calls_and_not_by_maxactive() {
    let service = Service::restored(1);
    let definitions: Vec<Value> = (0..PROBES)
        .map(|index| {
            json!({"kind": "r", "event": format!("r{index}"), "symbol_name": "__x64_sys_getpid",
                "maxactive": MAXACTIVE, "flags": ["DISABLED"]})
        })
        .collect();
    let body = Value::from(definitions).to_string();
    let ask = |method, body: &str| {
        let kind = ["content-type: application/json"];
        http::ask(service.socket(), method, "/v1/probes", &kind, body.as_bytes()).status
    };
    let before = service.resident_kib();
    assert_eq!(ask("POST", &body), 201);
    let with = service.resident_kib();
    assert_eq!(ask("DELETE", ""), 204);
    let after = service.resident_kib();
    eprintln!(
        "resident: {before} KiB, {with} KiB with {PROBES} return probes, {after} KiB without"
    );
    assert!(with.saturating_sub(before) <= MOST_KIB, "{before} KiB, then {with} KiB");
    assert!(after.saturating_sub(before) <= MOST_KIB, "{before} KiB, then {after} KiB");
}

/// Budget of the events, in MiB.
const EVENTS_MIB: u64 = 8;
/// Hits, each with 3 KiB of values: three times the budget.
const HITS: u64 = 8000;
/// Most that the service may take for events above their budget, in KiB; and for an answer, as
/// docs/limits.md says.
const MOST_ABOVE_KIB: u64 = 12 << 10;

fn events_cost_their_budget_and_answers_are_streamed() {
    let snapshot = TestGuest::snapshot(1);
    let budget = EVENTS_MIB.to_string();
    let service =
        Service::start(&["--restore", snapshot.to_str().unwrap(), "--events-memory", &budget]);
    let arrays = (0..6).map(|index| format!("a{index}=@__x64_sys_getpid:x64[64]"));
    let line = format!("p:large __x64_sys_getpid {}", arrays.collect::<Vec<_>>().join(" "));
    drop(service.ok(&["probe", "add", &line]));
    drop(service.work("getpid 10"));
    let before = service.resident_kib();
    getpid_in_steps(&service, 10, HITS);
    let ask = |path| http::ask(service.socket(), "GET", path, &[], b"");
    let oldest = ask("/v1/events?from=1&limit=1").body;
    let oldest: Value = serde_json::from_str(oldest.lines().next().unwrap()).unwrap();
    assert!(oldest["lost"].as_u64().unwrap() > HITS / 2, "{oldest}");
    let with = service.peak_kib();
    for path in ["/v1/events?limit=10000", "/v1/tracefs/trace"] {
        service.reset_peak();
        let (answer, start) = (ask(path), service.resident_kib());
        let peak = service.peak_kib();
        let (lines, len) = (answer.body.lines().count(), answer.body.len() >> 10);
        eprintln!("resident: {path} of {lines} lines, {len} KiB: {start} KiB, at most {peak} KiB");
        assert!(lines > 500 && len as u64 > MOST_ABOVE_KIB, "{lines} lines, {len} KiB");
        assert!(peak.saturating_sub(with) <= MOST_ABOVE_KIB, "{with} KiB, then {peak} KiB");
    }
    eprintln!("resident: {before} KiB, {with} KiB with {EVENTS_MIB} MiB of events");
    let most = (EVENTS_MIB << 10) + MOST_ABOVE_KIB;
    assert!(with.saturating_sub(before) <= most, "{before} KiB, then {with} KiB");
}

/// A service's memory once it is at most so much; else that after [`PATIENCE`]. A burst of hits is
/// in memory twice while it is drained, and the C library keeps that for some seconds.
fn settled(kib: impl Fn() -> u64, most: u64) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = kib();
        if now <= most || Instant::now() >= deadline {
            return now;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn probes_beyond_the_operators_limit_are_refused_with_the_figure() {
    let snapshot = TestGuest::snapshot(1);
    let service = Service::start(&["--restore", snapshot.to_str().unwrap(), "--memory-limit", "2"]);
    let add = |line: &str| {
        let kind = ["content-type: text/plain"];
        http::ask(service.socket(), "POST", "/v1/probes", &kind, line.as_bytes())
    };
    let large = "r4096:large __x64_sys_getpid";
    assert_eq!(add(large).status, 201);
    let refused = add("r4096:more __x64_sys_getpid");
    let problem = refused.json();
    let detail = problem["detail"].as_str().unwrap();
    assert_eq!((refused.status, &problem["code"]), (507, &json!("ENOMEM")), "{problem}");
    assert!(detail.contains("of the 2 MiB for all (--memory-limit)"), "{detail}");
    assert_eq!(add("p:small __x64_sys_getpid").status, 201, "there is room for it");
    drop(service.ok(&["probe", "rm", "large"]));
    assert_eq!(add(large).status, 201, "and again");
}

/// Probes that are registered and removed.
const MANY: usize = 20_000;

fn memory_that_was_freed_goes_back_to_the_host() {
    let service = Service::restored(1);
    // Hidden memory that a detour was in stays with the guest.
    drop(service.ok(&["probe", "optimization", "off"]));
    let line = |index| format!("p:e{index} __x64_sys_getpid %di a=%si b=%dx\n");
    let lines: String = (0..MANY).map(line).collect();
    let kind = ["content-type: text/plain"];
    let ask = |method, body: &str| {
        http::ask(service.socket(), method, "/v1/probes", &kind, body.as_bytes()).status
    };
    let before = service.resident_kib();
    assert_eq!(ask("POST", &lines), 201);
    let with = service.resident_kib();
    assert!(with > before + (32 << 10), "{before} KiB, {with} KiB: too little to see it go");
    assert_eq!(ask("DELETE", ""), 204);
    let most = before + (with - before) / 2;
    let after = settled(|| service.resident_kib(), most);
    eprintln!("resident: {before} KiB, {with} KiB with {MANY} probes, {after} KiB after");
    assert!(after <= most, "{before} KiB, {with} KiB with probes, {after} KiB after");
}

/// Budget of a script's maps, in KiB.
const MAPS_KIB: u64 = 32 << 10;
/// Most that a script whose maps are full may cost, in KiB, as docs/limits.md says.
const MOST_SCRIPT_KIB: u64 = MAPS_KIB + (16 << 10);

/// Maps of all kinds, of the entries that cost most for what is counted.
const FULL_MAPS: [&str; 7] = [
    "@[$i] = $i;",
    "@[$i] = count();",
    "@[$i] = stats($i);",
    "@[$i] = hist($i * $i);",
    "@[$i] = lhist($i, 0, 1000, 10);",
    "@[$i, $i, $i] = ($i, $i, ($i, $i));",
    "@[str($1, 8), $i] = \"a text of some length, in each value of the map\";",
];

fn maps_of_a_script_cost_their_budget() {
    let service = Service::restored(1);
    for entry in FULL_MAPS {
        let text = format!("BEGIN {{ $i = 0; while ($i < 70000) {{ {entry} $i++; }} }}");
        let body = json!({"text": text, "params": ["argument"]}).to_string();
        let ask = |method, path: &str, body: &str| {
            let kind = ["content-type: application/json"];
            http::ask(service.socket(), method, path, &kind, body.as_bytes())
        };
        let before = service.resident_kib();
        let started = ask("POST", "/v1/scripts", &body);
        assert_eq!(started.status, 201, "{entry}: {started:?}");
        let id = started.json()["id"].clone();
        let path = format!("/v1/scripts/{id}");
        let deadline = Instant::now() + PATIENCE;
        let ended = loop {
            let script = ask("GET", &path, "").json();
            let warnings = script["warnings"].as_array().map_or(0, Vec::len);
            if warnings > 0 || script["state"] == "ended" {
                break script;
            }
            assert!(Instant::now() < deadline, "{entry}: {script}");
            std::thread::sleep(Duration::from_millis(20));
        };
        let with = service.resident_kib();
        eprintln!("resident: {entry}: {before} KiB, {with} KiB; {ended}");
        assert!(with.saturating_sub(before) <= MOST_SCRIPT_KIB, "{entry}: {before}, then {with}");
        assert_eq!(ask("DELETE", &path, "").status, 200, "{entry}");
    }
}

/// Most that 9,000 probes of two arguments may cost as they are optimized, in KiB, as
/// docs/limits.md says: their own need (42 MiB), hidden memory and rings (28 MiB), and the
/// knowledge of the kernel's jumps.
const MOST_OPTIMIZED_KIB: u64 = 86 << 10;
const MANY_OPTIMIZED: usize = 9000;

fn optimized_probes_cost_their_hidden_memory() {
    let service = Service::restored(1);
    // Without the guest's RAM: all of it is looked through.
    let own_kib = || service.kib("RssAnon");
    let before = own_kib();
    let ask = |method, path: &str, kind: &str, body: &str| {
        http::ask(service.socket(), method, path, &[kind], body.as_bytes())
    };
    let text = "content-type: text/plain";
    let added = ask("POST", "/v1/probes", text, "p:many/* *_* a=%di b=%si");
    assert_eq!(added.status, 201, "{}", added.body.chars().take(300).collect::<String>());
    let deadline = Instant::now() + PATIENCE;
    let count = loop {
        let body = ask("GET", "/v1/probes", text, "").body;
        let optimized = body.matches("OPTIMIZED").count();
        if optimized > MANY_OPTIMIZED {
            break optimized;
        }
        assert!(Instant::now() < deadline, "{optimized} are optimized");
        std::thread::sleep(Duration::from_millis(200));
    };
    let with = own_kib();
    eprintln!("resident: {before} KiB, {with} KiB with {count} optimized probes");
    assert!(with.saturating_sub(before) <= MOST_OPTIMIZED_KIB, "{before} KiB, then {with} KiB");
}

/// Most that the service may take above both budgets, in KiB, as docs/limits.md says.
const MOST_ABOVE_SNAPSHOT_KIB: u64 = 20 << 10;

fn a_snapshot_of_the_tracer_costs_the_events_budget_once_more() {
    let snapshot = TestGuest::snapshot(1);
    let budget = EVENTS_MIB.to_string();
    let service =
        Service::start(&["--restore", snapshot.to_str().unwrap(), "--events-memory", &budget]);
    // A search of the guest's RAM for jmps would touch its pages.
    drop(service.ok(&["probe", "optimization", "off"]));
    let line = "p:large __x64_sys_getpid a=@__x64_sys_getpid:x64[64]";
    drop(service.ok(&["probe", "add", line]));
    let before = service.resident_kib();
    for round in 0..3 {
        assert!(service.work(&format!("getpid {HITS}")).contains("done getpid"));
        let kind = ["content-type: text/plain"];
        let taken = http::ask(service.socket(), "PUT", "/v1/tracefs/snapshot", &kind, b"1");
        assert!(taken.status < 300, "{taken:?}");
        let most = before + 2 * (EVENTS_MIB << 10) + MOST_ABOVE_SNAPSHOT_KIB;
        let with = settled(|| service.resident_kib(), most);
        eprintln!("resident: {before} KiB, {with} KiB after snapshot {round} of the tracer's");
        assert!(with <= most, "{before} KiB, then {with} KiB");
    }
}
