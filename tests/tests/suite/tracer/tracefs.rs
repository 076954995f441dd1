//! The tracer's files, as the service has them.

use std::io::{BufRead, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use exoprobe_tests::harness::Case;
use exoprobe_tests::http;
use exoprobe_tests::{PATIENCE, Service, cases, exoprobe, finish};

use crate::support::tracer::{
    append, ask, cat, events, getpid_in_steps, pipe, refused, replace, work,
};

pub(crate) const CASES: &[Case] = cases![
    the_seeds_session_runs_word_for_word,
    faults_are_in_error_log_with_their_carets needs [Kvm, Repeat],
    events_are_deleted_by_name_group_and_words needs [Kvm, Repeat],
    an_event_has_probes_of_several_functions needs [Kvm, Repeat],
    tracing_is_switched_cleared_and_taken needs [Kvm, Repeat],
    filters_are_set_and_taken_away needs [Kvm, Repeat],
    a_thousand_events_are_defined_by_one_write needs [Kvm, Repeat],
    very_many_events_are_defined_enabled_and_deleted_at_once needs [Kvm, Repeat],
    a_pattern_is_an_event_for_each_function needs [Kvm, Repeat],
    a_reader_that_never_reads_trace_pipe_blocks_no_other needs [Kvm, Repeat],
    refused_reads_and_writes_report_the_reason needs [Kvm, Repeat],
    the_session_of_the_docs_runs_in_a_shell needs [Kvm, Fuse],
];

const GETPID: &str = "__x64_sys_getpid";
const OPEN: &str = "do_sys_openat2";

/// Hits of each event, by kprobe_profile.
fn profile(service: &Service) -> Vec<(String, u64, u64)> {
    let text = cat(service, "kprobe_profile");
    let line = |line: &str| {
        assert_eq!(line.len(), 2 + 44 + 1 + 15 + 1 + 15, "{line:?}");
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[0].to_owned(), words[1].parse().unwrap(), words[2].parse().unwrap())
    };
    text.lines().map(line).collect()
}

/// A line's parts: task, CPU, time, and what follows the time.
fn parts(line: &str) -> (&str, &str, &str, &str) {
    let (task, rest) = line.split_once(" [").unwrap_or_else(|| panic!("{line:?}"));
    let (cpu, rest) = rest.split_once("] ..... ").unwrap_or_else(|| panic!("{line:?}"));
    let (time, what) = rest.split_once(": ").unwrap_or_else(|| panic!("{line:?}"));
    (task, cpu, time, what)
}

/// All hexadecimal numbers as `0x#`.
fn without_numbers(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some((head, tail)) = rest.split_once("0x") {
        shown.push_str(head);
        shown.push_str("0x#");
        rest = tail.trim_start_matches(|c: char| c.is_ascii_hexdigit());
    }
    shown + rest
}

fn the_seeds_session_runs_word_for_word() {
    let service = Service::restored(1);
    replace(&service, "kprobe_events", &format!("p:myprobe {OPEN} a0 a1 a2 a3"));
    append(&service, "kprobe_events", &format!("r:myretprobe {OPEN} rv ra"));
    let listing = format!(
        "p:kprobes/myprobe {OPEN} a0=a0 a1=a1 a2=a2 a3=a3\nr:kprobes/myretprobe {OPEN} rv=rv ra=ra\n"
    );
    assert_eq!(cat(&service, "kprobe_events"), listing);
    let format = cat(&service, "events/kprobes/myprobe/format");
    let id = cat(&service, "events/kprobes/myprobe/id");
    assert!(format.starts_with(&format!(
        "name: myprobe\nID: {id}format:\n\tfield:unsigned short common_type;"
    )));
    assert!(format.contains("\tfield:u64 a3;\toffset:40;\tsize:8;\tsigned:0;\n"), "{format}");
    assert!(
        format.ends_with(", REC->__probe_ip, REC->a0, REC->a1, REC->a2, REC->a3\n"),
        "{format}"
    );
    work(&service, "open /dev/null 2");
    assert_eq!(events(&cat(&service, "trace")).len(), 0, "they are not enabled");
    assert_eq!(cat(&service, "events/enable"), "0\n");
    append(&service, "events/kprobes/myprobe/enable", "1");
    assert_eq!(
        (
            &*cat(&service, "events/kprobes/enable"),
            &*cat(&service, "events/kprobes/myprobe/enable")
        ),
        ("X\n", "1\n")
    );
    append(&service, "events/enable", "1");
    work(&service, "open /dev/null 3");
    let counts = profile(&service);
    assert_eq!(counts, [("myprobe".to_owned(), 3, 0), ("myretprobe".to_owned(), 3, 0)]);
    let trace = cat(&service, "trace");
    assert!(
        trace.starts_with("# tracer: nop\n#\n# entries-in-buffer/entries-written: 6/6   #P:1\n#\n"),
        "{trace}"
    );
    assert!(
        trace.contains("\n#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION\n"),
        "{trace}"
    );
    assert_lines_are_the_tracers(&trace, 6);
    let busy = ask(&service, "PUT", "kprobe_events", "");
    assert_eq!(busy.json()["code"], "EBUSY", "{busy:?}");
    assert_eq!(cat(&service, "kprobe_events"), listing, "nothing was deleted");
    append(&service, "events/enable", "0");
    replace(&service, "kprobe_events", "");
    assert_eq!(cat(&service, "kprobe_events"), "");
    assert_eq!(events(&cat(&service, "trace")).len(), 6);
}

/// The lines of the two events, in turn.
fn assert_lines_are_the_tracers(trace: &str, count: usize) {
    let lines = events(trace);
    let mut before = "";
    for (index, line) in lines.iter().enumerate() {
        let (task, cpu, time, what) = parts(line);
        assert_eq!((task, cpu), ("            init-1      ", "000"), "{line}");
        assert_eq!(
            time.trim_start().split_once('.').map(|(_, micros)| micros.len()),
            Some(6),
            "{line}"
        );
        assert!(before <= time, "{trace}");
        before = time;
        let expected = match index % 2 {
            0 => format!("myprobe: ({OPEN}+0x#/0x#) a0=0x# a1=0x# a2=0x# a3=0x#"),
            _ => format!("myretprobe: (__x64_sys_openat+0x#/0x# <- {OPEN}) rv=0x# ra=0x#"),
        };
        assert_eq!(without_numbers(what), expected, "{line}");
    }
    assert_eq!(lines.len(), count);
}

/// Commands that the engine refuses: errno, identifier, and the caret's column in the command.
const FAULTS: &[(&str, &str, &str, usize)] = &[
    ("p:e no_such_function", "EINVAL", "BAD_PROBE_ADDR", 4),
    ("p:e  __x64_sys_getpid+4", "EILSEQ", "BAD_INSN_BNDRY", 4),
    ("r:e __x64_sys_getpid+3", "EINVAL", "BAD_RETPROBE", 4),
    ("p:e 0x1000", "EINVAL", "FAIL_REG_PROBE", 4),
    ("p:e __x64_sys_getpid a=@no_such_data+8", "ENOENT", "BAD_MEM_ADDR", 23),
    ("p:e __x64_sys_getpid   a=%zz", "EINVAL", "BAD_REG_NAME", 23),
    ("p:e __x64_sys_getpid+3 $arg1", "EINVAL", "NOFENTRY_ARGS", 23),
    ("r:e __x64_sys_getpid x=$arg17", "EINVAL", "TOO_MANY_EARGS", 23),
    (
        "p:e __x64_sys_getpid +0(%sp):u64[64] +0(%sp):u64[64] +0(%sp):u64[64] +0(%sp):u64[64] +0(%sp):u64[64] \
            +0(%sp):u64[64] x=+8(%sp):u8",
        "E2BIG",
        "EVENT_TOO_BIG",
        119,
    ),
    ("p:there __x64_sys_getpid", "EEXIST", "SAME_PROBE", 0),
    ("r:there __x64_sys_getpid", "EEXIST", "DIFF_PROBE_TYPE", 0),
    ("p:there  __x64_sys_getpid %di", "EEXIST", "DIFF_ARG_TYPE", 25),
    ("p:two __x64_sys_getppid  a=%di b=%si:u32", "EEXIST", "DIFF_ARG_TYPE", 30),
    ("p:two __x64_sys_getppid a=%di c=%si", "EEXIST", "DIFF_ARG_TYPE", 30),
    ("p:two __x64_sys_getppid a=%di", "EEXIST", "DIFF_ARG_TYPE", 29),
    ("p:two __x64_sys_getpid a=%di b=%si", "EEXIST", "SAME_PROBE", 0),
    ("p:two __x64_sys_getpid+4 a=%di b=%si", "EILSEQ", "BAD_INSN_BNDRY", 6),
];

fn faults_are_in_error_log_with_their_carets() {
    let service = Service::restored(1);
    append(&service, "kprobe_events", &format!("p:there {GETPID}\np:two {GETPID} a=%di b=%si"));
    for (command, errno, id, column) in FAULTS {
        replace(&service, "error_log", "");
        let text = format!("p:before {GETPID} %di\n{command}\np:after {GETPID}\n");
        let answer = ask(&service, "POST", "kprobe_events", &text);
        assert!(answer.status >= 400, "{command}: {answer:?}");
        let problem = answer.json();
        assert_eq!(
            (&problem["code"], &problem["id"], &problem["line"]),
            (&(*errno).into(), &(*id).into(), &2.into()),
            "{command}: {problem}"
        );
        let log = cat(&service, "error_log");
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(lines.len(), 3, "{log}");
        assert!(lines[0].contains("] trace_kprobe: error: "), "{log}");
        let words: Vec<&str> = command.split_whitespace().collect();
        assert_eq!(lines[1], format!("  Command: {}", words.join(" ")));
        assert_eq!(lines[2], format!("{:1$}^", "", 11 + column), "{log}");
        let listing = cat(&service, "kprobe_events");
        assert!(listing.contains("p:kprobes/before ") && !listing.contains("after"), "{listing}");
        append(&service, "kprobe_events", "-:before");
    }
    replace(&service, "error_log", "");
    let answer = ask(&service, "POST", "kprobe_events", "p:e no_such_fn\np:f sym %zz\n");
    assert_eq!(answer.json()["line"], 1, "{answer:?}");
    assert_eq!(cat(&service, "error_log").lines().count(), 3, "the first fault ends the write");
    let answer = ask(&service, "POST", "kprobe_events", &format!("p:k {GETPID}\nr:k {GETPID}\n"));
    assert_eq!(
        (&answer.json()["id"], &answer.json()["line"]),
        (&"DIFF_PROBE_TYPE".into(), &2.into())
    );
    replace(&service, "error_log", "");
    assert_eq!(refused(&service, "kprobe_events", "p:e no_such_fn\n-:x\n"), "EINVAL");
    assert_eq!(refused(&service, "kprobe_events", "x:e sym"), "EINVAL");
    assert_eq!(cat(&service, "error_log").lines().count(), 3, "no command at all has no entry");
    assert_eq!(
        refused(&service, "kprobe_events", &format!("p:e {GETPID} {}", "a".repeat(5000))),
        "EINVAL"
    );
}

fn events_are_deleted_by_name_group_and_words() {
    let service = Service::restored(1);
    let define = |names: &[&str]| {
        for name in names {
            append(&service, "kprobe_events", &format!("p:{name} {GETPID} a=%di b=%si"));
        }
    };
    let listed = || {
        let text = cat(&service, "kprobe_events");
        let name = |line: &str| line.split([':', ' ']).nth(1).map(str::to_owned);
        text.lines().filter_map(name).collect::<Vec<_>>().join(" ")
    };
    define(&["one", "g/two", "g/three", "h/four"]);
    assert_eq!(listed(), "kprobes/one g/two g/three h/four");
    append(&service, "kprobe_events", &format!("r:ret {GETPID} x=+0x10($retval)"));
    append(&service, "kprobe_events", &format!("-:ret {GETPID} x=+0x10($retval)"));
    append(&service, "kprobe_events", "");
    assert_eq!(refused(&service, "kprobe_events", "-:h/two"), "ENOENT");
    append(&service, "kprobe_events", &format!("p:i/four {GETPID}\n-:four"));
    assert_eq!(listed(), "kprobes/one g/two g/three", "of each group");
    define(&["h/four"]);
    assert_eq!(refused(&service, "kprobe_events", &format!("-:g/two {GETPID} a=%si")), "ENOENT");
    append(&service, "kprobe_events", &format!("-:g/two {GETPID} a=%di # and all that follows"));
    append(&service, "kprobe_events", "# a comment\n\n-:one");
    assert_eq!(listed(), "g/three h/four");
    append(&service, "events/g/three/enable", "1");
    assert_eq!(refused(&service, "kprobe_events", "-:g/"), "EBUSY");
    append(&service, "events/g/three/enable", "0");
    define(&["g/five"]);
    append(&service, "kprobe_events", "-:g/");
    assert_eq!(listed(), "h/four");
    assert_eq!(ask(&service, "GET", "events/g", "").status, 404);
    let names = |path: &str| {
        let folder = ask(&service, "GET", path, "").json();
        let name = |entry: &serde_json::Value| entry["name"].as_str().unwrap().to_owned();
        folder["entries"].as_array().unwrap().iter().map(name).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names("events"), "ftrace h enable header_page header_event");
    assert_eq!(names("events/h"), "four enable filter");
    assert_eq!(names("events/h/four/"), "filter trigger hist format id enable");
    assert!(names("").contains("kprobe_events kprobe_profile trace trace_pipe"), "{}", names(""));
}

fn an_event_has_probes_of_several_functions() {
    let service = Service::restored(1);
    let [getpid, open] = [(GETPID, "a=%di"), (OPEN, "a=%si")]
        .map(|(function, arg)| format!("p:kprobes/calls {function} {arg}\n"));
    append(&service, "kprobe_events", &getpid);
    append(&service, "events/kprobes/calls/enable", "1");
    append(&service, "kprobe_events", &format!("p:other {GETPID}\n{open}"));
    let other = format!("p:kprobes/other {GETPID}\n");
    assert_eq!(cat(&service, "kprobe_events"), format!("{getpid}{other}{open}"));
    let folder = ask(&service, "GET", "events/kprobes", "").json();
    assert_eq!(folder["entries"].as_array().unwrap().len(), 4, "{folder}");
    let hits = || {
        let calls = profile(&service).into_iter().filter(|(name, ..)| name == "calls");
        calls.map(|(_, hits, misses)| (hits, misses)).collect::<Vec<_>>()
    };
    work(&service, "getpid 3");
    work(&service, "open /dev/null 5");
    assert_eq!(hits(), [(3, 0), (5, 0)], "the second is enabled, as its event is");
    let trace = cat(&service, "trace");
    let hits_of = |function: &str| {
        let at = format!(": calls: ({function}+0x");
        events(&trace).into_iter().filter(|line| line.contains(&at)).count()
    };
    assert_eq!([hits_of(GETPID), hits_of(OPEN)], [3, 5]);

    append(&service, "events/kprobes/calls/filter", "common_pid == 0");
    work(&service, "getpid 1");
    work(&service, "open /dev/null 1");
    assert_eq!((hits(), events(&cat(&service, "trace")).len()), (vec![(4, 0), (6, 0)], 8));
    append(&service, "events/kprobes/calls/filter", "0");

    let one = format!("-:calls {GETPID} a=%di");
    assert_eq!(refused(&service, "kprobe_events", &one), "EBUSY");
    append(&service, "events/kprobes/calls/enable", "0");
    assert_eq!(cat(&service, "events/enable"), "0\n", "both are off");
    assert_eq!(refused(&service, "kprobe_events", &format!("-:calls {GETPID} a=%si")), "ENOENT");
    append(&service, "kprobe_events", &one);
    assert_eq!(cat(&service, "kprobe_events"), format!("{other}{open}"));
    append(&service, "events/kprobes/calls/enable", "1");
    work(&service, "getpid 2");
    work(&service, "open /dev/null 2");
    assert_eq!(hits(), [(8, 0)]);
    append(&service, "events/kprobes/calls/enable", "0");
    append(&service, "kprobe_events", &format!("{getpid}-:calls"));
    assert_eq!(cat(&service, "kprobe_events"), other);
}

fn tracing_is_switched_cleared_and_taken() {
    let service = Service::restored(1);
    append(&service, "kprobe_events", &format!("p:g {GETPID} n=$comm"));
    append(&service, "events/kprobes/g/enable", "1");
    work(&service, "getpid 2");
    append(&service, "tracing_on", "0");
    work(&service, "getpid 3");
    assert_eq!(cat(&service, "tracing_on"), "0\n");
    append(&service, "tracing_on", "1");
    work(&service, "getpid 4");
    assert_eq!(events(&cat(&service, "trace")).len(), 6, "2 and 4");
    assert_eq!(profile(&service), [("g".to_owned(), 9, 0)]);
    replace(&service, "trace", "");
    assert_eq!(events(&cat(&service, "trace")).len(), 0);
    work(&service, "getpid 5");
    let mut pipe = pipe(&service, "trace_pipe");
    let mut taken = || {
        let mut line = String::new();
        pipe.read_line(&mut line).unwrap();
        line
    };
    for _ in 0..5 {
        assert!(taken().ends_with(" n=\"init\"\n"));
    }
    assert!(events(&cat(&service, "trace")).is_empty(), "they were taken");
    work(&service, "getpid 1");
    assert!(taken().contains(": g: (__x64_sys_getpid+0x0/"));
    assert!(cat(&service, "trace").contains("entries-written: 0/6 "), "since it was cleared");
}

fn filters_are_set_and_taken_away() {
    let service = Service::restored(1);
    append(&service, "kprobe_events", "p:w ksys_write fd=%di count=%dx");
    append(&service, "events/kprobes/w/enable", "1");
    let filter = "events/kprobes/w/filter";
    assert_eq!(cat(&service, filter), "none\n");
    append(&service, filter, "count == 1 && comm == \"init\"");
    assert_eq!(cat(&service, filter), "count == 1 && comm == \"init\"\n");
    work(&service, "write 7");
    assert_eq!(events(&cat(&service, "trace")).len(), 7, "answers are longer");
    assert_eq!(refused(&service, filter, "size == 1"), "EINVAL");
    assert_eq!(refused(&service, filter, "count == "), "EINVAL");
    let log = cat(&service, "error_log");
    let expected = "  Command: count ==\n                    ^\n";
    assert!(log.ends_with(expected), "{log}");
    let refused_text =
        "count ==\n        ^\nparse_error: Invalid value (did you forget quotes)?\n\n";
    assert_eq!(cat(&service, filter), refused_text, "the filter before is removed");
    assert_eq!(refused(&service, filter, "count == 1 && size == 1"), "EINVAL");
    let log = cat(&service, "error_log");
    let expected = "  Command: count == 1 && size == 1\n                              ^\n";
    assert!(log.ends_with(expected), "{log}");
    for (text, errno) in [("&& fd == 1", "EPERM"), ("(fd == 1", "ENOENT"), ("fd == \"x", "ESRCH")] {
        let answer = ask(&service, "PUT", filter, text);
        assert_eq!((answer.json()["code"].as_str(), answer.status), (Some(errno), 422), "{text}");
    }
    append(&service, filter, "0");
    assert_eq!(cat(&service, filter), "none\n");
}

fn a_thousand_events_are_defined_by_one_write() {
    let service = Service::restored(1);
    let line = |n: usize| format!("p:e{n} {GETPID} a=%di b=+8(%si):x32\n");
    append(&service, "kprobe_events", &(0..1000).map(line).collect::<String>());
    assert_eq!(cat(&service, "kprobe_events").lines().count(), 1000);
    append(&service, "events/kprobes/e999/enable", "1");
    work(&service, "getpid 3");
    assert_eq!(profile(&service)[999], ("e999".to_owned(), 3, 0));
    append(&service, "events/kprobes/e999/enable", "0");
    replace(&service, "kprobe_events", "");
    assert_eq!(cat(&service, "kprobe_events"), "");
}

fn a_pattern_is_an_event_for_each_function() {
    let service = Service::restored(1);
    append(&service, "kprobe_events", "p:vfs/* vfs_*\np:other getname");
    let listed = cat(&service, "kprobe_events");
    let vfs: Vec<&str> = listed.lines().filter(|line| line.starts_with("p:vfs/")).collect();
    assert!(vfs.len() > 20 && vfs.contains(&"p:vfs/vfs_open vfs_open"), "{listed}");
    let is_named = |line: &&str| {
        let (event, function) = line.trim_start_matches("p:vfs/").split_once(' ').unwrap();
        event == function.replace('.', "_")
    };
    assert!(vfs.iter().all(is_named), "{listed}");
    append(&service, "events/vfs/enable", "1");
    work(&service, "open /init 9");
    append(&service, "events/vfs/enable", "0");
    let hits = profile(&service);
    assert!(hits.contains(&("vfs_open".to_owned(), 9, 0)), "{hits:?}");
    // Where a pattern is written again, each function has its probe already.
    assert_eq!(refused(&service, "kprobe_events", "p:vfs/* vfs_ope?"), "EEXIST");
    append(&service, "kprobe_events", "-:vfs/");
    assert_eq!(cat(&service, "kprobe_events").lines().count(), 1);
    for (line, errno, id) in [
        ("p:none/* no_such_*", "EINVAL", "no function matches `no_such_*`"),
        ("p:one vfs_*", "EINVAL", "leave out the event's name"),
        ("p:g/* vfs_open", "EINVAL", "stands for the function of a pattern"),
        ("p:boot/* startup_6*", "EOPNOTSUPP", "startup_6*"),
    ] {
        assert_eq!(refused(&service, "kprobe_events", line), errno, "{line}");
        let log = cat(&service, "error_log");
        let last: Vec<&str> = log.lines().rev().take(3).collect();
        assert!(last.join("\n").contains(id), "{line}: {log}");
    }
    // Some of these are refused, which the log says.
    append(&service, "kprobe_events", "p:some/* *startup*");
    let log = cat(&service, "error_log");
    assert!(log.contains(" functions were left out, the first of them: "), "{log}");
    assert!(cat(&service, "kprobe_events").contains("p:some/"));
}

fn very_many_events_are_defined_enabled_and_deleted_at_once() {
    const MANY: usize = 10_000;
    let service = Service::restored(1);
    let lines = |numbers: std::ops::Range<usize>, line: &dyn Fn(usize) -> String| {
        numbers.map(line).collect::<String>()
    };
    let define = |n: usize| format!("p:e{n} {GETPID}\n");
    let too_large = ask(&service, "POST", "kprobe_events", &lines(0..5 * MANY, &define));
    assert_eq!((too_large.status, &too_large.json()["code"]), (413, &"EMSGSIZE".into()));
    assert_eq!(cat(&service, "kprobe_events"), "", "nothing of it was read");
    append(&service, "kprobe_events", &lines(0..MANY, &define));
    assert_eq!(cat(&service, "kprobe_events").lines().count(), MANY);
    let events = ask(&service, "GET", "events/kprobes", "").json();
    assert_eq!(events["entries"].as_array().unwrap().len(), MANY + 2);
    append(&service, "tracing_on", "0");
    append(&service, "events/enable", "1");
    work(&service, "getpid 1");
    append(&service, "events/enable", "0");
    work(&service, "getpid 1");
    assert!(profile(&service).iter().all(|(_, hits, misses)| hits + misses == 1));
    let delete = |n: usize| format!("-:e{n}\n");
    let answer =
        ask(&service, "POST", "kprobe_events", &(lines(1..MANY, &delete) + "-:e7\n-:e0\n"));
    let problem = answer.json();
    assert_eq!((&problem["code"], &problem["line"]), (&"ENOENT".into(), &MANY.into()));
    assert_eq!(cat(&service, "kprobe_events"), format!("p:kprobes/e0 {GETPID}\n"));
    replace(&service, "kprobe_events", "");
    assert_eq!(cat(&service, "kprobe_events"), "");
}

/// Waits until a text does not change any more, and returns it.
fn until_it_stays(read: impl Fn() -> String) -> String {
    let mut before = read();
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let now = read();
        if now == before {
            return now;
        }
        before = now;
    }
}

fn a_reader_that_never_reads_trace_pipe_blocks_no_other() {
    // Of more than 1 KiB as text: a socket takes less than half of them.
    const EACH: u64 = 2000;
    let service = Service::restored(1);
    append(&service, "kprobe_events", &format!("p:g {GETPID} a=@{GETPID}:x64[64]"));
    append(&service, "events/kprobes/g/enable", "1");
    let mut never = UnixStream::connect(service.socket()).unwrap();
    never.write_all(b"GET /v1/tracefs/trace_pipe HTTP/1.0\r\n\r\n").unwrap();
    getpid_in_steps(&service, 0, 2 * EACH);
    // What that reader was given is with it, or in the sockets: it is not more than fits there.
    let trace = until_it_stays(|| cat(&service, "trace"));
    let left = events(&trace).len() as u64;
    assert!((EACH..2 * EACH).contains(&left), "{left}");
    let written = format!(" {left}/{} ", 2 * EACH);
    assert!(trace.contains(&written), "{}", trace.lines().take(4).collect::<String>());
    let mut reader = pipe(&service, "trace_pipe");
    for _ in 0..left {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.contains(": g: (__x64_sys_getpid+0x0/"), "{line}");
    }
    work(&service, "getpid 1");
    assert_eq!(profile(&service), [("g".to_owned(), 2 * EACH + 1, 0)]);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.contains(": g: (__x64_sys_getpid+0x0/"), "the other gets nothing more: {line}");
}

fn refused_reads_and_writes_report_the_reason() {
    let service = Service::restored(1);
    append(&service, "kprobe_events", &format!("p:e {GETPID}"));
    for (path, errno) in [
        ("kprobe_profile", "EACCES"),
        ("trace_pipe", "EACCES"),
        ("kprobes/list", "EACCES"),
        ("events/kprobes/e/format", "EACCES"),
        ("events/kprobes/e/id", "EACCES"),
        ("events/kprobes", "EISDIR"),
        ("kprobes", "EISDIR"),
        ("events/kprobes/f/enable", "ENOENT"),
        ("no_such_file", "ENOENT"),
        ("events/kprobes/e/no_such_file", "ENOENT"),
        ("tracing_on", "EINVAL"),
        ("kprobes/enabled", "EINVAL"),
        ("events/kprobes/e/enable", "EINVAL"),
    ] {
        assert_eq!(refused(&service, path, "maybe"), errno, "{path}");
    }
    for path in ["..", "events/../kprobe_events", "events/kprobes/e%00", "%2e%2e/trace", "a%2fb"] {
        assert!(ask(&service, "GET", path, "").status >= 400, "{path}");
    }
    let path = "/v1/tracefs/kprobe_events";
    let answer = http::ask(service.socket(), "POST", path, &[], b"p:e \xff\xfe");
    assert_eq!(answer.json()["code"], "EINVAL", "{answer:?}");
    assert_eq!(cat(&service, "kprobes/enabled"), "1\n");
    append(&service, "kprobes/enabled", "0");
    assert_eq!(cat(&service, "kprobes/enabled"), "0\n");
    append(&service, "kprobes-optimization", "0");
    assert_eq!(cat(&service, "kprobes-optimization"), "0\n");
    assert!(cat(&service, "kprobes/list").contains(GETPID));
    assert!(cat(&service, "kprobes/blacklist").lines().count() > 10);
}

fn the_session_of_the_docs_runs_in_a_shell() {
    let service = Service::restored(1);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tracer-session.sh");
    let mut session = Command::new(script);
    session.env("EXOPROBE_SOCKET", service.socket()).env("EXOPROBE", exoprobe().get_program());
    let output = finish(&mut session, PATIENCE);
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    let trace = text.split("$ cat /sys/kernel/debug/tracing/trace\n").nth(1);
    assert_lines_are_the_tracers(trace.unwrap_or_else(|| panic!("{text}")), 6);
    assert!(text.contains("name: myprobe\nID: "), "{text}");
    let profile = format!("  {:<44} {:>15} {:>15}\n", "myretprobe", 3, 0);
    assert!(text.contains(&profile), "{text}");
    assert_eq!(cat(&service, "kprobe_events"), "", "they were cleared");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let socket = service.socket().to_str().unwrap();
    assert!(!mounts.contains(socket), "nothing is left mounted: {mounts}");
}
