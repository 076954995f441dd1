//! Latency of requests with a thousand probes, and the service's cost beside its guest.

use std::time::Instant;

use exoprobe_tests::{Service, TestGuest, http, kernel_symbols};
use serde_json::json;

use crate::figure::figure;

const PROBES: usize = 1000;
const ROUNDS: usize = 5;
const GUEST_KIB: u64 = 32 << 10;

/// Definitions of a thousand functions that the engine takes.
fn definitions(service: &Service) -> Vec<serde_json::Value> {
    let symbols = kernel_symbols();
    let mut names: Vec<String> = symbols
        .iter()
        .filter(|s| symbols.lookup_function(s.name).is_ok())
        .map(|s| s.name.to_owned())
        .collect();
    names.sort();
    names.dedup();
    let mut taken = Vec::new();
    for name in names {
        let one = json!({ "event": format!("e{}", taken.len()), "symbol_name": name });
        if post(service, &one.to_string()) == 201 {
            taken.push(one);
        }
        if taken.len() == PROBES {
            break;
        }
    }
    assert_eq!(taken.len(), PROBES);
    assert_eq!(http::ask(service.socket(), "DELETE", "/v1/probes", &[], b"").status, 204);
    taken
}

fn post(service: &Service, body: &str) -> u16 {
    let kind = ["content-type: application/json"];
    http::ask(service.socket(), "POST", "/v1/probes", &kind, body.as_bytes()).status
}

/// Resident KiB of all mappings but the guest's RAM, and how much of that the process has written:
/// other pages are those of its file, which are shared, and dropped where memory is short.
fn resident(pid: u32) -> (u64, u64) {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("Linux has smaps");
    let field = |line: &str, name: &str| -> Option<u64> {
        line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse().ok()
    };
    let (mut size, mut all, mut written) = (0, 0, 0);
    for line in smaps.lines() {
        size = field(line, "Size:").unwrap_or(size);
        if size >= GUEST_KIB {
            continue;
        }
        all += field(line, "Rss:").unwrap_or(0);
        written += field(line, "Private_Dirty:").unwrap_or(0);
    }
    (all, written)
}

pub(crate) fn run() {
    let snapshot = TestGuest::snapshot(1);
    let service = Service::start(&["--restore", snapshot.to_str().expect("a path in UTF-8")]);
    let (all, written) = resident(service.pid());
    let mib = |kib: u64| format!("{}.{} MiB", kib >> 10, ((kib & 1023) * 10) >> 10);
    figure("memory beyond the guest's RAM, written by the process", &mib(written), "<= 5 MiB");
    figure("  with pages of the program's file", &mib(all), "");
    let batch = serde_json::Value::from(definitions(&service)).to_string();
    let (mut register, mut list) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        assert_eq!(post(&service, &batch), 201);
        register = register.min(begun.elapsed().as_secs_f64() * 1e3);
        let begun = Instant::now();
        assert_eq!(http::ask(service.socket(), "GET", "/v1/probes", &[], b"").status, 200);
        list = list.min(begun.elapsed().as_secs_f64() * 1e3);
        assert_eq!(http::ask(service.socket(), "DELETE", "/v1/probes", &[], b"").status, 204);
    }
    figure("registering 1,000 probes in one POST", &format!("{register:.1} ms"), "< 1 s");
    figure("the list of 1,000 probes", &format!("{list:.1} ms"), "< 50 ms");
}
