//! Commands: those of scripts' `system()`, which `exoprobe trace` runs, and the guest's (`-c`).

use std::process::Output;
use std::time::{Duration, Instant};

use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, Running, Service, cases, exoprobe, http};
use serde_json::{Value, json};

pub(crate) const CASES: &[Case] = cases![
    commands_run_where_the_script_is_traced needs [Kvm, Shell],
    commands_are_lists_for_other_clients needs [Kvm, Repeat],
    a_guest_that_stops_ends_the_script_that_waits_for_its_workload needs [Kvm, Repeat],
];

const CALLS: u64 = 20;

fn trace(service: &Service, args: &[&str]) -> Output {
    service.client(&[&["trace", "-q"], args].concat())
}

/// The output, without the empty lines that bpftrace ends with.
fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    str::from_utf8(&output.stdout).unwrap().trim_end_matches('\n').to_owned()
}

fn commands_run_where_the_script_is_traced() {
    let service = Service::restored(1);
    let script = "BEGIN { printf(\"one\\n\"); system(\"echo two %d; echo three\", 2); printf(\"fo\"); \
                  system(\"printf ur\"); printf(\"\\n\"); exit(); } END { system(\"echo five >&2; echo end\"); }";
    let ran = trace(&service, &["--unsafe", "-e", script]);
    assert_eq!(text(&ran), "one\ntwo 2\nthree\nfour\nend");
    assert_eq!(String::from_utf8_lossy(&ran.stderr), "five\n");
    let ran = trace(&service, &["--unsafe", "-f", "json", "-e", script]);
    let lines = text(&ran);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_shell = json!({"type": "syscall", "data": "two 2\nthree\n"});
    assert_eq!(lines[1], of_shell, "{lines:?}");

    // Each hit's, in the order of the hits and of what they print.
    let hits = "kprobe:__x64_sys_getpid { @n++; printf(\"hit %d\\n\", @n); system(\"echo ran %d\", @n); } \
                END { clear(@n); }";
    let ran = trace(&service, &["--unsafe", "-c", &format!("getpid {CALLS}"), "-e", hits]);
    let expected: String = (1..=CALLS).map(|n| format!("hit {n}\nran {n}\n")).collect();
    assert_eq!(text(&ran), expected.trim_end());

    // A guest's text has no control sequences where a command writes it, and none of it is run
    // unless the script asks for it.
    let escapes = "BEGIN { system(\"printf '\\\\033[2J'\"); exit(); }";
    let ran = text(&trace(&service, &["--unsafe", "-e", escapes]));
    assert_eq!(ran, "\\u{1b}[2J");
    let refused = trace(&service, &["-e", script]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && error.contains("`system()` is unsafe"), "{error}");
    let failed = trace(&service, &["--unsafe", "-e", "BEGIN { system(\"exit 3\"); exit(); }"]);
    assert_eq!(text(&failed), "");
}

/// The service runs none: its threads may start no program.
fn commands_are_lists_for_other_clients() {
    let service = Service::restored(1);
    let ask = |method, path: &str, body: &str| {
        let kind = ["content-type: application/json"];
        http::ask(service.socket(), method, path, &kind, body.as_bytes())
    };
    let text =
        "BEGIN { printf(\"12345\"); system(\"touch /tmp/no\"); printf(\"6\"); system(\"b\"); }";
    let started = ask("POST", "/v1/scripts", &json!({"text": text, "unsafe": true}).to_string());
    assert_eq!(started.status, 201, "{started:?}");
    let commands = |query: &str| ask("GET", &format!("/v1/scripts/1/commands{query}"), "").json();
    let output = ask("GET", "/v1/scripts/1/output", "").body;
    let begun = output.find("12345").unwrap() as u64;
    let second = json!({"at": begun + 6, "text": "b"});
    let first = json!({"at": begun + 5, "text": "touch /tmp/no"});
    assert_eq!(commands(""), json!({"first": 0, "commands": [first, second]}));
    assert_eq!(commands("?from=1"), json!({"first": 1, "commands": [second]}));
    assert_eq!(commands("?from=7"), json!({"first": 7, "commands": []}));
    // The oldest go, and the reader sees it.
    let text = "BEGIN { $i = 0; while ($i < 5000) { system(\"%d\", $i); $i++; } }";
    let started = ask("POST", "/v1/scripts", &json!({"text": text, "unsafe": true}).to_string());
    assert_eq!(started.status, 201, "{started:?}");
    let kept = ask("GET", "/v1/scripts/2/commands", "").json();
    let (first, count) = (kept["first"].as_u64(), kept["commands"].as_array().unwrap().len());
    assert_eq!(first.map(|first| first + count as u64), Some(5000));
    assert_eq!(
        kept["commands"][0]["text"].as_str().map(str::to_owned),
        first.map(|n| n.to_string())
    );
    assert!(count > 3000, "{count}");
    let absent = ask("GET", "/v1/scripts/9/commands", "");
    assert_eq!(absent.status, 404, "{absent:?}");
}

fn a_guest_that_stops_ends_the_script_that_waits_for_its_workload() {
    let service = Service::restored(1);
    let scripts = || http::ask(service.socket(), "GET", "/v1/scripts", &[], b"").json();
    let script = "kprobe:hrtimer_nanosleep { @n++; } END { printf(\"at the end\\n\"); }";
    let mut command = exoprobe();
    command.arg("--socket").arg(service.socket()).args(["trace", "-c", "sleep 3000000", "-e"]);
    let waiting = Running::spawn(command.arg(script));
    let deadline = Instant::now() + PATIENCE;
    // The workload has begun to sleep.
    while scripts()[0]["run"].as_u64().is_none_or(|run| run == 0) {
        assert!(Instant::now() < deadline, "{waiting}");
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = service.ok(&["vm", "shutdown"]);
    let ran = waiting.finish(PATIENCE);
    let (said, error) = [&ran.stdout, &ran.stderr].map(|text| String::from_utf8_lossy(text)).into();
    assert!(!ran.status.success() && error.contains("the guest has stopped ("), "{ran:?}");
    assert!(said.contains("at the end\n"), "{ran:?}");
    assert_eq!(scripts(), json!([]), "none is left");
}
