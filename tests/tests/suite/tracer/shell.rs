//! A user's shell script over the mounted files.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, Running, Service, cases, finish};

use crate::support::mounted::{Line, Mounted, line};
use crate::support::tracer::{append, cat, work};

pub(crate) const CASES: &[Case] = cases![
    a_script_shows_hits_until_it_is_interrupted(vcpus) needs [Kvm, Fuse, Shell],
    a_script_says_why_its_probe_is_refused_and_leaves_nothing needs [Kvm, Fuse, Shell],
];

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/shell/show-hits.sh");

fn show_hits(mounted: &Mounted<'_>, args: &[&str]) -> Command {
    // A shell cannot trap a signal that was ignored when it was started, as SIGINT is below a
    // command in the background.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", SCRIPT]).args(args).env("TRACING", mounted.point());
    command
}

/// Waits until a running script meets a condition.
fn wait(running: &Running, what: &str, mut is_met: impl FnMut(&Running) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_met(running) {
        assert!(Instant::now() < deadline, "{what}: {running}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The script's probe has gone, and others are as they were.
fn assert_clean(service: &Service, mounted: &Mounted<'_>) {
    let others = "p:kprobes/other __x64_sys_getppid\n";
    assert_eq!(cat(service, "kprobe_events"), others);
    assert_eq!(std::fs::read_to_string(mounted.point().join("kprobe_events")).unwrap(), others);
    assert_eq!(cat(service, "events/kprobes/other/enable"), "1\n");
}

fn other(service: &Service) {
    append(service, "kprobe_events", "p:other __x64_sys_getppid");
    append(service, "events/kprobes/other/enable", "1");
}

fn a_script_shows_hits_until_it_is_interrupted(vcpus: u8) {
    let service = Service::restored(vcpus);
    let mounted = Mounted::new(&service);
    other(&service);
    let args = ["-s", "-f", "name ~ \"/dev/*\"", "p", "do_sys_openat2", "name=+0(%si):ustring"];
    let mut script = Running::spawn(&mut show_hits(&mounted, &args));
    wait(&script, "the probe is enabled", |script| script.stderr().contains("is enabled, 1"));
    work(&service, "open /init 4");
    work(&service, "open /dev/null 3");
    let count = |script: &Running, wanted: &str| {
        script.stdout().lines().filter(|line| line.contains(wanted)).count()
    };
    wait(&script, "hits and back-traces are shown", |script| count(script, "=> do_sys_open") == 3);
    script.signal(libc::SIGINT);
    assert!(script.wait(PATIENCE).success(), "{script}");
    let shown: Vec<Line> = script.stdout().lines().filter_map(line).collect();
    let hits = shown.iter().filter(|Line(_, event, _)| event.starts_with("show_hits_"));
    let args: Vec<&str> = hits.map(|Line(_, _, args)| args.as_str()).collect();
    assert_eq!(args, ["name=\"/dev/null\""; 3], "{script}");
    assert_clean(&service, &mounted);
}

fn a_script_says_why_its_probe_is_refused_and_leaves_nothing() {
    let service = Service::restored(1);
    let mounted = Mounted::new(&service);
    other(&service);
    for (args, expected) in [
        (&["p", "no_such_function"][..], "the probe is refused"),
        (&["p", "do_sys_openat2", "x=%nope"], "^"),
        (&["-f", "x == ", "p", "do_sys_openat2", "x=%di"], "the filter is refused"),
        (&["x", "do_sys_openat2"], "the probe is refused"),
    ] {
        let output = finish(&mut show_hits(&mounted, args), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{args:?}: {said}");
        assert_clean(&service, &mounted);
    }
    let nowhere = Path::new("/nonexistent/tracing");
    let output = finish(show_hits(&mounted, &["p", "x"]).env("TRACING", nowhere), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no tracer at"), "{said}");
}
