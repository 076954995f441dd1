//! The HTTP service against a real guest.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

use exoprobe_tests::harness::Case;
use exoprobe_tests::http::{self, Answer};
use exoprobe_tests::{PATIENCE, Service, TestGuest, cases};
use serde_json::{Value, json};

pub(crate) const CASES: &[Case] = cases![
    the_main_job(vcpus),
    events_resume_by_sequence_as_lines_and_as_server_sent_events,
    bad_requests_are_problems_and_change_nothing,
    a_client_that_stops_reading_its_events_slows_nobody,
    two_hundred_clients_at_once,
    the_vm_by_http needs [Kvm, Smp],
];

const JSON: &str = "content-type: application/json";
const TEXT: &str = "content-type: text/plain";

fn service(vcpus: u8) -> Service {
    let snapshot = TestGuest::snapshot(vcpus);
    Service::start(&["--restore", snapshot.to_str().unwrap()])
}

fn get(service: &Service, path: &str) -> Answer {
    http::ask(service.socket(), "GET", path, &[], b"")
}

fn post(service: &Service, path: &str, kind: &str, body: &str) -> Answer {
    http::ask(service.socket(), "POST", path, &[kind], body.as_bytes())
}

fn work(service: &Service, command: &str) {
    let answer = service.work(command);
    assert!(answer.starts_with("done "), "{answer}");
}

/// A problem document (RFC 9457) of this status and code.
fn assert_problem(answer: &Answer, status: u16, code: &str) -> Value {
    assert_eq!(answer.status, status, "{answer:?}");
    assert!(answer.head.contains("application/problem+json"), "{answer:?}");
    let problem = answer.json();
    assert_eq!(problem["code"], code, "{problem}");
    assert_eq!(problem["status"], status);
    assert!(problem["detail"].as_str().is_some_and(|d| !d.is_empty()), "{problem}");
    problem
}

fn the_main_job(vcpus: u8) {
    let service = service(vcpus);
    let mode = std::fs::metadata(service.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let made = post(&service, "/v1/probes", TEXT, "p:getpid __x64_sys_getpid");
    assert_eq!(made.status, 201, "{made:?}");
    work(&service, "getpid 1000");
    let probe = get(&service, "/v1/probes/getpid").json();
    for (field, value) in [
        ("kind", json!("k")),
        ("symbol_name", json!("__x64_sys_getpid")),
        ("offset", json!(0)),
        ("flags", json!([])),
        ("hits", json!(1000)),
        ("nmissed", json!(0)),
    ] {
        assert_eq!(probe[field], value, "{field} in {probe}");
    }
    let addr = probe["addr"].as_str().unwrap().strip_prefix("0x").unwrap().to_owned();
    let list = get(&service, "/v1/kprobes/list").body;
    assert_eq!(list, format!("{addr}  k  __x64_sys_getpid+0x0    \n"));

    let patch = http::ask(
        service.socket(),
        "PATCH",
        "/v1/probes/kprobes/getpid",
        &[JSON],
        b"{\"enabled\": false}",
    );
    assert_eq!(patch.json()["flags"], json!(["DISABLED"]));
    work(&service, "getpid 1000");
    assert_eq!(get(&service, "/v1/probes/getpid").json()["hits"], 1000);
    let list = get(&service, "/v1/kprobes/list").body;
    assert_eq!(list, format!("{addr}  k  __x64_sys_getpid+0x0    [DISABLED]\n"));

    let gone = http::ask(service.socket(), "DELETE", "/v1/probes/getpid", &[], b"");
    assert_eq!(gone.status, 204);
    work(&service, "getpid 10");
    assert_eq!(get(&service, "/v1/probes").json(), json!([]));
    assert_problem(&get(&service, "/v1/probes/getpid"), 404, "ENOENT");
}

fn events_resume_by_sequence_as_lines_and_as_server_sent_events() {
    let service = service(1);
    let body = r#"{"event": "w", "symbol_name": "ksys_write", "args": ["fd=%di", "len=%dx"]}"#;
    assert_eq!(post(&service, "/v1/probes", JSON, body).status, 201);
    let seconds = || get(&service, "/v1/vm").json()["seconds"].as_f64().unwrap();
    let mut last = seconds();
    work(&service, "write 30");
    let end = seconds();
    let lines = get(&service, "/v1/events?from=1&limit=10").body;
    let events: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(events.len(), 10);
    for (index, event) in (1..).zip(&events) {
        assert_eq!(event["seq"], index);
        assert_eq!(event["event"], "w");
        assert_eq!(event["args"]["len"], "0x1");
        let time = event["time"].as_f64().unwrap();
        assert!(last <= time && time <= end, "guest seconds, in order: {event}");
        last = time;
    }
    let rest = get(&service, "/v1/events?from=11&limit=5").body;
    assert!(rest.starts_with("{\"seq\":11,"), "{rest}");

    // A stream that resumes behind number 12, as a browser's EventSource does.
    let mut stream = http::connect(service.socket());
    let headers = ["accept: text/event-stream", "last-event-id: 12"];
    stream.write_all(&http::request("GET", "/v1/events?follow=true", &headers, b"")).unwrap();
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while text.matches("event:").count() < 5 {
        let len = stream.read(&mut buffer).unwrap();
        assert_ne!(len, 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..len]));
    }
    let first = text.lines().find_map(|l| l.strip_prefix("id:")).unwrap().trim();
    assert_eq!(first, "13", "{text}");
}

fn bad_requests_are_problems_and_change_nothing() {
    let service = service(1);
    assert_eq!(post(&service, "/v1/probes", TEXT, "p:kept __x64_sys_getpid").status, 201);
    let cases = [
        (JSON, r#"{"event": "#, 400, "EINVAL"),
        (JSON, r#"{"symbol_name": "vfs_read", "colour": "red"}"#, 400, "EINVAL"),
        (JSON, r#"{"symbol_name": 5}"#, 400, "EINVAL"),
        (JSON, r#"{"symbol_name": "vfs_read", "addr": "0xffffffff81000000"}"#, 422, "EINVAL"),
        (JSON, r#"{"symbol_name": "vfs_reed"}"#, 404, "ENOENT"),
        (JSON, r#"{"addr": "0x1234"}"#, 422, "EINVAL"),
        (JSON, r#"{"symbol_name": "__x64_sys_getpid", "offset": 2}"#, 422, "EILSEQ"),
        (JSON, r#"{"event": "kept", "symbol_name": "vfs_read"}"#, 409, "EEXIST"),
        (TEXT, "p:a vfs_read %zz", 422, "EINVAL"),
        (TEXT, "r:a vfs_read", 422, "EINVAL"),
    ];
    for (kind, body, status, code) in cases {
        let problem = assert_problem(&post(&service, "/v1/probes", kind, body), status, code);
        match code {
            "ENOENT" => {
                assert!(problem.to_string().contains("vfs_read"), "near matches: {problem}")
            }
            "EILSEQ" => assert!(problem.to_string().contains("xor"), "the instruction: {problem}"),
            _ => {}
        }
    }
    let caret = post(&service, "/v1/probes", TEXT, "p:a vfs_read %zz").json();
    assert_eq!((&caret["position"], &caret["id"]), (&json!(13), &json!("BAD_REG_NAME")));
    let batch = r#"[{"symbol_name": "vfs_read"}, {"symbol_name": "nothing_here"}]"#;
    let problem = assert_problem(&post(&service, "/v1/probes", JSON, batch), 404, "ENOENT");
    assert_eq!(problem["index"], 1);
    let large = vec![b'x'; 10 << 20];
    let answer = http::ask(service.socket(), "POST", "/v1/probes", &[JSON], &large);
    assert_problem(&answer, 413, "EMSGSIZE");
    assert_eq!(get(&service, "/v1/nothing").status, 404);
    assert_eq!(http::ask(service.socket(), "PUT", "/v1/vm", &[], b"").status, 405);
    assert_eq!(post(&service, "/v1/probes", "content-type: image/png", "x").status, 415);
    work(&service, "getpid 10");
    let list = get(&service, "/v1/probes").json();
    assert_eq!((list.as_array().unwrap().len(), &list[0]["hits"]), (1, &json!(10)));
}

fn a_client_that_stops_reading_its_events_slows_nobody() {
    let service = service(1);
    assert_eq!(post(&service, "/v1/probes", TEXT, "p:getpid __x64_sys_getpid").status, 201);
    let mut lazy = http::connect(service.socket());
    lazy.write_all(&http::request("GET", "/v1/events?follow=true", &[], b"")).unwrap();
    work(&service, "getpid 5000");
    work(&service, "getpid 5000");
    assert_eq!(get(&service, "/v1/probes/getpid").json()["hits"], 10_000);
    let page = get(&service, "/v1/events?from=9999&limit=10").body;
    assert_eq!(page.lines().count(), 2, "others read all: {page}");
    // What the lazy one reads late is whole as well: the store still has it.
    let mut start = [0; 64];
    lazy.read_exact(&mut start).unwrap();
    assert!(start.starts_with(b"HTTP/1.0 200") || start.starts_with(b"HTTP/1.1 200"));
}

fn two_hundred_clients_at_once() {
    let service = service(1);
    assert_eq!(post(&service, "/v1/probes", TEXT, "p:getpid __x64_sys_getpid").status, 201);
    let mut waiting: Vec<_> = (0..200)
        .map(|n| {
            let mut stream = http::connect(service.socket());
            let path = if n % 2 == 0 { "/v1/probes" } else { "/v1/events?follow=true" };
            stream.write_all(&http::request("GET", path, &[], b"")).unwrap();
            stream
        })
        .collect();
    work(&service, "getpid 100");
    for (n, stream) in waiting.drain(..).enumerate() {
        if n % 2 == 0 {
            assert_eq!(Answer::read(stream).status, 200);
        } else {
            let mut stream = stream;
            let (mut text, mut buffer) = (String::new(), [0; 8192]);
            while !text.contains("\"seq\":100,") {
                let len = stream.read(&mut buffer).unwrap();
                assert_ne!(len, 0, "client {n}: {text}");
                text.push_str(&String::from_utf8_lossy(&buffer[..len]));
            }
        }
    }
    assert_eq!(get(&service, "/v1/probes/getpid").json()["hits"], 100);
}

fn the_vm_by_http() {
    let service = service(2);
    let vm = get(&service, "/v1/vm").json();
    assert_eq!((&vm["state"], &vm["vcpus"]), (&json!("running"), &json!(2)));
    let paused = http::ask(service.socket(), "POST", "/v1/vm/pause", &[], b"").json();
    assert_eq!(paused["state"], "paused");
    let regs = get(&service, "/v1/vm/registers/1").json();
    assert!(regs["regs"]["rip"].as_str().unwrap().starts_with("0x"), "{regs}");
    assert_problem(&get(&service, "/v1/vm/registers/7"), 404, "ENOENT");
    assert_eq!(
        http::ask(service.socket(), "POST", "/v1/vm/resume", &[], b"").json()["state"],
        "running"
    );
    work(&service, "par 2 getpid 50");

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("snapshot");
    let body = json!({ "path": file }).to_string();
    assert_eq!(post(&service, "/v1/probes", TEXT, "p:getpid __x64_sys_getpid").status, 201);
    assert_problem(&post(&service, "/v1/vm/snapshot", JSON, &body), 409, "EBUSY");
    assert_eq!(http::ask(service.socket(), "DELETE", "/v1/probes", &[], b"").status, 204);
    assert_eq!(post(&service, "/v1/vm/snapshot", JSON, &body).status, 200);
    let twin = Service::start(&["--restore", file.to_str().unwrap()]);
    work(&twin, "getpid 5");

    drop(post(&service, "/v1/vm/serial/1", TEXT, "panic\n"));
    let deadline = std::time::Instant::now() + PATIENCE;
    let mut vm = get(&service, "/v1/vm").json();
    while vm["state"] != "stopped" && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(50));
        vm = get(&service, "/v1/vm").json();
    }
    assert_eq!(vm["stopped"]["reason"], "panic", "{vm}");
    assert!(vm["stopped"]["regs"]["rip"].as_str().unwrap().starts_with("0xffffffff"), "{vm}");
    let pause = http::ask(service.socket(), "POST", "/v1/vm/pause", &[], b"");
    assert_problem(&pause, 409, "ESHUTDOWN");
    let console = get(&service, "/v1/vm/serial/0").body;
    assert!(
        console.contains("Kernel panic - not syncing"),
        "the service keeps its data: {console}"
    );
}
