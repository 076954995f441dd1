//! Sessions of triggers in trace instances. No shell hits the events.

use super::super::parts::list;
use super::super::session::Session;
use super::variables;

const FOO: &str = "instances/foo";

/// Items of the lists whose sessions at the top differ from the kernel's, as those in an instance
/// would (`differences.txt`).
const DIFFER: [&str; 8] = [
    "enable_event:kprobes:f:0",
    "enable_event:kprobes:f:unlimited",
    "f hist:keys=a:vals=kprobes.f.$qa",
    "f hist:keys=a:vals=$zz",
    "f hist:keys=a:vals=$qa.hex",
    "f hist:keys=a:vals=b+1 ; f hist:keys=a:vals=b+2",
    "g hist:keys=a:qa=a ; f hist:keys=a:vals=$qa",
    "f hist:keys=a:vals=$qa ; e !hist:keys=a:qa=a,qc=5,qz=0,qt=common_timestamp.usecs",
];

/// The other items of a list.
fn equal(name: &str) -> impl Iterator<Item = String> {
    list(name).into_iter().filter(|text| !DIFFER.contains(&text.as_str()))
}

/// A path in the instance.
fn of(path: &str) -> String {
    format!("{FOO}/{path}")
}

/// All sessions.
pub(super) fn all() -> Vec<Session> {
    let mut sessions = of_one_event();
    sessions.extend(switches());
    let texts = equal("variables of other events");
    sessions.extend(variables::of_other_events(&of(""), texts));
    sessions.extend(beside_others());
    sessions
}

/// Triggers of one event, set and removed.
fn of_one_event() -> Vec<Session> {
    let trigger = of("events/kprobes/e/trigger");
    let session = |texts: &[&str]| {
        let made = Session::of_event().make_folder(FOO);
        let written = made.append_each(&trigger, texts);
        let files = ["events/kprobes/e/trigger", "events/kprobes/e/enable", "error_log"];
        let read = files.iter().fold(written, |session, file| session.read(file).read(&of(file)));
        read.read(&of("events/kprobes/e/hist")).read(&of("set_event"))
    };
    let mut sessions = Vec::new();
    for texts in [
        &["stacktrace", "stacktrace"][..],
        &["traceoff:5", "!traceoff"],
        &["snapshot", "snapshot:1"],
        &["hist:keys=a", "hist:keys=i"],
        &["hist:keys=a", "hist:keys=a"],
        &["hist:keys=a", "!hist:keys=a"],
        &["hist:keys=a", "hist:keys=a:pause", "hist:keys=a:continue"],
        &["hist:keys=a", "hist:keys=a:clear"],
        &["hist:keys=a:clear"],
        &["hist:keys=zz", "hist:keys=a:vals=zz"],
        &["hist:keys=a if zz == 1"],
        &["traceoff if a == 1", "!traceoff"],
        &["nothing"],
    ] {
        sessions.push(session(texts));
    }
    let set = || session(&["hist:keys=a", "traceoff"]);
    sessions.push(set().replace(&trigger, "hist:keys=i"));
    sessions.push(set().append("kprobe_events", "-:e"));
    sessions.push(set().append(&of("events/kprobes/e/enable"), "1"));
    sessions.push(set().append(&of("events/enable"), "0").append("events/enable", "1"));
    sessions.push(set().remove_folder(FOO).append("kprobe_events", "-:e"));
    sessions.push(set().remove_folder(FOO).make_folder(FOO));
    sessions
}

/// Triggers that switch other events.
fn switches() -> Vec<Session> {
    let trigger = of("events/kprobes/e/trigger");
    let define = || {
        let defined = Session::of_definitions(&[
            "p:e __x64_sys_sethostname a=%di",
            "p:f __x64_sys_setdomainname b=%di",
            "p:g/e __x64_sys_sethostname b=%di",
        ]);
        defined.make_folder(FOO)
    };
    let read = |session: Session| {
        let files = ["events/kprobes/e/enable", "events/kprobes/f/enable"];
        let read = files.iter().fold(session, |session, file| session.read(file).read(&of(file)));
        read.read(&trigger).read(&of("events/kprobes/f/trigger")).read(&of("error_log"))
    };
    let mut sessions = Vec::new();
    for text in equal("switches of events") {
        let words: Vec<&str> = text.split(" ; ").collect();
        let written = define().append_each(&trigger, words);
        sessions.push(read(written));
    }
    let switched = || define().append(&trigger, "enable_event:kprobes:f");
    sessions.push(read(switched().append("kprobe_events", "-:f").append("kprobe_events", "-:e")));
    sessions.push(read(switched().append(&of("events/kprobes/f/enable"), "1")));
    sessions.push(read(switched().append("events/kprobes/f/enable", "1")));
    sessions.push(read(switched().append(&trigger, "!enable_event:kprobes:f")));
    sessions
}

/// Triggers of an instance beside those of the top and of another instance.
fn beside_others() -> Vec<Session> {
    let file = |at: &str, event: &str, name: &str| format!("{at}events/kprobes/{event}/{name}");
    let places = ["", "instances/foo/", "instances/bar/"];
    let define = || {
        let events =
            ["p:e __x64_sys_sethostname a=%di b=%si", "p:f __x64_sys_setdomainname a=%di b=%si"];
        Session::of_definitions(&events).make_folder(FOO).make_folder("instances/bar")
    };
    let mut sessions = Vec::new();
    let snapshot = "hist:keys=a:m=b:onmax($m).snapshot()";
    for texts in [
        ["hist:keys=a", "hist:keys=b", "hist:keys=a,b"],
        ["hist:keys=a", "!hist:keys=a", "hist:keys=a:clear"],
        ["traceoff", "traceon", "stacktrace"],
        ["hist:name=foo:keys=a", "hist:name=foo:keys=a", "hist:name=foo:keys=b"],
        [snapshot, snapshot, snapshot],
        ["enable_event:kprobes:f", "disable_event:kprobes:f", "enable_event:kprobes:e"],
        ["hist:keys=a:q=b", "hist:keys=a:x=b-$q", "hist:keys=a:q=a"],
    ] {
        let written = places
            .iter()
            .zip(texts)
            .fold(define(), |session, (at, text)| session.append(&file(at, "e", "trigger"), text));
        let read = places.iter().fold(written, |session, at| {
            let session = session.read(&file(at, "e", "trigger")).read(&file(at, "e", "hist"));
            session.read(&file(at, "f", "enable")).read(&format!("{at}error_log"))
        });
        sessions.push(read);
    }
    let taking = |value: &str| {
        let set = define().append(&file(places[1], "e", "trigger"), snapshot);
        set.replace(&of("snapshot"), value).replace("snapshot", value)
    };
    sessions.extend(["0", "1"].map(taking));
    let made = || {
        let made = define().append("synthetic_events", "lat u64 v");
        let made = made.append(&file(places[1], "e", "trigger"), "hist:keys=a:q=b");
        made.append(
            &file(places[1], "f", "trigger"),
            "hist:keys=a:x=b-$q:onmatch(kprobes.e).lat($x)",
        )
    };
    let synthetic = of("events/synthetic/lat/trigger");
    let read = |session: Session| {
        let read = session.read(&synthetic).read("events/synthetic/lat/trigger");
        read.read(&file(places[1], "f", "trigger")).read("synthetic_events").read(&of("error_log"))
    };
    sessions.push(read(made()));
    sessions.push(read(made().append("synthetic_events", "!lat")));
    sessions.push(read(made().append(&synthetic, "hist:keys=v").append(&synthetic, "traceoff")));
    sessions
}
