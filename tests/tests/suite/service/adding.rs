//! Probes by command line: bare symbols, filters, patterns, and flags for actions.

use exoprobe_tests::harness::Case;
use exoprobe_tests::{Service, cases};
use serde_json::Value;

pub(crate) const CASES: &[Case] = cases![
    a_line_means_the_same_as_its_json needs [Kvm, Repeat],
    a_pattern_is_a_probe_for_each_function,
    a_group_comes_and_goes_by_its_pattern needs [Kvm, Repeat],
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

fn json(service: &Service, args: &[&str]) -> Value {
    serde_json::from_str(&service.ok(&[&["--json", "probe"], args].concat())).expect("JSON")
}

fn a_pattern_is_a_probe_for_each_function() {
    let service = Service::restored(1);
    let lines = service.ok(&["probe", "add", "--dry-run", "__x64_sys_getp*"]);
    let lines: Vec<&str> = lines.lines().collect();
    let getpid = "p:kprobes/p___x64_sys_getpid_0 __x64_sys_getpid";
    assert!(lines.contains(&getpid) && lines.len() > 2, "{lines:?}");
    assert_eq!(service.ok(&["--json", "probe", "list"]).trim(), "[]", "a dry run adds none");
    let _ = service.ok(&["probe", "add", "--count", "__x64_sys_getp*"]);
    assert_eq!(service.work("getpid 9"), "done getpid 9\n");
    let list = json(&service, &["list"]);
    let list = list.as_array().expect("a list");
    assert_eq!(list.len(), lines.len());
    let of = |name: &str| list.iter().find(|p| p["symbol_name"] == name).expect("a probe");
    assert_eq!(of("__x64_sys_getpid")["hits"], 9);
    assert_eq!(of("__x64_sys_getppid")["hits"], 0);
    for (args, why) in [
        (&["no_such_function_*"][..], "no function matches"),
        (&["p:name vfs_*"], "leave out the event's name"),
        (&["--max", "2", "vfs_*"], "--max allows 2"),
        (&["--all-or-none", "p:boot/* *startup*"], "startup"),
        (&["p:boot/* startup_6*"], "no probe was added: all"),
        (&["p:more/* __x64_sys_getp*", "no_such"], "no_such"),
    ] {
        let error = refused(&service, args);
        assert!(error.contains(why), "{args:?}: {error}");
    }
    assert_eq!(json(&service, &["list"]).as_array().map(Vec::len), Some(lines.len()));
}

fn a_group_comes_and_goes_by_its_pattern() {
    let service = Service::restored(1);
    let pattern = "p:boot/* *startup*";
    let checked = json(&service, &["add", "--dry-run", pattern]);
    let places = |report: &Value, what: &str, key: &str| -> Vec<String> {
        let all = report[what].as_array().expect("a report");
        all.iter().map(|one| one[key].as_str().expect("text").to_owned()).collect()
    };
    assert!(places(&checked, "refused", "place").contains(&"startup_64".to_owned()), "{checked}");
    let rules = places(&checked, "refused", "rule");
    assert!(rules.contains(&"blacklist".to_owned()), "{checked}");
    assert!(checked["probes"].as_array().is_some_and(|probes| !probes.is_empty()), "{checked}");
    assert!(checked["probes"][0]["id"] == 0, "{checked}");
    assert_eq!(json(&service, &["list"]), Value::Array(Vec::new()));
    let output = service.client(&["probe", "add", pattern, "p:vfs/* vfs_*", "p:one getname"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("left out: startup_64: "), "{output:?}");
    let group = |name: &str| {
        let list = json(&service, &["list"]);
        let list = list.as_array().expect("a list").iter();
        list.filter(|probe| probe["group"] == name).cloned().collect::<Vec<_>>()
    };
    assert_eq!(group("boot").len(), checked["probes"].as_array().map_or(0, Vec::len));
    let vfs = group("vfs").len();
    let changed = json(&service, &["disable", "vfs/*", "one"]);
    assert_eq!(changed.as_array().map(Vec::len), Some(vfs + 1));
    assert!(group("vfs").iter().all(|probe| probe["state"] == "disabled"));
    let error = service.client(&["probe", "enable", "vfs/vfs_o*", "none/*"]);
    let told = String::from_utf8_lossy(&error.stderr);
    assert!(!error.status.success() && told.contains("none/*: "), "{error:?}");
    assert_eq!(service.work("open /init 3"), "done open 3\n");
    let open = probe(&service, "vfs/vfs_open");
    assert_eq!((&open["hits"], &open["enabled"]), (&3.into(), &true.into()));
    let _ = service.ok(&["probe", "rm", "vfs/*", "*oot/*"]);
    assert_eq!(json(&service, &["list"]).as_array().map(Vec::len), Some(1));
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
