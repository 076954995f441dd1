//! trace-cmd on the mounted files: what it records is what `trace` shows.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use exoprobe_tests::harness::Case;
use exoprobe_tests::{Service, cases, http};

use crate::support::mounted::{Line, Mounted, line, lines};
use crate::support::tracer::{append, ask, cat, events, replace, statistic, work};

pub(crate) const CASES: &[Case] = cases![
    trace_cmd_reports_what_the_trace_shows(vcpus) needs [Kvm, Fuse, Namespaces, TraceCmd],
    trace_cmd_records_while_events_happen needs [Kvm, Fuse, Namespaces, TraceCmd],
    trace_cmd_records_into_instances needs [Kvm, Fuse, Namespaces, TraceCmd],
    trace_cmd_starts_stops_and_resets_an_instance needs [Kvm, Fuse, Namespaces, TraceCmd],
    trace_cmd_reports_synthetic_events needs [Kvm, Fuse, Namespaces, TraceCmd],
    trace_cmd_counts_the_call_chains_of_events needs [Kvm, Fuse, Namespaces, TraceCmd],
    trace_cmd_reads_each_format_and_option needs [Kvm, Fuse, Namespaces, TraceCmd],
    pages_are_taken_whole_and_tell_of_lost_events needs [Kvm, Repeat],
];

const GETPID: &str = "__x64_sys_getpid";
const PAGE: usize = 4096;

fn trace_cmd_reports_what_the_trace_shows(vcpus: u8) {
    let service = Service::restored(vcpus);
    let mounted = Mounted::new(&service);
    let kinds = "a=$arg1:s32 b=$arg1:u16 c=$arg1:x64 s=+0($arg2):string t=+0($arg2):u8[3] \
        y=%ip:symstr w=\\\"text\":string $comm bad=+0($arg1):string";
    append(&service, "kprobe_events", &format!("p:open do_sys_openat2 {kinds}"));
    append(&service, "kprobe_events", "r:g/opened do_sys_openat2 fd=$retval:s32");
    append(&service, "kprobe_events", &format!("p:getpid {GETPID}\np:second {GETPID}"));
    append(&service, "kprobe_events", "p:second __x64_sys_getppid");
    append(&service, "events/enable", "1");
    work(&service, "open /dev/null 5");
    work(&service, &format!("par {vcpus} getpid 700"));
    append(&service, "trace_marker", "a text of mine");
    work(&service, "open /init 1");
    append(&service, "events/enable", "0");
    let trace = cat(&service, "trace");
    let shown = lines(&trace);
    assert_eq!(shown.len(), 2 * 6 + 2 * 700 * usize::from(vcpus) + 1, "{trace}");
    let report = mounted.run("trace-cmd extract -o dat >&2; trace-cmd report -t dat");
    let reported = lines(&report);
    let differs = shown.iter().zip(&reported).find(|(shown, reported)| shown != reported);
    assert_eq!((differs, shown.len()), (None, reported.len()), "{report}");
    assert!(events(&cat(&service, "trace")).is_empty(), "they were taken");

    // Of a return probe the place is shown, too, and of back-traces each function.
    append(&service, "events/g/opened/trigger", "stacktrace");
    work(&service, "open /dev/null 1");
    let trace = cat(&service, "trace");
    let report = mounted.run("trace-cmd extract -o dat >&2; trace-cmd report -t dat");
    let functions = |text: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.trim().strip_prefix("=> "));
        lines.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    assert!(functions(&trace).len() > 2, "{trace}");
    assert_eq!(functions(&report), functions(&trace), "{report}");
    assert!(report.contains(" opened: ") && report.contains(" <- ffffffff"), "{report}");
}

fn trace_cmd_records_while_events_happen() {
    const CALLS: usize = 5000;
    let service = Service::restored(1);
    let mounted = Mounted::new(&service);
    append(
        &service,
        "kprobe_events",
        &format!("p:getpid {GETPID} sp=$stack $comm\np:other {GETPID}"),
    );
    append(&service, "events/kprobes/other/enable", "1");
    let report = mounted.run(&format!(
        "trace-cmd record -q --nosplice -e kprobes:getpid -o dat \"$EXOPROBE\" vm send getpid {CALLS} >&2
        trace-cmd report dat"
    ));
    let reported: Vec<Line> = report.lines().filter_map(line).collect();
    assert!(
        reported
            .iter()
            .all(|Line(task, event, _)| { task.starts_with("init-1 [000] ") && event == "getpid" }),
        "{report}"
    );
    // The same events are kept for other readers.
    let path = "/v1/events?probe=getpid&limit=10000";
    let kept = http::ask(service.socket(), "GET", path, &[], b"").body;
    let args = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        let arg = |name: &str| event["args"][name].as_str().unwrap().to_owned();
        format!("sp={} arg2=\"{}\"", arg("sp"), arg("arg2"))
    };
    let kept: Vec<String> = kept.lines().map(args).collect();
    let reported: Vec<String> = reported.into_iter().map(|Line(_, _, args)| args).collect();
    assert_eq!((kept.len(), &kept), (CALLS, &reported));
}

/// Number of events `getpid` of an instance in a report.
fn reported_of(report: &str, instance: &str) -> usize {
    let of = report.lines().filter_map(|text| text.trim().strip_prefix(&format!("{instance}:")));
    let of_getpid = of.filter_map(line).filter(|Line(task, event, _)| {
        assert!(task.starts_with("init-1 [000] "), "{task}");
        event == "getpid"
    });
    of_getpid.count()
}

fn trace_cmd_records_into_instances() {
    const CALLS: usize = 3000;
    let service = Service::restored(1);
    let mounted = Mounted::new(&service);
    append(
        &service,
        "kprobe_events",
        &format!("p:getpid {GETPID} n=\\7\np:other {GETPID}\np:open do_sys_openat2"),
    );
    append(&service, "events/kprobes/other/enable", "1");
    // `bar` is there before; trace-cmd removes it, too.
    assert_eq!(ask(&service, "PUT", "instances/bar", "").status, 204);
    let report = mounted.run(&format!(
        "trace-cmd record -q --nosplice -B foo -e kprobes:getpid -B bar -e kprobes:getpid -f 'n == 8' \
         -o dat \"$EXOPROBE\" vm send getpid {CALLS} >&2
        trace-cmd report dat; ls /sys/kernel/tracing/instances | wc -l"
    ));
    assert_eq!((reported_of(&report, "foo"), reported_of(&report, "bar")), (CALLS, 0), "{report}");
    assert!(report.ends_with("\n0\n"), "{report}");
    let kept = |query: &str| {
        let path = format!("/v1/events?limit=10000{query}");
        http::ask(service.socket(), "GET", &path, &[], b"").body.lines().count()
    };
    assert_eq!((kept("&probe=other"), kept("&probe=getpid")), (CALLS, 0), "those of the top");

    // The top and an instance at once.
    let report = mounted.run(&format!(
        "trace-cmd record -q --nosplice -e kprobes:other -B bar -e kprobes:getpid -f 'n == 7' -o dat \
         \"$EXOPROBE\" vm send getpid {CALLS} >&2
        trace-cmd report dat"
    ));
    let of_top = report.lines().filter(|line| line.contains(" other: ")).count();
    assert_eq!((of_top, reported_of(&report, "bar")), (CALLS, CALLS), "{report}");
}

fn trace_cmd_starts_stops_and_resets_an_instance() {
    let service = Service::restored(1);
    let mounted = Mounted::new(&service);
    append(&service, "kprobe_events", &format!("p:getpid {GETPID}"));
    let shown = mounted.run(
        "send() { \"$EXOPROBE\" vm send getpid \"$1\" >&2; }
        show() { trace-cmd show -B foo | grep -c ' getpid: ' || true; }
        trace-cmd start -B foo -e kprobes:getpid >&2
        send 5; show; trace-cmd stop -B foo
        send 3; show; trace-cmd restart -B foo
        send 4; show; trace-cmd clear -B foo
        send 2; show; trace-cmd stat -B foo | grep Tracing
        trace-cmd reset -B foo >&2
        send 6; show; cat /sys/kernel/tracing/instances/foo/set_event; ls /sys/kernel/tracing/instances
        echo 'p:getpid __x64_sys_getpid' > /sys/kernel/tracing/kprobe_events
        trace-cmd start -B foo -e kprobes:getpid >&2
        send 7; trace-cmd extract -B foo -o dat >&2; trace-cmd report dat | grep -c ' init-1 .* getpid: '
        ls /sys/kernel/tracing/instances",
    );
    let expected = "5\n5\n9\n2\nTracing is enabled\n0\nfoo\n7\n";
    assert_eq!(shown, expected, "trace-cmd's `reset` deletes probes, its `extract` the instance");
}

/// Of a synthetic event trace-cmd has commas between the values, by the kernel's `format`.
fn reported_made(report: &str) -> Vec<Line> {
    let made = lines(report).into_iter().filter(|Line(_, event, _)| event == "made");
    made.map(|Line(context, event, args)| Line(context, event, args.replace(", ", " "))).collect()
}

fn trace_cmd_reports_synthetic_events() {
    const OPENS: usize = 200;
    let service = Service::restored(1);
    let mounted = Mounted::new(&service);
    append(
        &service,
        "synthetic_events",
        "made u64 lat; s32 fd; u16 n; s8 m; int pid; char who[16]; char file[]; gfp_t g; \
         unsigned long at; char last[]",
    );
    append(&service, "kprobe_events", "p:open do_sys_openat2");
    append(
        &service,
        "kprobe_events",
        "r:opened do_sys_openat2 fd=$retval:s32 file=+0($arg2):string bad=+0(\\1):string \
         nn=\\65535:u16 mm=\\17:s8 gg=\\3264:u32",
    );
    append(&service, "events/kprobes/open/trigger", "hist:keys=common_pid:t=common_timestamp");
    append(
        &service,
        "events/kprobes/opened/trigger",
        "hist:keys=common_pid:lat=common_timestamp-$t:onmatch(kprobes.open)\
         .made($lat,fd,nn,mm,common_pid,comm,file,gg,18446744073709551615,bad)",
    );
    assert_eq!(mounted.run("trace-cmd check-events 2>&1"), "");
    append(&service, "events/synthetic/made/enable", "1");
    work(&service, &format!("open /dev/null {OPENS}"));
    work(&service, "open /init 1");
    let trace = cat(&service, "trace");
    let shown = lines(&trace);
    assert_eq!(shown.len(), OPENS + 1, "{trace}");
    let report = mounted.run("trace-cmd extract -o dat >&2; trace-cmd report -t dat");
    assert_eq!(reported_made(&report), shown, "{report}");
    let values = " n=65535 m=17 pid=1 who=init file=/init g=cc0 at=18446744073709551615 last=";
    assert_eq!(shown.iter().filter(|line| line.2.contains(values)).count(), 1, "{trace}");
    assert!(!report.contains("EVENTS DROPPED"), "{report}");

    append(&service, "events/synthetic/made/enable", "0");
    let record = |of: &str| {
        let report = mounted.run(&format!(
            "trace-cmd record -q --nosplice {of} -e synthetic:made -f 'lat > 0' -o dat \
             \"$EXOPROBE\" vm send open /dev/null {OPENS} >&2; trace-cmd report -t dat"
        ));
        report.lines().filter(|line| line.contains(" made: ")).count()
    };
    assert_eq!((record(""), record("-B foo")), (OPENS, OPENS));
}

fn trace_cmd_counts_the_call_chains_of_events() {
    let service = Service::restored(1);
    let mounted = Mounted::new(&service);
    append(&service, "kprobe_events", &format!("p:getpid {GETPID}\np:open do_sys_openat2"));
    append(&service, "events/enable", "1");
    work(&service, "getpid 300");
    work(&service, "open /dev/null 100");
    let hist = || mounted.run("trace-cmd extract -o dat >&2; trace-cmd hist dat");
    let chains = |hist: &str| -> Vec<String> {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        hist.lines().map(words).filter(|line| !line.is_empty() && line != "|").collect()
    };
    let [getpid, open] = ["%75.00 (1) init getpid #300", "%25.00 (1) init open #100"];
    assert_eq!(chains(&hist()), [getpid, "--- *getpid*", open, "--- *open*"]);

    append(&service, "events/kprobes/open/trigger", "stacktrace");
    work(&service, "open /dev/null 1");
    let trace = cat(&service, "trace");
    let functions = trace.lines().filter_map(|line| line.trim().strip_prefix("=> "));
    let functions: Vec<&str> = functions.map(|it| it.split(' ').next().unwrap()).collect();
    // trace-cmd 3.1 counts the last event with a back-trace twice.
    let expected = [&["%100.00 (1) init open #2", "--- *open*"][..], &functions].concat();
    assert!(functions.len() > 2, "{trace}");
    assert_eq!(chains(&hist()), expected);
}

fn trace_cmd_reads_each_format_and_option() {
    let service = Service::restored(1);
    let mounted = Mounted::new(&service);
    let texts = "s=+0($arg2):string[2] u=+0($arg2):ustring y=%ip:symbol z=%ip:symstr";
    append(
        &service,
        "kprobe_events",
        &format!("p:e do_sys_openat2 b=%di:b4@2/32 c=%di:char {texts}"),
    );
    append(&service, "kprobe_events", "r:g/r do_sys_openat2 $retval");
    let checked = mounted.run("trace-cmd check-events 2>&1");
    assert_eq!(checked, "");
    let listed = mounted.run("trace-cmd list -e; trace-cmd list -C; trace-cmd list -o");
    assert!(listed.contains("kprobes:e\n") && listed.contains("g:r\n"), "{listed}");
    assert!(listed.contains("[local]") && listed.contains("nosym-offset\n"), "{listed}");
}

fn pages_are_taken_whole_and_tell_of_lost_events() {
    let service = Service::restored(1);
    let path = "per_cpu/cpu0/trace_pipe_raw";
    append(&service, "kprobe_events", &format!("p:g {GETPID} sp=$stack"));
    append(&service, "events/kprobes/g/enable", "1");
    let pages = |query: &str| {
        let mut stream = UnixStream::connect(service.socket()).unwrap();
        let request = format!("GET /v1/tracefs/{path}{query} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
        let pages = answer.split_off(end);
        assert_eq!(pages.len() % PAGE, 0);
        pages
    };
    let long = |page: &[u8], at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
    assert!(pages("").is_empty());
    work(&service, "getpid 1000");
    // A record has 24 bytes, an entry's header 4, and 8 more where much time has gone by.
    let [first, rest] = ["?pages=1", "?pages=9"].map(pages);
    assert_eq!((first.len(), rest.len()), (PAGE, 6 * PAGE));
    assert!((4080 - 36..=4080).contains(&long(&first, 8)), "{}", long(&first, 8));
    assert!(pages("?wait=1").is_empty(), "each goes to one reader");
    append(&service, "buffer_size_kb", "64");
    work(&service, "getpid 1000");
    let overrun = statistic(&service, 0, "overrun");
    let found = pages("?pages=1");
    let bytes = long(&found, 8);
    assert_eq!(bytes >> 30, 3, "entries are lost, and how many is said");
    let end = 16 + usize::try_from(bytes & 0xffff).unwrap();
    assert_eq!(long(&found, end).to_string(), overrun);
    assert_eq!(long(&pages("?pages=1"), 8) >> 30, 0, "once");
    for query in ["?pages=0", "?pages=257", "?wait=15001", "?pages=x"] {
        assert_eq!(ask(&service, "GET", &format!("{path}{query}"), "").status, 400, "{query}");
    }
    replace(&service, "trace", "");
    assert_eq!(ask(&service, "GET", "per_cpu/cpu1/trace_pipe_raw", "").status, 404);
}
