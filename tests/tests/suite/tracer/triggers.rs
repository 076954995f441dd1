//! Triggers of hits: histograms, back-traces, snapshots, and tracing switched on and off.

use exoprobe_tests::harness::Case;
use exoprobe_tests::http;
use exoprobe_tests::{PATIENCE, Service, cases};
use serde_json::Value;

use crate::support::tracer::{append, ask, cat, events, refused, replace, total, work};

pub(crate) const CASES: &[Case] = cases![
    histograms_count_each_call_of_the_guests_once(vcpus),
    histograms_of_latency_have_each_return needs [Kvm, Repeat],
    a_variable_has_the_time_between_two_hits_of_a_task needs [Kvm, Repeat],
    handlers_keep_the_longest_call_and_the_trace_before_it needs [Kvm, Repeat],
    pairs_of_hits_make_synthetic_events needs [Kvm, Repeat],
    pairs_have_texts_and_back_traces_of_their_first_hits needs [Kvm, Repeat],
    synthetic_events_outlast_a_reboot needs [Kvm, QuickKernel],
    tracing_stops_and_begins_with_the_hit_that_says_so needs [Kvm, Repeat],
    an_event_is_shown_from_the_hit_of_another_on needs [Kvm, Repeat],
    faults_of_a_trigger_are_reported needs [Kvm, Repeat],
];

const EVENTS: &str = "kprobe_events";

/// A histogram's entries: what is between braces, and the count.
fn entries(hist: &str) -> Vec<(String, u64)> {
    let entry = |line: &str| {
        let (key, rest) = line.strip_prefix("{ ")?.split_once(" } hitcount:")?;
        let count = rest.split_whitespace().next()?.parse().ok()?;
        Some((key.split_whitespace().collect::<Vec<_>>().join(" "), count))
    };
    hist.lines().filter_map(entry).collect()
}

fn status(service: &Service, event: &str) -> Value {
    let path = format!("/v1/probes/{event}");
    http::ask(service.socket(), "GET", &path, &[], b"").json()
}

fn histograms_count_each_call_of_the_guests_once(vcpus: u8) {
    let service = Service::restored(vcpus);
    let (trigger, hist) = ("events/kprobes/w/trigger", "events/kprobes/w/hist");
    replace(&service, EVENTS, "p:w ksys_write fd=%di:s32 len=%dx:u64");
    assert!(cat(&service, trigger).starts_with("# Available triggers:\n"));
    assert_eq!(cat(&service, hist), "");
    // Armed, and yet nothing is shown.
    append(&service, trigger, "hist:keys=len:vals=len if len == 1");
    assert_eq!(cat(&service, "events/kprobes/w/enable"), "0*\n");
    assert_eq!(
        cat(&service, trigger),
        "hist:keys=len:vals=hitcount,len:sort=hitcount:size=2048 if len == 1 [active]\n"
    );
    let calls = |count: u64| match vcpus {
        1 => work(&service, &format!("write {count}")),
        _ => work(&service, &format!("par 2 write {}", count / 2)),
    };
    calls(300);
    let counted = |calls: u64| {
        let text = cat(&service, hist);
        let expected = format!("{{ len:          1 }} hitcount: {calls:>10}  len: {calls:>10}");
        assert!(text.lines().any(|line| line == expected), "{expected} in {text}");
        assert_eq!((total(&text, "Hits:"), total(&text, "Dropped:")), (calls, 0), "{text}");
    };
    counted(300);
    assert!(events(&cat(&service, "trace")).is_empty());
    assert_eq!(refused(&service, EVENTS, "-:w"), "EBUSY");
    // It leaves the guest no more, and each is counted all the same.
    let begun = std::time::Instant::now();
    while status(&service, "w")["optimized"] != true {
        assert!(begun.elapsed() < PATIENCE, "{}", status(&service, "w"));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    calls(500);
    counted(800);
    // The event's own filter is for what is shown.
    replace(&service, "events/kprobes/w/filter", "len == 1 && fd > 1000");
    replace(&service, "events/kprobes/w/enable", "1");
    assert_eq!(cat(&service, "events/kprobes/w/enable"), "1*\n");
    calls(100);
    counted(900);
    assert!(events(&cat(&service, "trace")).is_empty());
    let books = status(&service, "w");
    let book = |name: &str| books[name].as_u64().unwrap();
    assert_eq!(book("hits"), book("recorded") + book("filtered") + book("lost"), "{books}");
    assert_eq!((book("recorded"), book("lost")), (0, 0), "{books}");
    append(&service, trigger, "!hist:keys=len:vals=len if len == 1");
    assert_eq!(cat(&service, "events/kprobes/w/enable"), "1\n");
    replace(&service, "events/kprobes/w/enable", "0");
    calls(10);
    append(&service, EVENTS, "-:w");
}

fn histograms_of_latency_have_each_return() {
    let service = Service::restored(1);
    replace(&service, EVENTS, "r:got __x64_sys_getpid pid=$retval:s32");
    let (trigger, hist) = ("events/kprobes/got/trigger", "events/kprobes/got/hist");
    append(&service, trigger, "hist:keys=common_pid.execname,pid:vals=common_latency");
    append(&service, trigger, "hist:keys=common_latency.log2:sort=common_latency");
    work(&service, "getpid 400");
    let text = cat(&service, hist);
    let (by_task, by_latency) = text.split_once("\n\n\n# event histogram").unwrap();
    let tasks = entries(by_task);
    assert_eq!(tasks, [("common_pid: init [ 1], pid: 1".to_owned(), 400)], "{text}");
    let by_latency = entries(by_latency);
    assert!(by_latency.iter().all(|(key, _)| key.starts_with("common_latency: ~ 2^")), "{text}");
    assert_eq!(by_latency.iter().map(|(_, count)| count).sum::<u64>(), 400);
    let latency = status(&service, "got")["latency"].clone();
    assert_eq!(latency["calls"], 400);
    let entry = by_task.lines().find(|line| line.starts_with("{ "));
    let sum = entry.and_then(|line| line.split_once("common_latency:"));
    let sum = sum.and_then(|(_, sum)| sum.trim().parse::<u64>().ok());
    assert_eq!(latency["total_ns"].as_u64(), sum, "{text}");
    // Opened anew, the file loses its histograms; so that one is removed by `>` as well.
    replace(&service, trigger, "!hist:keys=common_latency.log2:sort=common_latency");
    assert_eq!(cat(&service, hist), "");
    append(&service, trigger, "hist:keys=pid");
    append(&service, trigger, "traceoff");
    replace(&service, trigger, "");
    assert_eq!(
        (cat(&service, hist).as_str(), cat(&service, trigger).as_str()),
        ("", "traceoff:unlimited\n")
    );
}

/// Calls of getpid enable `w`, forks disable it: hits are drained long after, and shown
/// as they were called.
fn an_event_is_shown_from_the_hit_of_another_on() {
    let service = Service::restored(1);
    replace(&service, EVENTS, "p:w ksys_write len=%dx:u64");
    append(&service, EVENTS, "p:on __x64_sys_getpid nr=+120(%di):u64");
    append(&service, EVENTS, "p:fork kernel_clone");
    append(&service, "events/kprobes/on/trigger", "enable_event:kprobes:w");
    append(&service, "events/kprobes/on/trigger", "enable_hist:kprobes:fork:1 if nr == 39");
    // The kernel's own threads fork as well.
    append(&service, "events/kprobes/fork/trigger", "disable_event:kprobes:w:1 if common_pid == 1");
    append(
        &service,
        "events/kprobes/fork/trigger",
        "hist:keys=common_pid:pause if common_pid == 1",
    );
    replace(&service, "events/kprobes/w/filter", "len == 1");
    let enabled = || cat(&service, "events/kprobes/w/enable");
    assert_eq!(enabled(), "0*\n");
    let shown = || events(&cat(&service, "trace")).len();
    work(&service, "write 50");
    work(&service, "fork 5");
    assert_eq!((shown(), enabled().as_str()), (0, "0*\n"));
    work(&service, "getpid 1");
    work(&service, "write 70");
    assert_eq!((shown(), enabled().as_str()), (70, "1*\n"));
    work(&service, "fork 3");
    work(&service, "write 20");
    assert_eq!((shown(), enabled().as_str()), (70, "0*\n"), "disabled once, by the first fork");
    let hist = cat(&service, "events/kprobes/fork/hist");
    assert_eq!(total(&hist, "Hits:"), 3, "{hist}");
    let line = cat(&service, "events/kprobes/fork/trigger");
    assert!(line.contains("disable_event:kprobes:w:count=0 if common_pid == 1\n"), "{line}");
    let books = status(&service, "w");
    let book = |name: &str| books[name].as_u64().unwrap();
    assert_eq!(book("hits"), book("recorded") + book("filtered") + book("lost"), "{books}");
    assert_eq!((book("recorded"), book("lost")), (70, 0), "{books}");
    assert_eq!(refused(&service, EVENTS, "-:w"), "EBUSY");
    append(&service, "events/kprobes/on/trigger", "!enable_event:kprobes:w");
    append(&service, "events/kprobes/fork/trigger", "!disable_event:kprobes:w");
    assert_eq!(enabled(), "0\n");
    append(&service, EVENTS, "-:w");
}

fn a_variable_has_the_time_between_two_hits_of_a_task() {
    const BEGIN: &str = "hist:keys=common_pid:ts0=common_timestamp if common_pid == 1";
    const END: &str = "hist:keys=common_pid:vals=common_latency:lat=common_timestamp-$ts0";
    const SHOWN: &str = "hist:keys=common_pid:vals=$lat";
    let service = Service::restored(1);
    // An int3 is one hit of both probes, at one time.
    let _ = service.ok(&["probe", "optimization", "off"]);
    replace(&service, EVENTS, "p:begin __x64_sys_getpid");
    append(&service, EVENTS, "r:end __x64_sys_getpid");
    let (begin, end) = ("events/kprobes/begin/trigger", "events/kprobes/end/trigger");
    append(&service, begin, BEGIN);
    append(&service, end, END);
    append(&service, end, SHOWN);
    work(&service, "getpid 50");
    // Of these tasks only the ends are counted, which have no begin.
    work(&service, "par 2 getpid 20");
    let hist = cat(&service, "events/kprobes/end/hist");
    let (by_latency, by_variable) = hist.split_once("\n\n\n# event histogram").unwrap();
    for text in [by_latency, by_variable] {
        assert_eq!(entries(text), [("common_pid: 1".to_owned(), 50)], "{hist}");
    }
    let sum = |text: &str, value: &str| {
        let entry = text.lines().find(|line| line.starts_with("{ "))?;
        entry.split_once(value)?.1.trim().parse::<u64>().ok()
    };
    let sums = (sum(by_latency, "common_latency:"), sum(by_variable, "lat:"));
    let (Some(latency), Some(between)) = sums else { panic!("{hist}") };
    // Each of the two times is rounded to a nanosecond.
    assert!(latency > 0 && latency.abs_diff(between) <= 2 * 50, "{hist}");
    assert_eq!(refused(&service, begin, &format!("!{BEGIN}")), "EBUSY");
    assert_eq!(refused(&service, EVENTS, "-:begin"), "EBUSY");
    append(&service, end, &format!("!{SHOWN}"));
    append(&service, end, &format!("!{END}"));
    append(&service, begin, &format!("!{BEGIN}"));
    append(&service, EVENTS, "-:begin");
}

fn handlers_keep_the_longest_call_and_the_trace_before_it() {
    const SAVING: &str = "hist:keys=pid:lat=common_latency:onmax($lat).save(common_latency,comm)";
    const TAKING: &str = "hist:keys=nr:n=nr:onmax($n).snapshot()";
    let service = Service::restored(1);
    replace(&service, EVENTS, "r:got __x64_sys_getpid pid=$retval:s32");
    append(&service, EVENTS, "p:g __x64_sys_getpid nr=+120(%di):u64");
    append(&service, "events/kprobes/got/trigger", SAVING);
    work(&service, "getpid 400");
    let text = cat(&service, "events/kprobes/got/hist");
    assert_eq!(entries(&text), [("pid: 1".to_owned(), 400)], "{text}");
    let most = status(&service, "got")["latency"]["max_ns"].as_u64().unwrap();
    let line = format!("\tmax: {most:>10}  common_latency: {most:>10}  comm: {:<32}", "init");
    assert!(most > 0 && text.lines().any(|shown| shown == line), "{line} in {text}");

    let of_g = "events/kprobes/g/trigger";
    replace(&service, "events/kprobes/g/enable", "1");
    work(&service, "getpid 3");
    append(&service, of_g, TAKING);
    assert_eq!(refused(&service, "snapshot", "1"), "EBUSY");
    work(&service, "getpid 5");
    let counts = ["snapshot", "trace"].map(|file| events(&cat(&service, file)).len());
    assert_eq!(counts, [3 + 1, 4], "all have one number: the first hit is the last one in it");
    let text = cat(&service, "events/kprobes/g/hist");
    let taken = "\ttriggering value { onmax($n) }:         39\t\
        triggered by event with key: { nr:         39 }\n\nTotals:\n    Hits: 5\n";
    assert!(text.contains(taken), "{text}");
    append(&service, of_g, &format!("!{TAKING}"));
    replace(&service, "snapshot", "0");
}

fn pairs_of_hits_make_synthetic_events() {
    const BEGIN: &str = "hist:keys=common_pid:ts0=common_timestamp if common_pid == 1";
    const END: &str = "hist:keys=common_pid:vals=common_latency:lat=common_timestamp-$ts0:\
                       onmatch(kprobes.begin).took($lat,common_pid,comm)";
    const COUNT: &str = "hist:keys=pid,who:vals=lat";
    let service = Service::restored(1);
    // An int3 is one hit of both probes, at one time.
    let _ = service.ok(&["probe", "optimization", "off"]);
    replace(&service, EVENTS, "p:begin __x64_sys_getpid");
    append(&service, EVENTS, "r:end __x64_sys_getpid");
    append(&service, "synthetic_events", "took u64 lat; int pid; char who[16]");
    let took = |file: &str| format!("events/synthetic/took/{file}");
    append(&service, "events/kprobes/begin/trigger", BEGIN);
    append(&service, "events/kprobes/end/trigger", END);
    append(&service, &took("trigger"), COUNT);
    replace(&service, &took("enable"), "1");
    work(&service, "getpid 50");
    // Of these tasks only the ends are counted, which have no begin.
    work(&service, "par 2 getpid 20");
    let trace = cat(&service, "trace");
    let lines: Vec<&str> = trace.lines().filter(|line| line.contains(": took: lat=")).collect();
    assert_eq!(lines.len(), 50, "{trace}");
    assert!(lines.iter().all(|line| line.ends_with(" pid=1 who=init")), "{trace}");
    let latency = |line: &&str| line.split_once("lat=")?.1.split(' ').next()?.parse::<u64>().ok();
    let sum: u64 = lines.iter().filter_map(latency).sum();
    let hist = cat(&service, &took("hist"));
    let entry = format!("who: {:<50} }} hitcount:         50  lat: {sum:>10}", "init");
    assert!(hist.contains(&entry), "{entry} in {hist}");
    let by_latency = cat(&service, "events/kprobes/end/hist");
    let entry = by_latency.lines().find(|line| line.starts_with("{ "));
    let counted = entry.and_then(|line| line.split_once("common_latency:"));
    let counted = counted.and_then(|(_, counted)| counted.trim().parse::<u64>().ok());
    // Each of the two times is rounded to a nanosecond.
    assert!(counted.is_some_and(|counted| counted.abs_diff(sum) <= 2 * 50), "{sum} {by_latency}");
    assert_eq!(refused(&service, "synthetic_events", "!took"), "EBUSY");
    replace(&service, &took("enable"), "0");
    append(&service, &took("trigger"), &format!("!{COUNT}"));
    append(&service, "events/kprobes/end/trigger", &format!("!{END}"));
    append(&service, "synthetic_events", "!took");
    assert_eq!(cat(&service, "synthetic_events"), "");
}

fn pairs_have_texts_and_back_traces_of_their_first_hits() {
    const BEGIN: &str = "hist:keys=common_pid:st=common_stacktrace,who=common_pid.execname";
    const END: &str = "hist:keys=common_pid:onmatch(kprobes.begin).opened($st,$who,file,fd)";
    const COUNT: &str = "hist:keys=file,stack.stacktrace";
    const MADE: &str = "hist:keys=common_pid:vals=hitcount:synthetic_file=file:\
                        sort=hitcount:size=2048 [active]\n";
    let service = Service::restored(1);
    replace(&service, EVENTS, "p:begin do_sys_openat2 file=+0(%si):ustring");
    append(&service, EVENTS, "r:end do_sys_openat2 fd=$retval:s32");
    let fields = "unsigned long[] stack; char who[]; char file[]; s32 fd";
    append(&service, "synthetic_events", &format!("opened {fields}"));
    let [begin, end] = ["begin", "end"].map(|event| format!("events/kprobes/{event}/trigger"));
    append(&service, &begin, BEGIN);
    append(&service, &end, END);
    assert!(cat(&service, &begin).ends_with(MADE), "{}", cat(&service, &begin));
    append(&service, "events/synthetic/opened/trigger", COUNT);
    replace(&service, "events/synthetic/opened/enable", "1");
    work(&service, "open /dev/null 40");
    let trace = cat(&service, "trace");
    let made = ": opened: stack=STACK:\n=> do_sys_openat2+0x0/";
    let after = "\nwho=init file=/dev/null fd=";
    assert_eq!((trace.matches(made).count(), trace.matches(after).count()), (40, 40), "{trace}");
    let hist = cat(&service, "events/synthetic/opened/hist");
    let key = format!("{{ file: {:<50}, stack.stacktrace         do_sys_openat2+0x0/", "/dev/null");
    assert!(hist.contains(&key) && hist.contains("\n} hitcount:         40\n"), "{hist}");
    assert_eq!(total(&hist, "Hits:"), 40, "{hist}");
    append(&service, &end, &format!("!{END}"));
    assert!(!cat(&service, &begin).contains("synthetic_file"));
}

fn synthetic_events_outlast_a_reboot() {
    const BEGIN: &str = "hist:keys=common_pid:ts0=common_timestamp";
    const END: &str = "hist:keys=common_pid:lat=common_timestamp-$ts0:\
                       onmatch(kprobes.begin).took($lat,common_pid)";
    let service = Service::restored(1);
    replace(&service, EVENTS, "p:begin __x64_sys_getpid");
    append(&service, EVENTS, "r:end __x64_sys_getpid");
    append(&service, "synthetic_events", "took u64 lat; int pid");
    append(&service, "events/kprobes/begin/trigger", BEGIN);
    append(&service, "events/kprobes/end/trigger", END);
    // The task is known some time after a boot.
    append(&service, "events/synthetic/took/trigger", "hist:keys=lat.log2");
    replace(&service, "events/synthetic/took/enable", "1");
    let files = ["enable", "filter", "trigger", "format"];
    let state = || files.map(|file| cat(&service, &format!("events/synthetic/took/{file}")));
    assert_eq!(refused(&service, "events/synthetic/took/filter", "zz == 1"), "EINVAL");
    let before = state();
    assert_eq!(before[1], "zz == 1\n   ^\nparse_error: Field not found\n\n");
    work(&service, "getpid 10");
    assert_eq!(service.ok(&["vm", "reboot"]), "running\n");
    work(&service, "getpid 3");
    assert_eq!(state(), before);
    replace(&service, "trace", "");
    let hist = || total(&cat(&service, "events/synthetic/took/hist"), "Hits:");
    let counted = hist();
    work(&service, "getpid 20");
    let trace = cat(&service, "trace");
    let made = trace.lines().filter(|line| line.contains(": took: lat=")).count();
    assert_eq!((made, hist() - counted), (20, 20), "{trace}");
}

fn tracing_stops_and_begins_with_the_hit_that_says_so() {
    let service = Service::restored(1);
    replace(&service, EVENTS, "p:g __x64_sys_getpid nr=+120(%di):u64");
    append(&service, EVENTS, "p:o do_sys_openat2");
    let [of_g, of_o] = ["g", "o"].map(|event| format!("events/kprobes/{event}/trigger"));
    replace(&service, "events/kprobes/enable", "1");
    let shown = || events(&cat(&service, "trace")).len();

    append(&service, &of_o, "traceoff:1");
    work(&service, "getpid 3");
    work(&service, "open /dev/null 1");
    work(&service, "getpid 5");
    assert_eq!((shown(), cat(&service, "tracing_on").as_str()), (4, "0\n"), "up to the open");
    append(&service, &of_o, "traceon");
    work(&service, "getpid 5");
    work(&service, "open /dev/null 1");
    work(&service, "getpid 2");
    assert_eq!((shown(), cat(&service, "tracing_on").as_str()), (4 + 3, "1\n"));
    append(&service, &of_o, "!traceoff");
    append(&service, &of_o, "!traceon");

    append(&service, &of_o, "snapshot:1");
    work(&service, "getpid 2");
    work(&service, "open /dev/null 3");
    let snapshot = cat(&service, "snapshot");
    assert_eq!((events(&snapshot).len(), shown()), (7 + 2, 3), "{snapshot}");
    assert!(snapshot.contains("# entries-in-buffer/entries-written: 9/9 "), "{snapshot}");
    replace(&service, "snapshot", "0");
    assert!(cat(&service, "snapshot").starts_with("# there is no snapshot"));
    append(&service, &of_o, "!snapshot");

    replace(&service, "trace", "");
    append(&service, &of_g, "stacktrace:2");
    work(&service, "getpid 6");
    let text = cat(&service, "trace");
    assert_eq!(text.matches("<stack trace>\n => __x64_sys_getpid").count(), 2, "{text}");
    assert_eq!(text.matches(": g: (").count(), 6, "{text}");
}

fn faults_of_a_trigger_are_reported() {
    let service = Service::restored(1);
    replace(&service, EVENTS, "p:g __x64_sys_getpid a=%di");
    let trigger = "events/kprobes/g/trigger";
    for (text, errno) in [
        ("frob", "EINVAL"),
        ("hist:keys=b", "EINVAL"),
        ("hist:keys=a:sort=b", "EINVAL"),
        ("traceoff if b == 1", "EINVAL"),
        ("hist:keys=a:clear", "ENOENT"),
    ] {
        assert_eq!(refused(&service, trigger, text), errno, "{text}");
    }
    append(&service, trigger, "stacktrace:5");
    append(&service, trigger, "!stacktrace:0");
    assert!(
        cat(&service, trigger).starts_with("# Available triggers:\n"),
        "its count is not compared"
    );
    append(&service, trigger, "hist:keys=a");
    assert_eq!(refused(&service, trigger, "hist:keys=a"), "EEXIST");
    append(&service, trigger, "hist:keys=a:pause");
    assert!(cat(&service, trigger).ends_with(" [paused]\n"));
    let answer = ask(&service, "POST", trigger, "hist:keys=a,bc.hex").json();
    assert_eq!(
        (&answer["id"], &answer["position"]),
        (&Value::from("FIELD_NOT_FOUND"), &Value::from(12))
    );
    append(&service, "synthetic_events", "s u64 a");
    let made = "events/synthetic/s/trigger";
    let answer = ask(&service, "POST", made, "traceon if a.ustring == \"x\"").json();
    assert_eq!(
        (&answer["id"], &answer["position"]),
        (&Value::from("ILLEGAL_FIELD_OP"), &Value::from(11))
    );
    let answer = ask(&service, "POST", trigger, "hist:keys=a,bc.hex").json();
    assert_eq!(answer["id"], "FIELD_NOT_FOUND");
    let log = cat(&service, "error_log");
    let last: Vec<&str> = log.lines().rev().take(2).collect();
    assert_eq!(last[1], "  Command: hist:keys=a,bc.hex");
    assert_eq!(last[0].find('^'), Some("  Command: ".len() + 12), "{log}");
    assert!(log.contains("] hist:kprobes:g: error: "), "{log}");
    assert!(log.contains("] event filter parse error: error: "), "{log}");
}
