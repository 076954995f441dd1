//! The tracer's files about the events that are kept: marks among them, options of their lines,
//! those of one vCPU, their memory and their clock.

use std::io::BufRead;

use exoprobe_tests::harness::Case;
use exoprobe_tests::{Service, cases, http};

use crate::support::tracer::{append, ask, cat, events, pipe, refused, replace, statistic, work};

pub(crate) const CASES: &[Case] = cases![
    marks_are_lines_of_the_trace_and_events needs [Kvm, Repeat],
    options_change_lines_and_only_those_served_are_there needs [Kvm, Repeat],
    each_vcpu_has_a_trace_of_its_own needs [Kvm, Smp, TwoVcpus],
    the_memory_for_events_is_shown_and_set needs [Kvm, Repeat],
];

const GETPID: &str = "__x64_sys_getpid";
/// Calls on each vCPU.
const CALLS: usize = 40;

fn marks_are_lines_of_the_trace_and_events() {
    let service = Service::restored(1);
    append(&service, "kprobe_events", &format!("p:g {GETPID}"));
    append(&service, "events/kprobes/g/enable", "1");
    work(&service, "getpid 1");
    append(&service, "trace_marker", "first\n\n  second ");
    work(&service, "getpid 1");
    append(&service, "trace_marker", &"x".repeat(1030));
    let trace = cat(&service, "trace");
    let shown: Vec<&str> =
        events(&trace).iter().map(|line| line.split_once("] ..... ").unwrap().1).collect();
    let after_time = |line: &&str| line.split_once(": ").unwrap().1.to_owned();
    let lines: Vec<String> = shown.iter().map(after_time).collect();
    let mark = "tracing_mark_write: ";
    assert!(lines[0].starts_with("g: (") && lines[4].starts_with("g: ("), "{trace}");
    let marks = [&lines[1..4], &lines[5..]].concat();
    let long = "x".repeat(1024);
    assert_eq!(
        marks,
        ["first", "", "  second ", &long, "xxxxxx"].map(|text| mark.to_owned() + text)
    );
    let times: Vec<&str> = shown.iter().map(|line| line.split_once(": ").unwrap().0).collect();
    assert!(times.is_sorted(), "{trace}");
    let page = http::ask(service.socket(), "GET", "/v1/events?from=2&limit=1", &[], b"").body;
    let event: serde_json::Value = serde_json::from_str(&page).unwrap();
    assert_eq!((&event["group"], &event["event"]), (&"ftrace".into(), &"print".into()), "{page}");
    assert_eq!(event["args"]["buf"], "first", "{page}");

    append(&service, "tracing_on", "0");
    assert_eq!(refused(&service, "trace_marker", "x\n"), "EBADF");
    append(&service, "tracing_on", "1");
    append(&service, "trace_options", "nomarkers");
    assert_eq!(refused(&service, "trace_marker", "x\n"), "EINVAL");
    append(&service, "options/markers", "1");
    append(&service, "trace_marker", "last");
    assert_eq!(ask(&service, "GET", "trace_marker", "").json()["code"], "EINVAL");
    assert_eq!(events(&cat(&service, "trace")).len(), 8);
}

fn options_change_lines_and_only_those_served_are_there() {
    let service = Service::restored(1);
    append(&service, "kprobe_events", &format!("p:g {GETPID}"));
    append(&service, "events/kprobes/g/trigger", "stacktrace");
    work(&service, "getpid 1");
    let options = "nosym-offset\nnosym-addr\ncontext-info\nirq-info\nmarkers\n";
    assert_eq!(cat(&service, "trace_options"), options);
    let plain = cat(&service, "trace");
    append(&service, "trace_options", "nocontext-info");
    append(&service, "options/sym-offset", "1");
    let trace = cat(&service, "trace");
    let lines: Vec<&str> = trace.lines().collect();
    assert_eq!(lines[..2], ["# tracer: nop", "#"], "{trace}");
    assert!(lines[2].starts_with("g: (__x64_sys_getpid+0x0/"), "{trace}");
    assert_eq!(lines[3], "<stack trace>", "{trace}");
    assert!(lines[4].starts_with(" => __x64_sys_getpid+0x0/"), "{trace}");
    append(&service, "options/context-info", "1");
    append(&service, "trace_options", "nosym-offset");
    assert_eq!(cat(&service, "trace"), plain);
    for option in ["overwrite", "nooverwrite", "raw", "annotate", ""] {
        assert_eq!(refused(&service, "trace_options", option), "EINVAL", "{option}");
        if !option.is_empty() {
            assert_eq!(refused(&service, &format!("options/{option}"), "1"), "ENOENT");
        }
    }
    assert_eq!(refused(&service, "options/markers", "2"), "EINVAL");
    assert_eq!(cat(&service, "trace_clock"), "[local]\n");
    assert_eq!(refused(&service, "trace_clock", "global"), "EINVAL");
    append(&service, "trace_clock", "local");
    assert!(events(&cat(&service, "trace")).is_empty(), "as with the kernel, it begins anew");
}

fn each_vcpu_has_a_trace_of_its_own() {
    let service = Service::restored(2);
    append(&service, "kprobe_events", &format!("p:g {GETPID} n=$comm"));
    append(&service, "events/enable", "1");
    // The workload puts each of its threads on a CPU of its own.
    work(&service, &format!("par 2 getpid {CALLS}"));
    let of = |cpu: usize| {
        let trace = cat(&service, &format!("per_cpu/cpu{cpu}/trace"));
        let lines = events(&trace).into_iter();
        lines.map(|line| line.split(['[', ']']).nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!([of(0), of(1)], ["000", "001"].map(|cpu| vec![cpu; CALLS]));
    for cpu in 0..2 {
        assert_eq!(statistic(&service, cpu, "entries"), CALLS.to_string());
        assert_eq!(statistic(&service, cpu, "overrun"), "0");
        let time = |name| statistic(&service, cpu, name).trim().parse::<f64>().unwrap();
        assert!(0.0 < time("oldest event ts") && time("oldest event ts") < time("now ts"));
    }
    // A file without an end: what is there comes at once.
    let mut pipe = pipe(&service, "per_cpu/cpu1/trace_pipe");
    for _ in 0..CALLS {
        let mut line = String::new();
        pipe.read_line(&mut line).unwrap();
        assert!(line.contains(" [001] ") && line.ends_with(" n=\"init\"\n"), "{line}");
    }
    assert_eq!(statistic(&service, 1, "read events"), CALLS.to_string());
    assert_eq!(events(&cat(&service, "trace")).len(), CALLS);
    replace(&service, "per_cpu/cpu0/trace", "");
    assert!(events(&cat(&service, "trace")).is_empty());
    assert_eq!(ask(&service, "GET", "per_cpu/cpu2/trace", "").status, 404);
    let names = ask(&service, "GET", "per_cpu", "").json();
    assert_eq!(names["entries"].as_array().unwrap().len(), 2, "{names}");
}

fn the_memory_for_events_is_shown_and_set() {
    let service = Service::restored(1);
    append(&service, "kprobe_events", &format!("p:g {GETPID}"));
    append(&service, "events/kprobes/g/enable", "1");
    assert_eq!(cat(&service, "buffer_total_size_kb"), "65536\n");
    assert_eq!(cat(&service, "buffer_size_kb"), "65536\n");
    work(&service, "getpid 1000");
    append(&service, "buffer_size_kb", "64");
    assert_eq!(cat(&service, "buffer_total_size_kb"), "64\n");
    let entries: u64 = statistic(&service, 0, "entries").parse().unwrap();
    let overrun: u64 = statistic(&service, 0, "overrun").parse().unwrap();
    assert!((50..900).contains(&entries) && entries + overrun == 1000, "{entries} {overrun}");
    let trace = cat(&service, "trace");
    assert!(trace.contains(&format!("entries-written: {entries}/1000 ")), "{trace}");
    assert_eq!(refused(&service, "buffer_size_kb", "65537"), "ENOMEM");
    for size in ["0", "", "x", "-1"] {
        assert_eq!(refused(&service, "buffer_size_kb", size), "EINVAL", "{size}");
    }
    assert_eq!(refused(&service, "buffer_total_size_kb", "1"), "EACCES");
    append(&service, "buffer_size_kb", "65536");
    work(&service, "getpid 1000");
    assert_eq!(statistic(&service, 0, "entries"), (entries + 1000).to_string());
}
