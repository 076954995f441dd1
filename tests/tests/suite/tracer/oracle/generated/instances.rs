//! Sessions of trace instances.

use super::super::session::Session;

const FOO: &str = "instances/foo";

/// A path in the instance.
fn of(path: &str) -> String {
    format!("{FOO}/{path}")
}

/// All sessions.
pub(super) fn all() -> Vec<Session> {
    let mut sessions = folders();
    sessions.extend(events());
    sessions.extend(files());
    sessions
}

/// Folders that are made and removed, or not.
fn folders() -> Vec<Session> {
    let none = || Session::of_definitions(&[]).read("instances/");
    let made = || none().make_folder(FOO);
    let mut sessions = vec![
        Session::of_event().make_folder(FOO).read(&of("")).read(&of("events/kprobes/e/")),
        made().read(&of("per_cpu/")).read(&of("events/kprobes/")),
        made().make_folder(FOO),
        made().make_folder("instances/bar").remove_folder(FOO).remove_folder(FOO),
        made().remove_folder(FOO).make_folder(FOO).read(&of("tracing_on")),
        none().make_folder("instances/a b").make_folder("instances/kprobe_events"),
        none().make_folder(&format!("instances/{}", "n".repeat(255))),
    ];
    for path in
        ["foo", "events/x", "instances/foo/bar", "instances/foo/instances", "events", "trace"]
    {
        sessions.push(made().make_folder(path));
    }
    for path in [
        "instances",
        "events",
        "instances/none",
        "instances/foo/events",
        "instances/foo/trace",
        "none",
    ] {
        sessions.push(made().remove_folder(path));
    }
    sessions
}

/// Events that are enabled and filtered in an instance.
fn events() -> Vec<Session> {
    let (enable, filter) = (of("events/kprobes/e/enable"), of("events/kprobes/e/filter"));
    let state = |session: Session| {
        let files = ["events/kprobes/e/enable", "events/kprobes/enable", "events/kprobes/e/filter"];
        let files = files.into_iter().chain(["set_event", "error_log"]);
        let read = files.fold(session, |session, file| session.read(file).read(&of(file)));
        read.read("kprobe_events").read(&of("events/kprobes/e/format"))
    };
    let made = || Session::of_event().make_folder(FOO);
    let on = || made().append(&enable, "1");
    let mut sessions = vec![
        on(),
        on().append("events/kprobes/e/enable", "1").append(&enable, "0"),
        on().append("kprobe_events", "-:e"),
        on().replace("kprobe_events", "p:f vfs_read"),
        on().append(&enable, "0").append("kprobe_events", "-:e"),
        on().remove_folder(FOO),
        on().remove_folder(FOO).append("kprobe_events", "-:e"),
        on().append(&filter, "a == 1").append("events/kprobes/e/filter", "a == 2"),
        made().append(&filter, "a == 1").append("kprobe_events", "-:e"),
        made().append(&filter, "a == 1").append(&filter, "0"),
        made().append(&filter, "zz == 1"),
        made().append("events/kprobes/e/filter", "zz == 1").append(&filter, "a == x"),
        made().append(&of("events/kprobes/filter"), "zz == 1"),
        made().append(&of("events/kprobes/filter"), "a == 1"),
        made().append(&of("events/kprobes/enable"), "1"),
        made().append(&of("set_event"), "kprobes:e").append(&of("set_event"), "!e"),
        on().replace(&of("set_event"), ""),
        on().replace("set_event", ""),
        made().append("set_event", "e").append(&of("set_event"), "none"),
        on().append("kprobe_events", "-:e").append(&enable, "0").append("kprobe_events", "-:e"),
        made().append("events/kprobes/e/trigger", "traceoff").append(&enable, "1"),
        made().append(&of("events/kprobes/e/trigger"), "traceoff"),
        made().append(&of("kprobe_events"), "p:f vfs_read"),
    ];
    for value in ["0", "2", "x", ""] {
        sessions.push(made().append(&enable, value));
    }
    let mut sessions: Vec<Session> = sessions.into_iter().map(state).collect();
    let lat = "events/synthetic/lat/enable";
    let made =
        || Session::of_definitions(&[]).append("synthetic_events", "lat u64 a1").make_folder(FOO);
    let read = |session: Session| session.read("synthetic_events").read(lat).read(&of(lat));
    sessions.push(read(made().append(&of(lat), "1").append("synthetic_events", "!lat")));
    sessions.push(read(made().append(lat, "1").append("synthetic_events", "!lat")));
    sessions
}

/// Files about the events of an instance.
fn files() -> Vec<Session> {
    let made = || Session::of_definitions(&[]).make_folder(FOO);
    let marked = |session: Session| {
        let files = ["trace", "per_cpu/cpu0/stats", "tracing_on"];
        let marked = session.append(&of("trace_marker"), "mark");
        files.into_iter().fold(marked, |session, file| session.read(file).read(&of(file)))
    };
    let mut sessions = vec![
        marked(made()),
        marked(made().append("trace_marker", "of the top")),
        marked(made().append(&of("tracing_on"), "0")),
        marked(made().append(&of("options/markers"), "0")),
        marked(made().append(&of("trace_options"), "nocontext-info")).read("trace_options"),
        marked(made().append(&of("trace_marker"), "x").replace(&of("trace"), "")),
        marked(made().append(&of("trace_marker"), "x").append(&of("trace_clock"), "local")),
        marked(made().append(&of("trace_marker"), "x").replace("trace", "")),
        marked(made()).append(&of("snapshot"), "1").append(&of("trace_marker"), "after"),
    ];
    for file in ["current_tracer", "available_tracers", "trace_clock", "trace_options"] {
        sessions.push(made().append(&of("current_tracer"), "nop").read(&of(file)));
    }
    for file in [
        "README",
        "kprobe_events",
        "dynamic_events",
        "synthetic_events",
        "kprobe_profile",
        "available_events",
        "saved_cmdlines",
        "instances",
    ] {
        let read = made().append(&of("no_such_file"), "x").read(&of(file));
        sessions.push(read.append(&of(file), "x"));
    }
    for size in ["64", "0", "x", "-1"] {
        sessions.push(made().append(&of("buffer_size_kb"), size));
    }
    sessions
}
