//! Probes by command line: bare symbols, filters, patterns, and flags for actions.

use exoprobe_tests::harness::Case;
use exoprobe_tests::{Service, cases};
use serde_json::Value;

pub(crate) const CASES: &[Case] = cases![
    a_line_means_the_same_as_its_json needs [Kvm, Repeat],
    a_pattern_is_a_probe_for_each_function,
    flags_are_actions needs [Kvm, Repeat],
];

fn probe(service: &Service, name: &str) -> Value {
    serde_json::from_str(&service.ok(&["--json", "probe", "show", name])).expect("a probe")
}

fn refused(service: &Service, args: &[&str]) -> String {
    let output = service.client(&[&["probe", "add"], args].concat());
    assert!(!output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stderr).expect("text")
}

fn a_line_means_the_same_as_its_json() {
    let service = Service::restored(1);
    let lines = ["__x64_sys_getpid", r#"p:mine __x64_sys_getpid+1 if comm == "init""#];
    let _ = service.ok(&[&["probe", "add"], &lines[..]].concat());
    let _ = service.ok(&["probe", "add", r#"p:other __x64_sys_getpid if comm != "init""#]);
    assert_eq!(service.work("getpid 7"), "done getpid 7\n");
    let list: Vec<Value> =
        serde_json::from_str(&service.ok(&["--json", "probe", "list"])).expect("a list");
    let books: Vec<_> = list.iter().map(|p| (&p["hits"], &p["recorded"], &p["filtered"])).collect();
    let [bare, mine, other] = books[..] else { panic!("{books:?}") };
    assert_eq!(bare, (&7.into(), &7.into(), &0.into()));
    assert_eq!(mine, (&7.into(), &7.into(), &0.into()));
    assert_eq!(other, (&7.into(), &0.into(), &7.into()));
    for line in ["p:e __x64_sys_getpid if", "p:e __x64_sys_getpid if pid =="] {
        let error = refused(&service, &[line]);
        assert!(error.contains(line) && error.contains('^'), "{error}");
    }
}

fn a_pattern_is_a_probe_for_each_function() {
    let service = Service::restored(1);
    let lines = service.ok(&["probe", "add", "--dry-run", "__x64_sys_getp*"]);
    let lines: Vec<&str> = lines.lines().collect();
    assert!(lines.contains(&"p __x64_sys_getpid") && lines.len() > 2, "{lines:?}");
    assert_eq!(service.ok(&["--json", "probe", "list"]).trim(), "[]", "a dry run adds none");
    let _ = service.ok(&["probe", "add", "--count", "__x64_sys_getp*"]);
    assert_eq!(service.work("getpid 9"), "done getpid 9\n");
    let list: Vec<Value> =
        serde_json::from_str(&service.ok(&["--json", "probe", "list"])).expect("a list");
    assert_eq!(list.len(), lines.len());
    let of = |name: &str| list.iter().find(|p| p["symbol_name"] == name).expect("a probe");
    assert_eq!(of("__x64_sys_getpid")["hits"], 9);
    assert_eq!(of("__x64_sys_getppid")["hits"], 0);
    for (args, why) in [
        (&["no_such_function_*"][..], "no function matches"),
        (&["p:name vfs_*"], "leave out the event's name"),
        (&["--max", "2", "vfs_*"], "--max allows 2"),
    ] {
        let error = refused(&service, args);
        assert!(error.contains(why), "{args:?}: {error}");
    }
}

fn flags_are_actions() {
    let service = Service::restored(1);
    let _ = service.ok(&["probe", "add", "--count", "--return", "-12", "p:fail do_sys_openat2"]);
    let output = service.client(&["vm", "send", "open", "/init", "1"]);
    assert!(!output.status.success(), "ENOMEM: {output:?}");
    let _ = service.ok(&["probe", "rm", "fail"]);
    assert_eq!(service.work("open /init 2"), "done open 2\n");
    let filter = ["--stack", "--filter", "common_pid == 1", "p:read __x64_sys_getpid"];
    let _ = service.ok(&[&["probe", "add"], &filter[..]].concat());
    assert_eq!(service.work("getpid 3"), "done getpid 3\n");
    assert_eq!(probe(&service, "read")["recorded"], 3);
    let events = service.ok(&["--json", "events", "--probe", "read", "--last", "1"]);
    let event: Value = serde_json::from_str(events.trim()).expect("an event");
    assert!(event["stack"].as_array().is_some_and(|stack| stack.len() > 2), "{event}");
    let error = refused(&service, &["--filter", "common_pid == 1", "p f if common_pid == 2"]);
    assert!(error.contains("two filters") || error.contains("filter"), "{error}");
    let error = refused(&service, &["--count", r#"{"symbol_name": "vfs_read"}"#]);
    assert!(error.contains("JSON"), "{error}");
}
