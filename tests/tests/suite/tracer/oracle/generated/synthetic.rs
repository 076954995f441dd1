//! Sessions of synthetic events.

use super::super::parts::list;
use super::super::session::Session;

const FILE: &str = "synthetic_events";
/// The folder of the event `lat`.
const OF: &str = "events/synthetic/lat";

fn read(session: Session) -> Session {
    session.read(FILE).read("dynamic_events")
}

/// Definitions alone.
fn commands() -> Vec<Session> {
    let none = || Session::of_definitions(&[]);
    let unescaped = |text: &str| text.replace("\\n", "\n");
    let mut sessions = Vec::new();
    for text in list("synthetic events") {
        let written = read(none().append(FILE, &unescaped(&text)));
        sessions.push(written.read(&format!("{OF}/format")));
    }
    for number in [64, 65] {
        let fields: String = (0..number).map(|field| format!(" u8 f{field};")).collect();
        sessions.push(read(none().append(FILE, &format!("lat{fields}"))));
    }
    for text in list("dynamic events") {
        sessions.push(read(none().append("dynamic_events", &unescaped(&text))));
    }
    sessions
}

/// Definitions of synthetic events, and files of those.
pub(super) fn definitions() -> Vec<Session> {
    let (file, of) = (FILE, OF);
    let none = || Session::of_definitions(&[]);
    let mut sessions = commands();
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
    sessions.extend(back_traces(of).into_iter().map(state));
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

/// A synthetic event with a back-trace, whose folder is `of`, and what is written to its files.
fn back_traces(of: &str) -> Vec<Session> {
    let define = || {
        let none = Session::of_definitions(&[]);
        none.append("synthetic_events", "lat u64 a1; unsigned long[] s1; u8 e1\n")
    };
    let [trigger, filter] = ["trigger", "filter"].map(|name| format!("{of}/{name}"));
    let texts = list("triggers of back-traces");
    let mut sessions: Vec<Session> =
        texts.iter().map(|text| define().append(&trigger, text)).collect();
    sessions.push(define().append(&filter, "e1 == 1"));
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

/// Handlers that make synthetic events of fields and variables of another event. No shell hits
/// them.
pub(super) fn values_of_other_events() -> Vec<Session> {
    let (trigger, other) = ("events/kprobes/e/trigger", "events/kprobes/f/trigger");
    let define = |definition: &str, keys: &str| {
        let events = [
            "p:e __x64_sys_sethostname a1=%di i1=%di:s32",
            "p:f __x64_sys_setdomainname a1=%di f1=%di g1=%di:s32 t1=+0(%si):string",
        ];
        let defined = Session::of_definitions(&events).append("synthetic_events", definition);
        defined.append(
            other,
            &format!("hist:{keys}:tx=t1,cm=common_pid.execname,st=common_stacktrace if f1 == 1"),
        )
    };
    let read = |session: Session| session.read(trigger).read(other).read("synthetic_events");
    let mut sessions = Vec::new();
    for text in list("values of other events") {
        let (kind, value) = text.rsplit_once(' ').expect("a type and a value");
        let command = format!("hist:keys=a1:al=$tx:onmatch(kprobes.f).trace(sy,{value})");
        sessions.push(read(define(&format!("sy {kind} x1"), "keys=a1").append(trigger, &command)));
    }
    let command = "hist:keys=a1:onmatch(kprobes.f).sy(kprobes.f.f1)";
    for keys in ["keys=i1", "keys=a1.hex", "keys=common_pid", "keys=a1,i1"] {
        let command = format!("hist:{keys}:onmatch(kprobes.f).sy(kprobes.f.f1)");
        for of_other in ["keys=a1", "keys=g1", "keys=common_pid.execname", "keys=f1.log2,g1"] {
            sessions.push(read(define("sy u64 x1", of_other).append(trigger, &command)));
        }
    }
    let set = || define("sy u64 x1", "keys=a1").append(trigger, command);
    let removal = format!("!{command}");
    let twice = "hist:keys=a1:onmax($mx).sy(kprobes.f.f1):mx=i1";
    let made = "hist:keys=a1:synthetic_f1=f1 if f1 == 1";
    sessions.push(read(set().append(trigger, &removal)));
    sessions.push(read(set().append(other, &format!("!{made}"))));
    sessions.push(read(set().append(trigger, twice)));
    sessions.push(read(set().append(trigger, twice).append(trigger, &format!("!{twice}"))));
    sessions.push(read(set().replace(other, "")));
    sessions.push(read(set().replace(trigger, "")));
    let own = define("sy u64 x1", "keys=a1").append(other, made).append(trigger, command);
    sessions.push(read(own.append(trigger, &removal)));
    sessions
}
