//! Sessions of synthetic events.

use super::super::parts::list;
use super::super::session::Session;

/// Definitions of synthetic events, and files of those.
pub(super) fn definitions() -> Vec<Session> {
    let (file, of) = ("synthetic_events", "events/synthetic/lat");
    let none = || Session::of_definitions(&[]);
    let read = |session: Session| session.read(file).read("dynamic_events");
    let unescaped = |text: &str| text.replace("\\n", "\n");
    let mut sessions = Vec::new();
    for text in list("synthetic events") {
        let written = read(none().append(file, &unescaped(&text)));
        sessions.push(written.read(&format!("{of}/format")));
    }
    for number in [64, 65] {
        let fields: String = (0..number).map(|field| format!(" u8 f{field};")).collect();
        sessions.push(read(none().append(file, &format!("lat{fields}"))));
    }
    for text in list("dynamic events") {
        sessions.push(read(none().append("dynamic_events", &unescaped(&text))));
    }
    let define = || none().append(file, "lat u64 a1; s32 b1; char c1[16]\n");
    let state = |session: Session| {
        let names = ["enable", "filter", "trigger", "hist"];
        let read =
            names.iter().fold(read(session), |read, name| read.read(&format!("{of}/{name}")));
        read.read("events/synthetic/enable").read("set_event").read("available_events")
    };
    for (name, value) in [
        ("enable", "1"),
        ("enable", "x"),
        ("filter", "a1 > 5 && c1 == \"x\""),
        ("trigger", "traceoff:5 if b1 < 0"),
        ("trigger", "hist:keys=a1.log2:vals=b1:sort=b1 if b1 < 0"),
        ("trigger", "hist:keys=c1,common_pid.execname:mx=a1:onmax($mx).save(b1)"),
        ("trigger", "hist:keys=zz"),
        ("trigger", "hist:keys=common_latency"),
    ] {
        let written = define().append(&format!("{of}/{name}"), value);
        sessions.push(state(written.clone()));
        sessions.push(state(written.clone().append(file, "!lat")));
        sessions.push(state(written.replace(file, "")));
    }
    for word in ["synthetic", "synthetic:lat", "lat", "synthetic:*"] {
        sessions.push(state(define().append("set_event", word)));
    }
    sessions.push(state(define().append("events/synthetic/enable", "1")));
    sessions.push(state(define().append("events/synthetic/filter", "a1 == 1")));
    sessions.push(state(define().replace(file, "")));
    sessions.push(state(define().replace(file, "lat u64 a1\n")));
    let both = || define().append("kprobe_events", "p:synthetic/e vfs_read\np:lat vfs_write\n");
    let all = |session: Session| read(session).read("kprobe_events").read("error_log");
    sessions.push(all(both().append("kprobe_events", "p:synthetic/lat vfs_read")));
    for line in ["-:lat", "-:synthetic/lat", "-:synthetic/e", "-:synthetic/", "-:kprobes/lat"] {
        sessions.push(all(both().append("dynamic_events", line)));
    }
    for enabled in ["synthetic/lat", "kprobes/lat"] {
        let enable = both().append(&format!("events/{enabled}/enable"), "1");
        sessions.push(all(enable.replace("dynamic_events", "")));
    }
    let switch = "enable_event:synthetic:lat";
    let switched = none().append("kprobe_events", "p:e __x64_sys_sethostname a1=%di");
    let switched = switched.append(file, "lat u64 a1").append("events/kprobes/e/trigger", switch);
    sessions.push(state(switched.clone()).read("events/kprobes/e/trigger"));
    sessions.push(state(switched.append(file, "!lat")).read("events/kprobes/e/trigger"));
    sessions
}

/// Filters of synthetic events, and conditions of their triggers.
pub(super) fn filters() -> Vec<Session> {
    let (group, of) = ("events/synthetic/filter", "events/synthetic/lat");
    let [filter, trigger] = ["filter", "trigger"].map(|name| format!("{of}/{name}"));
    let define = || {
        let lines = "lat u64 a1; s32 b1; char c1[16]; char d1[]; u8 e1\nlaz s64 b1\n";
        Session::of_definitions(&[]).append("synthetic_events", lines)
    };
    let read = |session: Session| {
        session.read(&filter).read("events/synthetic/laz/filter").read(&trigger).read("error_log")
    };
    let mut sessions = Vec::new();
    for text in list("filters of synthetic events") {
        sessions.push(read(define().append(&filter, &text)));
        sessions.push(read(define().append(&filter, "a1 == 1").append(&filter, &text)));
        sessions.push(read(define().append(group, &text)));
        for name in ["traceoff", "hist:keys=a1"] {
            sessions.push(read(define().append(&trigger, &format!("{name} if {text}"))));
        }
    }
    sessions.push(read(define().append(&filter, "zz == 1").append(&filter, "0")));
    sessions.push(read(define().append(&filter, "zz == 1").append(&filter, "a1 == 1")));
    sessions
}

/// Handlers that make synthetic events. No shell hits them.
pub(super) fn made_events() -> Vec<Session> {
    let (trigger, other) = ("events/kprobes/e/trigger", "events/kprobes/f/trigger");
    let define = |definition: &str| {
        let events = [
            "p:e __x64_sys_sethostname a1=%di s1=+0(%si):string i1=%di:s32 u1=%di:u8 c1=%di:char",
            "p:f __x64_sys_setdomainname a1=%di i1=%di:s32",
        ];
        let defined = Session::of_definitions(&events).append("synthetic_events", definition);
        defined.append(other, "hist:keys=a1:ts=common_timestamp")
    };
    let read = |session: Session| {
        session.read(trigger).read("synthetic_events").read("events/kprobes/e/hist")
    };
    let mut sessions = Vec::new();
    for text in list("events that are made") {
        let command = format!("hist:keys=a1:{text}");
        sessions.push(read(define("sy u64 x1").append(trigger, &command)));
    }
    for text in list("types of made events") {
        let (kind, value) = text.rsplit_once(' ').expect("a type and a value");
        let command =
            format!("hist:keys=a1:mx=a1,mi=i1,mu=u1:onmatch(kprobes.f).trace(sy,{value})");
        sessions.push(read(define(&format!("sy {kind} x1")).append(trigger, &command)));
    }
    let command = "hist:keys=a1:onmatch(kprobes.f).trace(sy,a1)";
    let making = || define("sy u64 x1").append(trigger, command);
    sessions.push(read(making().append("synthetic_events", "!sy")));
    sessions.push(read(making().replace("synthetic_events", "")));
    let removed = making().append(trigger, &format!("!{command}"));
    sessions.push(read(removed.append("synthetic_events", "!sy")));
    sessions
}
