//! Scripts in the bpftrace language: records through a script's consumer, and the time from the
//! request to armed probes.

use std::time::Instant;

use exoprobe::DrivenScript;
use exoprobe_tests::{Service, TestGuest, http};
use serde_json::{Value, json};

use crate::figure::{figure, least};

/// Calls whose records fit in the ring together.
const CALLS: u64 = 60_000;
const FILLS: usize = 3;
const ROUNDS: usize = 5;
/// Patterns that some 500 functions of the tiny guest match.
const WILDCARD: &str = "kprobe:__x64_sys_*,kprobe:vfs_*,kprobe:tty_*,kprobe:proc_*";

pub(crate) fn run() {
    consumer();
    let service = Service::restored(1);
    let (first, again) = armed(&service, "kprobe:vfs_read { @[comm] = hist(arg2); }");
    let shown = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
    figure("a script's POST to armed, the first", &shown(first.seconds), "< 200 ms");
    figure("  the next", &shown(again.seconds), "");
    let (first, again) = armed(&service, &format!("{WILDCARD} {{ @[func] = count(); }}"));
    let name = format!("a script of {} functions, POST to armed", first.probes);
    figure(&name, &shown(first.seconds), "< 2 s (500)");
    figure("  the next", &shown(again.seconds), "");
}

/// From the ring, which a guest's calls have filled, to the script's map.
fn consumer() {
    let guest = TestGuest::restored(1);
    let text = "kprobe:__x64_sys_getpid { @[pid] = count(); }";
    let script = DrivenScript::start(&guest.engine, text).expect("it is right");
    guest.wait_until("it is optimized", |guest| {
        guest.engine.optimize();
        guest.engine.list().iter().all(|status| status.optimized)
    });
    let mut filled = 0;
    let seconds = least(FILLS, || {
        assert_eq!(guest.work(&format!("getpid {CALLS}")), CALLS);
        let begun = Instant::now();
        guest.engine.drain();
        let took = begun.elapsed().as_secs_f64();
        filled += CALLS;
        assert_eq!(script.run(), filled, "each call's record was in the ring");
        took
    });
    assert_eq!(script.maps(), json!({ "@": { "1": filled } }));
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    let rate = CALLS as f64 / seconds;
    let name = "records through `@[pid] = count()`, on one core";
    figure(name, &format!("{:.1} M/s", rate * 1e-6), ">= 2 M/s");
}

struct Armed {
    seconds: f64,
    probes: u64,
}

/// The first start of a script, and the quickest of the next ones.
fn armed(service: &Service, text: &str) -> (Armed, Armed) {
    let first = start(service, text);
    let next = (0..ROUNDS).map(|_| start(service, text));
    let next = next.min_by(|one, other| one.seconds.total_cmp(&other.seconds));
    (first, next.expect("several"))
}

fn start(service: &Service, text: &str) -> Armed {
    let body = json!({ "text": text }).to_string();
    let kind = ["content-type: application/json"];
    let ask = |method: &str, path: &str, body: &[u8]| -> Value {
        http::ask(service.socket(), method, path, &kind, body).json()
    };
    let begun = Instant::now();
    let script = ask("POST", "/v1/scripts", body.as_bytes());
    let seconds = begun.elapsed().as_secs_f64();
    assert!(script["id"].is_u64(), "{script}");
    let path = format!("/v1/scripts/{}", script["id"]);
    // Ends it, and forgets it.
    (0..2).for_each(|_| drop(ask("DELETE", &path, b"")));
    Armed { seconds, probes: script["probes"].as_u64().unwrap_or(0) }
}
