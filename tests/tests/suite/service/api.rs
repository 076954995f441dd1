//! The HTTP service against a real guest.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

use exoprobe_tests::harness::Case;
use exoprobe_tests::http::{self, Answer};
use exoprobe_tests::{PATIENCE, Service, cases};
use serde_json::{Value, json};

pub(crate) const CASES: &[Case] = cases![
    the_main_job(vcpus) needs [Kvm, QuickKernel],
    events_resume_by_sequence_as_lines_and_as_server_sent_events needs [Kvm, Repeat],
    bad_requests_are_problems_and_change_nothing needs [Kvm, Repeat],
    return_probes_record_values_callers_and_back_traces(vcpus) needs [Kvm, QuickKernel],
    functions_fail_and_return_as_actions_say needs [Kvm, Repeat],
    values_come_from_memory_and_the_stack_or_are_faults needs [Kvm, Repeat],
    several_are_registered_and_unregistered_at_once needs [Kvm, Repeat],
    the_switch_stops_all_and_leaves_each_as_it_was needs [Kvm, Repeat],
    memory_and_code_are_as_they_are_without_probes needs [Kvm, Repeat],
    the_blacklist_is_the_kernels_file_and_has_reasons needs [Kvm, Repeat],
    a_probe_whose_text_the_guest_rewrites_says_so_by_itself needs [Kvm, Repeat],
    a_client_that_stops_reading_its_events_slows_no_other needs [Kvm, Repeat],
    two_hundred_clients_at_once needs [Kvm, Repeat],
    the_vm_by_http needs [Kvm, Smp],
];

const JSON: &str = "content-type: application/json";
const TEXT: &str = "content-type: text/plain";
const ACCEPT_JSON: &str = "accept: application/json";

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

/// Registers probes, one or an array.
fn probe(service: &Service, definition: &Value) -> Value {
    let made = post(service, "/v1/probes", JSON, &definition.to_string());
    assert_eq!(made.status, 201, "{made:?}");
    made.json()
}

/// All events so far.
fn events(service: &Service) -> Vec<Value> {
    let lines = get(service, "/v1/events?from=1&limit=10000").body;
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Whether a function is in an event's back-trace.
fn has_frame(event: &Value, function: &str) -> bool {
    event["stack"].as_array().unwrap().iter().any(|frame| frame["symbol_name"] == function)
}

/// The workload's answer to a command that must fail.
fn error(service: &Service, command: &str) -> String {
    let timeout = PATIENCE.as_secs().to_string();
    let output = service.client(&["vm", "send", "--timeout", &timeout, command]);
    assert_eq!(output.status.code(), Some(1), "{command}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
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
    let service = Service::restored(vcpus);
    let mode = std::fs::metadata(service.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Else it comes in between, now or later.
    let put = http::ask(service.socket(), "PUT", "/v1/kprobes/optimization", &[TEXT], b"0");
    assert_eq!((put.status, &*put.body), (200, "0\n"));
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
    let service = Service::restored(1);
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

    // A stream that resumes after number 12, as a browser's EventSource does.
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
    let service = Service::restored(1);
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
        (TEXT, "p5:a vfs_read", 422, "EINVAL"),
        (JSON, r#"{"symbol_name": "vfs_read", "actions": ["recrod"]}"#, 400, "EINVAL"),
        (JSON, r#"{"symbol_name": "vfs_read", "args": ["$retval"]}"#, 422, "EINVAL"),
        (JSON, r#"{"kind": "r", "addr": "0xffffffff81000001"}"#, 422, "EINVAL"),
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
    let batch = r#"[{"symbol_name": "vfs_read"}, {"kind": "r", "symbol_name": "nothing_here"}]"#;
    let problem = assert_problem(&post(&service, "/v1/probes", JSON, batch), 404, "ENOENT");
    assert_eq!((&problem["index"], &problem["event"]), (&json!(1), &json!("r_nothing_here_0")));
    let lines = "# of both kinds\np:a vfs_read\nr:b vfs_read+4 $retval\n";
    let problem = assert_problem(&post(&service, "/v1/probes", TEXT, lines), 422, "EINVAL");
    assert_eq!((&problem["index"], &problem["line"]), (&json!(1), &json!(3)));
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

fn return_probes_record_values_callers_and_back_traces(vcpus: u8) {
    let service = Service::restored(vcpus);
    let batch = json!([
        {"event": "in", "symbol_name": "ksys_write", "args": ["len=%dx"]},
        {"kind": "r", "event": "out", "symbol_name": "ksys_write", "args": ["written=$retval"]},
        {"kind": "r", "event": "site", "symbol_name": "__x64_sys_getpid", "args": ["$retval"],
            "return_mode": "site", "maxactive": 3, "actions": ["stack"]},
    ]);
    let made = probe(&service, &batch);
    assert_eq!((&made[1]["kind"], &made[1]["return_mode"]), (&json!("r"), &json!("trampoline")));
    assert_eq!((&made[0]["maxactive"], &made[0]["return_mode"]), (&Value::Null, &Value::Null));
    assert_eq!((&made[1]["maxactive"], &made[2]["maxactive"]), (&json!(10), &json!(3)));
    work(&service, "write 20");
    work(&service, "getpid 50");
    let events = events(&service);
    let of = |name: &str| events.iter().filter(|e| e["event"] == name).collect::<Vec<_>>();
    // The workload writes one byte a time to /dev/null, and its answers to the port.
    assert_eq!(of("in").iter().filter(|e| e["args"]["len"] == "0x1").count(), 20);
    assert_eq!(of("out").iter().filter(|e| e["args"]["written"] == "0x1").count(), 20);
    assert!(of("in").iter().all(|e| e.get("ret_addr").is_none() && e.get("stack").is_none()));
    let returns = of("site");
    assert_eq!(returns.len(), 50);
    for event in returns {
        assert_eq!((&event["args"]["arg1"], &event["offset"]), (&json!("0x1"), &json!(0)));
        let stack = event["stack"].as_array().unwrap();
        assert_eq!(stack[0]["symbol_name"], "__x64_sys_getpid");
        assert_eq!(stack[1]["addr"], event["ret_addr"]);
        assert!(has_frame(event, "do_syscall_64"), "{event}");
    }
    let probe = get(&service, "/v1/probes/site").json();
    for (field, value) in [
        ("hits", json!(50)),
        ("recorded", json!(50)),
        ("nmissed", json!(0)),
        ("active", json!(0)),
        ("return_mode", json!("site")),
        ("actions", json!(["stack"])),
        ("definition", json!("r3:kprobes/site __x64_sys_getpid arg1=$retval")),
    ] {
        assert_eq!(probe[field], value, "{field} in {probe}");
    }
    let list = get(&service, "/v1/kprobes/list").body;
    assert!(list.lines().nth(2).unwrap().contains("  r  __x64_sys_getpid+0x0    "), "{list}");
}

fn functions_fail_and_return_as_actions_say() {
    let service = Service::restored(1);
    let remove = || {
        let gone = http::ask(service.socket(), "DELETE", "/v1/probes", &[], b"");
        assert_eq!(gone.status, 204);
    };
    let counts = |name: &str| {
        let probe = get(&service, &format!("/v1/probes/{name}")).json();
        ["hits", "recorded", "filtered"].map(|field| probe[field].as_u64().unwrap())
    };
    let actions = json!(["record", {"return": "-12"}]);
    probe(&service, &json!({"event": "fail", "symbol_name": "do_sys_openat2", "actions": actions}));
    assert_eq!(error(&service, "open /dev/null 3"), "error open: openat: errno 12 (0 done)\n");
    assert_eq!(counts("fail"), [1, 1, 0]);
    remove();
    work(&service, "open /dev/null 3");

    // The flags of struct open_how, as if the workload had wanted a directory.
    const O_DIRECTORY: u64 = 0o200_000;
    let write = json!({"write_mem": {"to": "+0(%dx)", "size": 8, "value": O_DIRECTORY}});
    let actions = json!(["count", write]);
    probe(&service, &json!({"event": "dir", "symbol_name": "do_sys_openat2", "actions": actions}));
    assert_eq!(error(&service, "open /dev/null 3"), "error open: openat: errno 20 (0 done)\n");
    assert_eq!(counts("dir"), [1, 0, 1]);
    remove();

    let actions = json!(["count", {"set_reg": {"reg": "%ax", "value": -22}}]);
    let answer = json!({"kind": "r", "event": "no", "symbol_name": "__x64_sys_getpid",
        "actions": actions});
    let made = probe(&service, &answer);
    let set = json!({"reg": "ax", "value": "0xffffffffffffffea"});
    assert_eq!(made["actions"], json!(["count", {"set_reg": set}]));
    assert_eq!(error(&service, "getpid 3"), "error getpid: getpid: errno 22 (0 done)\n");
    assert_eq!(counts("no"), [1, 0, 1]);
    remove();
}

fn values_come_from_memory_and_the_stack_or_are_faults() {
    let service = Service::restored(1);
    let entry = json!({"event": "entry", "symbol_name": "__x64_sys_getpid", "actions": ["stack"],
        "args": ["number=+120(%di)", "bad=@0x10", "deep=+8(+0(@0xffff800000000000))",
            "near=-8(+8(%sp))", "top=$stack0", "sp=$stack"]});
    probe(&service, &entry);
    work(&service, "getpid 5");
    let events = events(&service);
    let hits: Vec<_> = events.iter().filter(|event| event["event"] == "entry").collect();
    assert_eq!(hits.len(), 5);
    for event in hits {
        let args = &event["args"];
        assert_eq!(args["number"], "0x27", "pt_regs.orig_ax: {event}");
        assert_eq!((&args["bad"], &args["deep"]), (&json!("(fault)"), &json!("(fault)")));
        assert_eq!(args["top"], event["stack"][1]["addr"], "the return address");
        assert!(has_frame(event, "do_syscall_64"), "{event}");
    }
}

fn several_are_registered_and_unregistered_at_once() {
    let service = Service::restored(1);
    let text = "p:count __x64_sys_getpid\nr:my/ret __x64_sys_getpid\np:left vfs_read";
    let made = post(&service, "/v1/probes", TEXT, text).json();
    work(&service, "getpid 10");
    assert_eq!(get(&service, "/v1/probes/count").json()["hits"], 10);
    assert_eq!(get(&service, "/v1/probes/my/ret").json()["hits"], 10);
    let names = json!(["my/ret", "never_was", "count", "ret", "count"]);
    let gone = post(&service, "/v1/probes/unregister", JSON, &names.to_string());
    assert_eq!(gone.status, 200, "{gone:?}");
    let expected = json!([
        {"name": "my/ret", "addr": made[1]["addr"], "count": 1},
        {"name": "never_was", "addr": null, "count": 0},
        {"name": "count", "addr": made[0]["addr"], "count": 1},
        {"name": "ret", "addr": null, "count": 0},
        {"name": "count", "addr": null, "count": 0},
    ]);
    assert_eq!(gone.json(), expected);
    work(&service, "getpid 10");
    let left = get(&service, "/v1/probes").json();
    assert_eq!((left.as_array().unwrap().len(), &left[0]["event"]), (1, &json!("left")));
}

fn the_switch_stops_all_and_leaves_each_as_it_was() {
    const ENABLED: &str = "/v1/kprobes/enabled";
    let service = Service::restored(1);
    let text = "p:count __x64_sys_getpid\nr:ret __x64_sys_getpid";
    assert_eq!(post(&service, "/v1/probes", TEXT, text).status, 201);
    let hits = || {
        work(&service, "getpid 10");
        let all = get(&service, "/v1/probes").json();
        for probe in all.as_array().unwrap() {
            // The optimizer comes when it comes.
            let flags = probe["flags"].as_array().unwrap().iter();
            assert_eq!(flags.filter(|flag| **flag != "OPTIMIZED").count(), 0, "{probe}");
        }
        [0, 1].map(|index| all[index]["hits"].as_u64().unwrap())
    };
    let put = |headers: &[&str], body: &[u8]| {
        let answer = http::ask(service.socket(), "PUT", ENABLED, headers, body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body
    };
    assert_eq!(hits(), [10, 10]);
    assert_eq!(put(&[TEXT], b"0\n"), "0\n");
    assert_eq!(hits(), [10, 10]);
    assert_eq!(get(&service, ENABLED).body, "0\n");
    assert_eq!(put(&[JSON, ACCEPT_JSON], b"true"), "true");
    assert_eq!(hits(), [20, 20]);
    let shown = http::ask(service.socket(), "GET", ENABLED, &[ACCEPT_JSON], b"");
    assert_eq!(shown.json(), json!(true));
}

fn memory_and_code_are_as_they_are_without_probes() {
    const GETPID: &str = "__x64_sys_getpid";
    let service = Service::restored(1);
    let memory = |at: &str| get(&service, &format!("/v1/memory?at={at}&len=32")).json();
    let code = || get(&service, &format!("/v1/disassembly?at={GETPID}")).json();
    let (bytes, lines) = (memory(GETPID), code());
    probe(&service, &json!({"event": "here", "symbol_name": GETPID}));
    work(&service, "getpid 1");
    assert_eq!(memory(GETPID), bytes, "no int3, and no jmp");
    assert_eq!(memory(bytes["addr"].as_str().unwrap()), bytes);
    let mut probed = code();
    assert_eq!(probed[0]["probes"].take(), json!(["kprobes/here"]));
    probed[0]["probes"] = json!([]);
    assert_eq!(probed, lines);
    assert_eq!(lines[0]["addr"], bytes["addr"]);
    let all: String =
        lines.as_array().unwrap().iter().map(|l| l["bytes"].as_str().unwrap()).collect();
    assert!(all.starts_with(&bytes["bytes"].as_str().unwrap()[..10]), "{all}");
    let text = |line: &Value| line["text"].as_str().unwrap().to_owned();
    assert!(lines.as_array().unwrap().iter().any(|line| text(line).starts_with("ret")), "{lines}");
    assert_problem(&get(&service, "/v1/memory?at=0x10"), 422, "EFAULT");
    assert_problem(&get(&service, "/v1/disassembly?at=0x10"), 422, "EINVAL");
}

fn the_blacklist_is_the_kernels_file_and_has_reasons() {
    const BLACKLIST: &str = "/v1/kprobes/blacklist";
    let service = Service::restored(1);
    let entries = http::ask(service.socket(), "GET", BLACKLIST, &[ACCEPT_JSON], b"").json();
    let entries = entries.as_array().unwrap();
    let line = |entry: &Value| {
        let field = |name: &str| entry[name].as_str().unwrap();
        assert!(!field("reason").is_empty() && field("start") < field("end"), "{entry}");
        format!("{}-{}\t{}\n", field("start"), field("end"), field("symbol"))
    };
    let text = get(&service, BLACKLIST).body;
    // All of this kernel's addresses have 16 digits.
    let (returns, all): (Vec<&Value>, Vec<&Value>) =
        entries.iter().partition(|entry| entry["returns_only"] == true);
    assert!(returns.iter().any(|entry| entry["symbol"] == "(entry text)"), "{returns:?}");
    assert_eq!(text, all.into_iter().map(line).collect::<String>());
    assert!(text.lines().is_sorted(), "by address");
    let entry = |symbol: &str| entries.iter().find(|entry| entry["symbol"] == symbol).unwrap();
    assert!(entry("asm_exc_nmi")["reason"].as_str().unwrap().contains("NMI"));
    let freed = entry("(init text)");
    let body = json!({ "addr": freed["start"] }).to_string();
    let problem = assert_problem(&post(&service, "/v1/probes", JSON, &body), 422, "EOPNOTSUPP");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains(freed["reason"].as_str().unwrap()), "{freed}: {detail}");
}

fn a_probe_whose_text_the_guest_rewrites_says_so_by_itself() {
    let service = Service::restored(1);
    let victim = probe(&service, &json!({"event": "victim", "symbol_name": "__x64_sys_getppid"}));
    let to = format!("@{}", victim["addr"].as_str().unwrap());
    let actions = json!(["count", {"write_mem": {"to": to, "size": 1, "value": "0x90"}}]);
    probe(&service, &json!({"symbol_name": "__x64_sys_getpid", "actions": actions}));
    let flags = || get(&service, "/v1/probes/victim").json()["flags"].take();
    assert!(flags() == json!([]) || flags() == json!(["OPTIMIZED"]));
    work(&service, "getpid 1");
    let deadline = std::time::Instant::now() + PATIENCE;
    while flags() != json!(["CLOBBERED"]) {
        assert!(std::time::Instant::now() < deadline, "the probe was not checked");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn a_client_that_stops_reading_its_events_slows_no_other() {
    let service = Service::restored(1);
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
    let service = Service::restored(1);
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
    let service = Service::restored(2);
    let vm = get(&service, "/v1/vm").json();
    assert_eq!((&vm["state"], &vm["vcpus"]), (&json!("running"), &json!(2)));
    assert_eq!((&vm["held"], &vm["boots"]), (&json!([]), &json!(1)));
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
    let vm = http::ask(service.socket(), "POST", "/v1/vm/reboot", &[], b"").json();
    assert_eq!((&vm["state"], &vm["stopped"]), (&json!("running"), &Value::Null));
    assert_eq!((&vm["held"], &vm["boots"]), (&json!([]), &json!(2)));
}
