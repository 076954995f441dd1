//! Triggers of events in trace instances: each instance has its own.

use std::sync::Arc;
use std::time::Duration;

use exoprobe_tests::harness::Case;
use exoprobe_tests::{Service, TestGuest, cases};
use exoprobe_tracer::Tracer;

use crate::support::tracer::{append, ask, cat, events, refused, replace, total, work};

pub(crate) const CASES: &[Case] = cases![
    histograms_of_instances_count_each_call_once needs [Kvm, QuickKernel],
    triggers_that_change_during_hits_lose_none needs [Kvm, Repeat],
    a_trigger_acts_on_its_instance_alone needs [Kvm, Repeat],
    events_are_switched_within_an_instance needs [Kvm, Repeat],
    faults_are_logged_in_the_instance needs [Kvm, Repeat],
];

const GETPID: &str = "__x64_sys_getpid";
const PLACES: [&str; 3] = ["", "instances/foo/", "instances/bar/"];

/// A guest with an event `a` of getpid, and two instances.
struct Traced {
    guest: TestGuest,
    tracer: Tracer,
}

impl Traced {
    fn new() -> Self {
        let guest = TestGuest::restored(1);
        let tracer = Tracer::new(Arc::clone(&guest.engine), 1);
        let traced = Self { guest, tracer };
        traced.write("kprobe_events", &format!("p:a {GETPID} n=\\7\n"));
        for instance in ["instances/foo", "instances/bar"] {
            traced.tracer.make_folder(instance).unwrap();
        }
        traced
    }

    fn write(&self, path: &str, text: &str) {
        let written = self.tracer.write(path, text);
        written.unwrap_or_else(|error| panic!("{text} > {path}: {error}"));
    }

    /// Hits that the first histogram of `a` has at each place.
    fn hits(&self) -> [u64; 3] {
        let hist = |at| self.tracer.read(&format!("{at}events/kprobes/a/hist")).unwrap();
        PLACES.map(|at| total(&hist(at), "Hits:"))
    }
}

fn histograms_of_instances_count_each_call_once() {
    const CALLS: u64 = 2000;
    let traced = Traced::new();
    let guest = &traced.guest;
    let commands = ["hist:keys=common_pid", "hist:keys=n", "hist:keys=n if n == 8"];
    for (at, command) in PLACES.iter().zip(commands) {
        traced.write(&format!("{at}events/kprobes/a/trigger"), command);
    }
    let calls = || assert_eq!(guest.work(&format!("getpid {CALLS}")), CALLS);
    calls();
    assert_eq!(traced.hits(), [CALLS, CALLS, 0], "by breakpoints, or in part");
    guest.optimize("a");
    let before = guest.vm.exit_counts().breakpoint;
    traced.write("instances/foo/events/kprobes/a/trigger", "hist:keys=n:pause");
    calls();
    assert_eq!(traced.hits(), [2 * CALLS, CALLS, 0], "it is paused in `foo` alone");
    traced.write("instances/foo/events/kprobes/a/trigger", "hist:keys=n:continue");
    traced.write("events/kprobes/a/trigger", "hist:keys=common_pid:clear");
    calls();
    assert_eq!(traced.hits(), [CALLS, 2 * CALLS, 0], "and cleared at the top alone");
    assert_eq!(guest.vm.exit_counts().breakpoint, before, "without an exit");
    let status = guest.status("a");
    assert_eq!(status.hits, status.recorded + status.filtered + status.lost, "{status:?}");
    assert_eq!((status.hits, status.recorded, status.lost), (3 * CALLS, 0, 0));
    let text = PLACES.map(|at| traced.tracer.read(&format!("{at}trace")).unwrap());
    assert!(text.iter().all(|text| !text.contains(": a: (")), "no trace has them: {text:?}");
    drop(traced.tracer);
    traced.guest.engine.remove_histograms("kprobes", "a").unwrap();
    traced.guest.assert_unharmed();
}

fn triggers_that_change_during_hits_lose_none() {
    /// Between two changes, each of which stops the guest.
    const RUN: Duration = Duration::from_millis(2);
    let traced = Traced::new();
    let guest = &traced.guest;
    let [of_top, of_foo, of_bar] = PLACES.map(|at| format!("{at}events/kprobes/a/trigger"));
    traced.write(&of_foo, "hist:keys=n");
    let calls = guest.work_during("getpid 8000", 2, |_| {
        for (trigger, command) in [
            (&of_bar, "hist:keys=n"),
            (&of_top, "stacktrace if n == 8"),
            (&of_bar, "!hist:keys=n"),
            (&of_top, "!stacktrace"),
        ] {
            traced.write(trigger, command);
            guest.engine.optimize();
            std::thread::sleep(RUN);
        }
    });
    let hist = traced.tracer.read("instances/foo/events/kprobes/a/hist").unwrap();
    let status = guest.status("a");
    assert_eq!((total(&hist, "Hits:"), status.hits), (calls, calls));
    assert_eq!((status.lost, status.recorded, status.filtered), (0, 0, calls), "{status:?}");
}

/// A service with events `a` of getpid and `b` of open, and two instances.
fn service() -> Service {
    let service = Service::restored(1);
    let lines = format!("p:a {GETPID} n=\\7\np:b do_sys_openat2");
    append(&service, "kprobe_events", &lines);
    for instance in ["instances/foo", "instances/bar"] {
        assert_eq!(ask(&service, "PUT", instance, "").status, 204);
    }
    service
}

/// Number of events in a file at each place.
fn shown(service: &Service, file: &str) -> [usize; 3] {
    PLACES.map(|at| events(&cat(service, &format!("{at}{file}"))).len())
}

fn a_trigger_acts_on_its_instance_alone() {
    let service = service();
    for at in PLACES {
        append(&service, &format!("{at}events/kprobes/a/enable"), "1");
    }
    append(&service, "instances/foo/events/kprobes/a/trigger", "traceoff:1");
    append(&service, "instances/bar/events/kprobes/a/trigger", "snapshot:1");
    work(&service, "getpid 5");
    // The hit that stops the trace is in it; the one that takes a snapshot begins the next trace.
    assert_eq!(shown(&service, "trace"), [5, 1, 5]);
    let tracing = PLACES.map(|at| cat(&service, &format!("{at}tracing_on")));
    assert_eq!(tracing, ["1\n", "0\n", "1\n"]);
    work(&service, "getpid 2");
    append(&service, "instances/bar/events/kprobes/a/trigger", "!snapshot:1");
    append(&service, "instances/bar/events/kprobes/a/trigger", "snapshot:1");
    work(&service, "getpid 3");
    assert_eq!(shown(&service, "trace"), [10, 1, 3]);
    let snapshots = PLACES.map(|at| cat(&service, &format!("{at}snapshot")));
    let taken = snapshots.map(|text| events(&text).len());
    assert_eq!(taken, [0, 0, 7], "the trace of before");
    // A back-trace is in the trace of that instance, also where the event is not enabled.
    append(&service, "instances/foo/events/kprobes/b/trigger", "stacktrace");
    append(&service, "instances/foo/tracing_on", "1");
    append(&service, "instances/bar/events/kprobes/b/enable", "1");
    assert_eq!(cat(&service, "instances/foo/events/kprobes/b/enable"), "0*\n");
    assert_eq!(cat(&service, "instances/foo/set_event"), "kprobes:b\nkprobes:a\n");
    assert_eq!(cat(&service, "set_event"), "kprobes:a\n");
    work(&service, "open /dev/null 1");
    let has = |text: &str| (text.contains(": b: ("), text.contains("<stack trace>"));
    let found = PLACES.map(|at| has(&cat(&service, &format!("{at}trace"))));
    assert_eq!(found, [(false, false), (true, true), (true, false)]);
    // An event with triggers stays, until these go with their instance.
    append(&service, "instances/bar/events/enable", "0");
    assert_eq!(refused(&service, "kprobe_events", "-:b"), "EBUSY");
    assert_eq!(ask(&service, "DELETE", "instances/foo", "").status, 204);
    append(&service, "kprobe_events", "-:b");
}

fn events_are_switched_within_an_instance() {
    let service = service();
    append(&service, "instances/foo/events/kprobes/b/trigger", "enable_event:kprobes:a:1");
    append(&service, "instances/bar/events/kprobes/a/enable", "1");
    append(&service, "instances/bar/events/kprobes/b/trigger", "disable_event:kprobes:a:1");
    let enabled = || PLACES.map(|at| cat(&service, &format!("{at}events/kprobes/a/enable")));
    assert_eq!(enabled(), ["0\n", "0*\n", "1*\n"]);
    work(&service, "getpid 4");
    assert_eq!(shown(&service, "trace"), [0, 0, 4]);
    work(&service, "open /dev/null 1");
    assert_eq!(enabled(), ["0\n", "1*\n", "0*\n"]);
    work(&service, "getpid 3");
    assert_eq!(shown(&service, "trace"), [0, 3, 4]);
    let left = cat(&service, "instances/foo/events/kprobes/b/trigger");
    assert_eq!(left, "enable_event:kprobes:a:count=0\n");
    assert!(cat(&service, "events/kprobes/b/trigger").starts_with("# Available"));
}

fn faults_are_logged_in_the_instance() {
    let service = service();
    let trigger = "instances/foo/events/kprobes/a/trigger";
    let log = |at: &str| cat(&service, &format!("{at}error_log"));
    for (command, errno, logged) in [
        ("hist:keys=zz", "EINVAL", "hist:kprobes:a: error: `zz` is no field of this event"),
        (
            "hist:keys=n:x=n-$zz",
            "EINVAL",
            "hist:kprobes:a: error: no other histogram has the variable `$zz`",
        ),
        ("traceoff if zz == 1", "EINVAL", "event filter parse error: error: "),
        ("enable_event:kprobes:zz", "EINVAL", ""),
        ("nothing", "EINVAL", ""),
    ] {
        replace(&service, "instances/foo/error_log", "");
        assert_eq!(refused(&service, trigger, command), errno, "{command}");
        let text = log(PLACES[1]);
        assert!(text.contains(logged) && text.is_empty() == logged.is_empty(), "{command}: {text}");
        assert_eq!((log(PLACES[0]), log(PLACES[2])), (String::new(), String::new()));
    }
    append(&service, trigger, "hist:keys=n:q=n");
    assert_eq!(refused(&service, trigger, "hist:keys=n:q=n"), "EINVAL");
    // The variable of an instance is none of the others.
    let other = "hist:keys=n:x=n-$q";
    for at in ["", "instances/bar/"] {
        let path = format!("{at}events/kprobes/b/trigger");
        assert_eq!(refused(&service, &path, "hist:keys=CPU:x=CPU-$q"), "EINVAL");
    }
    append(&service, "instances/foo/events/kprobes/a/trigger", other);
    // Histograms go by `>`, as long as no other refers to their variables.
    replace(&service, trigger, "traceoff");
    let listed = cat(&service, trigger);
    assert_eq!(listed.lines().count(), 3, "{listed}");
    append(&service, trigger, &format!("!{other}"));
    let rmdir = || ask(&service, "DELETE", "instances/foo", "");
    assert_eq!(rmdir().json()["code"], "EBUSY", "it has variables");
    replace(&service, trigger, "traceon");
    assert_eq!(cat(&service, trigger), "traceon:unlimited\ntraceoff:unlimited\n");
    assert_eq!(rmdir().status, 204);
}
