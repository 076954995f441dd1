//! Trace instances: events of their own, of the same probes.

use std::io::BufRead;
use std::sync::Arc;
use std::time::Duration;

use exoprobe_tests::harness::Case;
use exoprobe_tests::{Service, TestGuest, cases};
use exoprobe_tracer::Tracer;

use crate::support::tracer::{Mount, append, ask, cat, events, pipe, refused, work};

pub(crate) const CASES: &[Case] = cases![
    each_instance_has_the_events_that_are_enabled_in_it needs [Kvm, Repeat],
    an_instance_has_the_files_that_are_about_its_events needs [Kvm, Repeat],
    what_is_written_to_an_instance_is_of_it_alone needs [Kvm, Repeat],
    an_instance_has_memory_of_its_own needs [Kvm, Repeat],
    what_is_no_instance_is_refused_as_the_kernel_does needs [Kvm, Repeat],
    counts_are_exact_also_of_optimized_probes needs [Kvm, QuickKernel],
    users_texts_choose_in_each_place_for_itself needs [Kvm, QuickKernel],
    users_texts_choose_while_an_instance_comes_and_goes needs [Kvm, Repeat],
    changes_during_hits_leave_no_event_at_the_top needs [Kvm, Repeat],
    instances_outlast_a_reboot needs [Kvm, QuickKernel],
    an_instance_that_is_read_is_not_removed needs [Kvm, Repeat],
    the_command_line_makes_reads_and_removes_them needs [Kvm, Repeat],
    instances_are_made_and_removed_in_a_mount needs [Kvm, Fuse],
];

const GETPID: &str = "__x64_sys_getpid";
const OPEN: &str = "do_sys_openat2";

/// `mkdir path`: the errno, or nothing.
fn make(service: &Service, path: &str) -> Option<String> {
    outcome(service, "PUT", path)
}

/// `rmdir path`
fn remove(service: &Service, path: &str) -> Option<String> {
    outcome(service, "DELETE", path)
}

fn outcome(service: &Service, method: &str, path: &str) -> Option<String> {
    let answer = ask(service, method, path, "");
    (answer.status != 204).then(|| answer.json()["code"].as_str().unwrap().to_owned())
}

fn names(service: &Service, folder: &str) -> Vec<String> {
    let listed = ask(service, "GET", folder, "").json();
    let entries = listed["entries"].as_array().unwrap_or_else(|| panic!("{folder}: {listed}"));
    let mut names: Vec<String> =
        entries.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// Number of events of `a` and `b` in a trace.
fn shown(service: &Service, trace: &str) -> (usize, usize) {
    let text = cat(service, trace);
    let of = |name: &str| events(&text).iter().filter(|line| line.contains(name)).count();
    (of(": a: ("), of(": b: ("))
}

fn each_instance_has_the_events_that_are_enabled_in_it() {
    let service = Service::restored(1);
    append(&service, "kprobe_events", &format!("p:a {GETPID} n=\\7\np:b {OPEN}"));
    assert_eq!(make(&service, "instances/foo"), None);
    assert_eq!(make(&service, "instances/bar"), None);
    assert_eq!(names(&service, "instances"), ["bar", "foo"]);
    append(&service, "instances/foo/events/kprobes/a/enable", "1");
    append(&service, "instances/bar/set_event", "kprobes:b");
    let enabled = |of: &str| {
        let of_a = cat(&service, &format!("{of}events/kprobes/a/enable"));
        let of_group = cat(&service, &format!("{of}events/kprobes/enable"));
        (of_a.trim().to_owned() + of_group.trim(), cat(&service, &format!("{of}set_event")))
    };
    assert_eq!(enabled(""), ("00".to_owned(), String::new()));
    assert_eq!(enabled("instances/foo/"), ("1X".to_owned(), "kprobes:a\n".to_owned()));
    assert_eq!(enabled("instances/bar/"), ("0X".to_owned(), "kprobes:b\n".to_owned()));
    let all =
        || ["trace", "instances/foo/trace", "instances/bar/trace"].map(|t| shown(&service, t));
    work(&service, "getpid 3");
    work(&service, "open /dev/null 2");
    assert_eq!(all(), [(0, 0), (3, 0), (0, 2)]);
    append(&service, "events/enable", "1");
    append(&service, "instances/foo/events/kprobes/a/filter", "n == 8");
    work(&service, "getpid 4");
    assert_eq!(all(), [(4, 0), (3, 0), (0, 2)], "its filter is its own");
    append(&service, "events/kprobes/a/filter", "n == 8");
    append(&service, "instances/foo/events/kprobes/filter", "n == 7");
    work(&service, "getpid 5");
    assert_eq!(all(), [(4, 0), (8, 0), (0, 2)], "and so is the top's");
    assert_eq!(cat(&service, "instances/foo/events/kprobes/a/filter"), "n == 7\n");
    assert_eq!(cat(&service, "events/kprobes/a/filter"), "n == 8\n");
    // Deletion, and removal.
    append(&service, "events/enable", "0");
    assert_eq!(refused(&service, "kprobe_events", "-:a"), "EBUSY");
    assert_eq!(ask(&service, "PUT", "kprobe_events", "").json()["code"], "EBUSY");
    assert_eq!(remove(&service, "instances/foo"), None);
    assert_eq!(names(&service, "instances"), ["bar"]);
    append(&service, "kprobe_events", "-:a");
    assert_eq!(ask(&service, "GET", "instances/foo/trace", "").status, 404);
    work(&service, "open /dev/null 1");
    assert_eq!(shown(&service, "instances/bar/trace"), (0, 3));
    assert_eq!(make(&service, "instances/foo"), None);
    assert_eq!(shown(&service, "instances/foo/trace"), (0, 0), "it begins anew");
    assert_eq!(cat(&service, "instances/foo/events/kprobes/b/enable"), "0\n");
}

fn an_instance_has_the_files_that_are_about_its_events() {
    let service = Service::restored(1);
    append(&service, "kprobe_events", &format!("p:a {GETPID} n=\\7"));
    assert_eq!(make(&service, "instances/foo"), None);
    let files = [
        "available_tracers",
        "buffer_size_kb",
        "buffer_total_size_kb",
        "current_tracer",
        "error_log",
        "events",
        "options",
        "per_cpu",
        "set_event",
        "snapshot",
        "trace",
        "trace_clock",
        "trace_marker",
        "trace_options",
        "trace_pipe",
        "tracing_on",
    ];
    assert_eq!(names(&service, "instances/foo"), files);
    let of_event = ["enable", "filter", "format", "hist", "id", "trigger"];
    assert_eq!(names(&service, "instances/foo/events/kprobes/a"), of_event);
    for file in ["format", "id"] {
        let path = format!("events/kprobes/a/{file}");
        assert_eq!(cat(&service, &format!("instances/foo/{path}")), cat(&service, &path));
    }
    for absent in ["kprobe_events", "instances", "README"] {
        let answer = ask(&service, "GET", &format!("instances/foo/{absent}"), "");
        assert_eq!(answer.json()["code"], "ENOENT", "{absent}");
    }
}

/// A service with an event `a`, which is enabled at the top and in an instance.
fn enabled_in_both() -> Service {
    let service = Service::restored(1);
    append(&service, "kprobe_events", &format!("p:a {GETPID} n=\\7"));
    assert_eq!(make(&service, "instances/foo"), None);
    append(&service, "instances/foo/events/enable", "1");
    append(&service, "events/enable", "1");
    service
}

/// Number of events `a` in the two traces.
fn both_traces(service: &Service) -> [usize; 2] {
    ["trace", "instances/foo/trace"].map(|trace| shown(service, trace).0)
}

fn what_is_written_to_an_instance_is_of_it_alone() {
    let service = enabled_in_both();
    let traces = || both_traces(&service);
    append(&service, "instances/foo/tracing_on", "0");
    work(&service, "getpid 3");
    assert_eq!(traces(), [3, 0]);
    append(&service, "instances/foo/tracing_on", "1");
    append(&service, "tracing_on", "0");
    work(&service, "getpid 2");
    assert_eq!(traces(), [3, 2]);
    append(&service, "instances/foo/trace_marker", "only here");
    assert_eq!(refused(&service, "trace_marker", "x\n"), "EBADF");
    append(&service, "instances/foo/options/context-info", "0");
    let text = cat(&service, "instances/foo/trace");
    assert!(text.ends_with("tracing_mark_write: only here\n"), "{text}");
    assert!(text.starts_with("# tracer: nop\n#\na: ("), "{text}");
    assert!(cat(&service, "trace").contains("] ..... "), "options are its own");
    assert_eq!(
        cat(&service, "instances/foo/per_cpu/cpu0/stats").lines().next(),
        Some("entries: 3")
    );
    append(&service, "instances/foo/trace_options", "context-info");
    append(&service, "instances/foo/snapshot", "1");
    assert_eq!((traces(), shown(&service, "instances/foo/snapshot").0), ([3, 0], 2));
    assert!(cat(&service, "snapshot").contains("no snapshot"));
    // Faults are in its own log.
    let filter = "instances/foo/events/kprobes/a/filter";
    assert_eq!(refused(&service, filter, "z == 1"), "EINVAL");
    assert!(cat(&service, filter).starts_with("z == 1\n"));
    assert_eq!(cat(&service, "instances/foo/error_log").lines().count(), 3);
    assert_eq!(cat(&service, "error_log"), "");
    assert_eq!(cat(&service, "events/kprobes/a/filter"), "none\n");
}

fn an_instance_has_memory_of_its_own() {
    let service = enabled_in_both();
    work(&service, "getpid 3");
    let size = || cat(&service, "instances/foo/buffer_size_kb");
    assert_eq!(size(), "1408\n");
    let of_top = cat(&service, "buffer_size_kb");
    append(&service, "instances/foo/buffer_size_kb", "64");
    assert_eq!((size(), cat(&service, "buffer_size_kb")), ("64\n".to_owned(), of_top));
    let huge = refused(&service, "instances/foo/buffer_size_kb", "99999999999\n");
    assert_eq!((huge.as_str(), size().as_str()), ("ENOMEM", "64\n"));
    work(&service, "getpid 5000");
    let text = cat(&service, "instances/foo/trace");
    let kept = events(&text).len();
    assert!(kept > 0 && kept < 1000, "64 KiB hold fewer: {kept}");
    append(&service, "instances/foo/trace_clock", "local");
    assert_eq!(both_traces(&service), [5003, 0], "the top's stay");
}

fn what_is_no_instance_is_refused_as_the_kernel_does() {
    let service = Service::restored(1);
    append(&service, "kprobe_events", &format!("p:a {GETPID}"));
    assert_eq!(make(&service, "instances/foo"), None);
    let errno = |name: &str| Some(name.to_owned());
    assert_eq!(make(&service, "instances/foo"), errno("EEXIST"));
    let long = format!("instances/{}", "x".repeat(256));
    assert_eq!(make(&service, &long), errno("ENAMETOOLONG"));
    assert_eq!(make(&service, &long[..long.len() - 1]), None);
    for (path, errno) in [
        ("instances/none", "ENOENT"),
        ("instances", "EPERM"),
        ("events", "EPERM"),
        ("events/kprobes/a", "EPERM"),
        ("instances/foo/events", "EPERM"),
        ("instances/foo/trace", "ENOTDIR"),
        ("trace", "ENOTDIR"),
        ("none", "ENOENT"),
    ] {
        assert_eq!(remove(&service, path).as_deref(), Some(errno), "{path}");
    }
    // Elsewhere an empty text empties a file, or is for a folder.
    assert_eq!(make(&service, "events"), errno("EISDIR"));
    assert_eq!(make(&service, "instances/foo/instances/bar"), errno("ENOENT"));
    let mut made = 2;
    let last = loop {
        match make(&service, &format!("instances/n{made}")) {
            None => made += 1,
            Some(errno) => break errno,
        }
    };
    assert_eq!((made, last.as_str()), (64, "ENOMEM"));
    assert_eq!(remove(&service, "instances/n2"), None);
    assert_eq!(make(&service, "instances/a%20b"), None);
    assert!(names(&service, "instances").contains(&"a b".to_owned()));
}

/// Calls of a guest's workload.
const CALLS: u64 = 2000;

/// A guest with events `a` and `b` of getpid, and two instances; at the top `a` has a filter that
/// refuses all hits.
struct Traced {
    guest: TestGuest,
    tracer: Tracer,
}

impl Traced {
    const TRACES: [&str; 3] = ["trace", "instances/foo/trace", "instances/bar/trace"];
    /// Of each trace, the events `a` and `b` of the calls.
    const EXPECTED: [[u64; 2]; 3] = [[0, CALLS], [CALLS, CALLS], [CALLS, 0]];

    fn new(filter_of_bar: &str) -> Self {
        let guest = TestGuest::restored(1);
        let tracer = Tracer::new(Arc::clone(&guest.engine), 1);
        let traced = Self { guest, tracer };
        traced.write("kprobe_events", &format!("p:a {GETPID} n=\\7\nr:b {GETPID}\n"));
        for instance in ["instances/foo", "instances/bar"] {
            traced.tracer.make_folder(instance).unwrap();
        }
        traced.write("events/kprobes/a/filter", "n == 8");
        traced.write("events/kprobes/enable", "1");
        traced.write("instances/foo/events/kprobes/enable", "1");
        traced.write("instances/bar/events/kprobes/a/enable", "1");
        traced.write("instances/bar/events/kprobes/a/filter", filter_of_bar);
        traced
    }

    fn write(&self, path: &str, text: &str) {
        let written = self.tracer.write(path, text);
        written.unwrap_or_else(|error| panic!("{text} > {path}: {error}"));
    }

    /// Counts the events of so many calls.
    fn counts(&self) -> [[u64; 2]; 3] {
        for trace in Self::TRACES {
            self.tracer.truncate(trace).unwrap();
        }
        assert_eq!(self.guest.work(&format!("getpid {CALLS}")), CALLS);
        Self::TRACES.map(|trace| {
            let text = self.tracer.read(trace).unwrap();
            ["a", "b"].map(|event| text.matches(&format!(": {event}: (")).count() as u64)
        })
    }
}

fn counts_are_exact_also_of_optimized_probes() {
    let traced = Traced::new("n == 7 && comm == \"init\"");
    let guest = &traced.guest;
    assert_eq!(traced.counts(), Traced::EXPECTED, "by breakpoints, or in part");
    ["a", "b"].iter().for_each(|event| guest.optimize(event));
    let before = guest.vm.exit_counts().breakpoint;
    assert_eq!(traced.counts(), Traced::EXPECTED, "by a detour");
    assert_eq!(guest.vm.exit_counts().breakpoint, before, "without an exit");
    let status = guest.status("a");
    assert_eq!(status.hits, status.recorded + status.filtered + status.lost, "{status:?}");
    assert_eq!((status.hits, status.lost), (2 * CALLS, 0));
    for instance in ["instances/foo", "instances/bar"] {
        traced.tracer.remove_folder(instance).unwrap();
    }
    traced.write("events/kprobes/a/filter", "0");
    traced.tracer.truncate("trace").unwrap();
    assert_eq!(guest.work(&format!("getpid {CALLS}")), CALLS);
    let text = traced.tracer.read("trace").unwrap();
    assert_eq!(text.matches(": a: (").count() as u64, CALLS);
    drop(traced.tracer);
    traced.guest.assert_unharmed();
}

/// Number of events of `a` and `b` in each trace, of opens of two files; the traces are emptied.
fn opened(guest: &TestGuest, tracer: &Tracer) -> [[usize; 2]; 3] {
    assert_eq!(guest.work("open /dev/null 40"), 40);
    assert_eq!(guest.work("open / 20"), 20);
    Traced::TRACES.map(|trace| {
        let text = tracer.read(trace).unwrap();
        tracer.truncate(trace).unwrap();
        ["a", "b"].map(|event| text.matches(&format!(": {event}: (")).count())
    })
}

fn users_texts_choose_in_each_place_for_itself() {
    let guest = TestGuest::restored(1);
    let tracer = Tracer::new(Arc::clone(&guest.engine), 1);
    let write = |path: &str, text: &str| {
        tracer.write(path, text).unwrap_or_else(|error| panic!("{text} > {path}: {error}"));
    };
    write("kprobe_events", &format!("p:a {OPEN} other=%di name=%si s=+0(%si):ustring\n"));
    write("kprobe_events", &format!("r:b {OPEN} name=$arg2\n"));
    write("events/kprobes/filter", "name.ustring ~ \"/dev/nu*\"");
    write("events/kprobes/enable", "1");
    for instance in ["instances/foo", "instances/bar"] {
        tracer.make_folder(instance).unwrap();
        write(&format!("{instance}/events/kprobes/enable"), "1");
    }
    write("instances/bar/events/kprobes/filter", "name.ustring == \"/\"");
    let condition = "hist:keys=common_pid if name.ustring == \"/\" || name.ustring == \"x\"";
    write("instances/foo/events/kprobes/b/trigger", condition);
    let expected = [[40; 2], [60; 2], [20; 2]];
    assert_eq!(opened(&guest, &tracer), expected, "by breakpoints, or in part");
    ["a", "b"].iter().for_each(|event| guest.optimize(event));
    let before = guest.vm.exit_counts().breakpoint;
    assert_eq!(opened(&guest, &tracer), expected, "by a detour");
    assert_eq!(guest.vm.exit_counts().breakpoint, before, "without an exit");
    let hist = tracer.read("instances/foo/events/kprobes/b/hist").unwrap();
    assert!(hist.contains("    Hits: 40\n"), "{hist}");
    // A text that no filter compared before, beside those that are compared.
    write("instances/bar/events/kprobes/a/filter", "other.ustring == \"/\" || name == 0");
    assert_eq!(opened(&guest, &tracer), [[40; 2], [60; 2], [0, 20]]);
    write("instances/bar/events/kprobes/a/filter", "!(other.ustring == \"/\")");
    ["a", "b"].iter().for_each(|event| guest.optimize(event));
    assert_eq!(opened(&guest, &tracer), [[40; 2], [60; 2], [60, 20]]);
    for instance in ["instances/foo", "instances/bar"] {
        tracer.remove_folder(instance).unwrap();
    }
    let of_top = |guest: &TestGuest| {
        assert_eq!(guest.work("open /dev/null 20"), 20);
        assert_eq!(guest.work("open / 10"), 10);
        let text = tracer.read("trace").unwrap();
        tracer.truncate("trace").unwrap();
        ["a", "b"].map(|event| text.matches(&format!(": {event}: (")).count())
    };
    assert_eq!(of_top(&guest), [20; 2]);
    ["a", "b"].iter().for_each(|event| guest.optimize(event));
    assert_eq!(of_top(&guest), [20; 2]);
    let status = guest.status("a");
    assert_eq!((status.hits, status.lost), (4 * 60 + 60, 0));
    assert_eq!(status.hits, status.recorded + status.filtered, "{status:?}");
    drop(tracer);
    guest.assert_unharmed();
}

const ROUNDS: usize = 4;

/// Enables and disables an instance's events [`ROUNDS`] times while the guest carries out
/// `command`: `change` has the round's number, and whether they are to be enabled. Between two
/// changes, each of which stops the guest, it runs for some time. Returns the number of calls.
fn enable_and_disable(
    guest: &TestGuest,
    command: &str,
    run: Duration,
    change: impl Fn(usize, bool),
) -> u64 {
    guest.work_during(command, ROUNDS, |round| {
        for is_enabled in [true, false] {
            change(round, is_enabled);
            guest.engine.optimize();
            std::thread::sleep(run);
        }
    })
}

fn users_texts_choose_while_an_instance_comes_and_goes() {
    const RUN: Duration = Duration::from_millis(4);
    let guest = TestGuest::restored(1);
    let tracer = Tracer::new(Arc::clone(&guest.engine), 1);
    let write = |path: &str, text: &str| {
        tracer.write(path, text).unwrap_or_else(|error| panic!("{text} > {path}: {error}"));
    };
    write("kprobe_events", &format!("p:a {OPEN} name=%si\nr:b {OPEN} name=$arg2\n"));
    write("events/kprobes/a/filter", "name.ustring == \"/\"");
    write("events/kprobes/b/filter", "name.ustring == \"none\"");
    write("events/kprobes/enable", "1");
    tracer.make_folder("instances/foo").unwrap();
    let calls = enable_and_disable(&guest, "open / 60", RUN, |round, is_enabled| {
        write("instances/foo/events/kprobes/enable", if is_enabled { "1" } else { "0" });
        if is_enabled {
            let name = ["/", "none"][round % 2];
            write("instances/foo/events/kprobes/filter", &format!("name.ustring != \"{name}\""));
        }
    });
    let text = tracer.read("trace").unwrap();
    let counts = ["a", "b"].map(|event| text.matches(&format!(": {event}: (")).count() as u64);
    assert_eq!(counts, [calls, 0]);
    for status in ["a", "b"].map(|event| guest.status(event)) {
        assert_eq!((status.hits, status.lost), (calls, 0));
        assert_eq!(status.hits, status.recorded + status.filtered, "{status:?}");
    }
}

fn changes_during_hits_leave_no_event_at_the_top() {
    const RUN: Duration = Duration::from_millis(2);
    let guest = TestGuest::restored(1);
    let tracer = Tracer::new(Arc::clone(&guest.engine), 1);
    let write = |path: &str, text: &str| {
        tracer.write(path, text).unwrap_or_else(|error| panic!("{text} > {path}: {error}"));
    };
    write("kprobe_events", &format!("p:a {GETPID} n=\\7\np:b {GETPID}\n"));
    write("events/kprobes/a/filter", "n == 8");
    write("events/kprobes/a/enable", "1");
    tracer.make_folder("instances/foo").unwrap();
    let calls = enable_and_disable(&guest, "getpid 8000", RUN, |round, is_enabled| {
        write("instances/foo/events/kprobes/enable", if is_enabled { "1" } else { "0" });
        if is_enabled {
            write("instances/foo/events/kprobes/a/filter", ["0", "n == 7"][round % 2]);
        }
    });
    let written = |trace: &str| {
        let text = tracer.read(trace).unwrap();
        let counts = text.split("entries-written: ").nth(1).and_then(|rest| rest.split(' ').next());
        let written = counts.and_then(|counts| counts.split_once('/')).map(|(_, all)| all);
        written.and_then(|all| all.parse::<u64>().ok()).unwrap_or_else(|| panic!("{text}"))
    };
    let [a, b] = ["a", "b"].map(|event| guest.status(event));
    assert!(a.recorded > 0);
    assert_eq!(written("trace"), 0);
    assert_eq!(written("instances/foo/trace"), a.recorded + b.recorded);
    assert_eq!((a.hits, a.lost, b.lost), (calls, 0, 0));
    for status in [a, b] {
        assert_eq!(status.hits, status.recorded + status.filtered, "{status:?}");
    }
}

fn instances_outlast_a_reboot() {
    let traced = Traced::new("n == 7");
    assert_eq!(traced.counts(), Traced::EXPECTED);
    traced.guest.reboot();
    assert_eq!(traced.counts(), Traced::EXPECTED);
    traced.guest.optimize("a");
    assert_eq!(traced.counts(), Traced::EXPECTED);
}

fn an_instance_that_is_read_is_not_removed() {
    let service = Service::restored(1);
    append(&service, "kprobe_events", &format!("p:a {GETPID}"));
    assert_eq!(make(&service, "instances/foo"), None);
    append(&service, "instances/foo/events/kprobes/a/enable", "1");
    let mut reader = pipe(&service, "instances/foo/trace_pipe");
    work(&service, "getpid 3");
    let mut line = String::new();
    for _ in 0..3 {
        line.clear();
        reader.read_line(&mut line).unwrap();
        assert!(line.contains(": a: ("), "{line}");
    }
    assert_eq!(shown(&service, "instances/foo/trace"), (0, 0), "it was taken");
    assert_eq!(remove(&service, "instances/foo").as_deref(), Some("EBUSY"));
    work(&service, "getpid 1");
    line.clear();
    reader.read_line(&mut line).unwrap();
    assert!(line.contains(": a: ("), "{line}");
    drop(reader);
    assert_eq!(remove(&service, "instances/foo"), None);
    assert_eq!(names(&service, "instances"), [""; 0]);
}

fn the_command_line_makes_reads_and_removes_them() {
    let service = Service::restored(1);
    let _ = service.ok(&["probe", "add", &format!("p:a {GETPID} n=\\7"), &format!("p:g/b {OPEN}")]);
    append(&service, "events/enable", "0");
    let _ = service.ok(&["instance", "add", "foo", "two words"]);
    let _ = service.ok(&["instance", "enable", "foo", "a"]);
    let _ = service.ok(&["instance", "enable", "two words", "kprobes:*", "g/b"]);
    let listed = service.ok(&["instance", "list"]);
    assert_eq!(listed, "NAME       EVENTS\nfoo        kprobes:a\ntwo words  g:b,kprobes:a\n");
    let _ = service.ok(&["instance", "disable", "two words", "kprobes:a"]);
    let listed = service.ok(&["--json", "instance", "list"]);
    let expected =
        r#"[{"name":"foo","events":["kprobes:a"]},{"name":"two words","events":["g:b"]}]"#;
    assert_eq!(listed, format!("{expected}\n"));
    work(&service, "getpid 3");
    work(&service, "open /dev/null 2");
    let count = |args: &[&str]| service.events(args).len();
    let counts = || [&[][..], &["--instance", "foo"], &["--instance", "two words"]].map(count);
    assert_eq!(counts(), [0, 3, 2]);
    assert_eq!(count(&["--instance", "foo", "--last", "2"]), 2);
    let newest = &service.events(&["--instance", "foo", "--last", "1"])[0];
    assert_eq!((&newest["event"], &newest["seq"]), (&"a".into(), &3.into()), "numbers of its own");
    let _ = service.ok(&["events", "clear", "--instance", "foo"]);
    assert_eq!(counts(), [0, 0, 2]);
    for args in [
        &["instance", "rm", "none"][..],
        &["instance", "enable", "none", "a"],
        &["events", "--instance", "none"],
        &["events", "clear", "--instance", "none"],
        &["export", "--format", "chrome", "--instance", "none"],
    ] {
        let refused = service.client(args);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{args:?}: {said}");
        assert!(
            said.ends_with("error: there is no instance `none` (ENOENT)\n"),
            "{args:?}: {said}"
        );
    }
    let there = service.client(&["instance", "add", "foo"]);
    assert!(String::from_utf8_lossy(&there.stderr).contains("EEXIST"), "{there:?}");
    let none = service.client(&["instance", "enable", "foo", "zz"]);
    assert!(String::from_utf8_lossy(&none.stderr).contains("there is no event `zz`"), "{none:?}");
    let _ = service.ok(&["instance", "rm", "foo", "two words"]);
    assert_eq!(service.ok(&["instance", "list", "--json"]), "[]\n");
}

fn instances_are_made_and_removed_in_a_mount() {
    let service = Service::restored(1);
    let mount = Mount::of(&service);
    let run = |script: &str| mount.shell(script);
    let text = run(&format!(
        "set -e; echo 'p:a {GETPID} n=\\7' >> kprobe_events; mkdir instances/foo; \
         echo 'n == 7' > instances/foo/events/kprobes/a/filter; \
         echo 1 > instances/foo/events/kprobes/a/enable; cat instances/foo/set_event; ls instances"
    ));
    assert_eq!(text, "kprobes:a\nfoo\n");
    work(&service, "getpid 3");
    assert_eq!(
        run("grep -c ': a: (' instances/foo/trace trace"),
        "instances/foo/trace:3\ntrace:0\n"
    );
    assert_eq!(run("timeout 10 grep -m 2 -c ': a: (' < instances/foo/trace_pipe"), "2\n");
    for (script, errno) in [
        ("mkdir instances/foo", "File exists"),
        ("mkdir foo", "Operation not permitted"),
        ("mkdir instances/foo/bar", "Operation not permitted"),
        ("rmdir instances/none", "No such file or directory"),
        ("rmdir instances", "Operation not permitted"),
        ("rmdir instances/foo/events", "Operation not permitted"),
        ("rmdir instances/foo/trace", "Not a directory"),
        ("echo '-:a' >> kprobe_events", "Device or resource busy"),
        ("exec 7< instances/foo/trace_pipe; rmdir instances/foo", "Device or resource busy"),
        ("exec 7< instances/foo/trace; rmdir instances/foo", "Device or resource busy"),
    ] {
        let said = run(script);
        assert!(said.contains(errno), "{script}: {said}");
    }
    assert_eq!(run("rmdir instances/foo && ls instances && echo '-:a' >> kprobe_events"), "");
    assert_eq!(run("mkdir instances/foo && rmdir instances/foo && mkdir instances/foo"), "");
}
