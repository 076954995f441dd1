//! What the service costs its host, in bytes of memory (docs/limits.md).

use exoprobe_tests::harness::Case;
use exoprobe_tests::http;
use exoprobe_tests::{Service, cases};
use serde_json::{Value, json};

pub(crate) const CASES: &[Case] = cases![return_probes_cost_by_their_calls_and_not_by_maxactive];

const PROBES: usize = 1000;
/// The largest that there is.
const MAXACTIVE: u32 = 4096;
/// Most that so many may cost, in KiB, as docs/limits.md says. With all instances made beforehand it was 1,356,040.
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
    let before = resident_kib(&service);
    assert_eq!(ask("POST", &body), 201);
    let with = resident_kib(&service);
    assert_eq!(ask("DELETE", ""), 204);
    let after = resident_kib(&service);
    eprintln!(
        "resident: {before} KiB, {with} KiB with {PROBES} return probes, {after} KiB without"
    );
    assert!(with.saturating_sub(before) <= MOST_KIB, "{before} KiB, then {with} KiB");
    assert!(after.saturating_sub(before) <= MOST_KIB, "{before} KiB, then {after} KiB");
}

/// The service's resident memory (`VmRSS` of /proc/PID/status).
fn resident_kib(service: &Service) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse().unwrap()
}
