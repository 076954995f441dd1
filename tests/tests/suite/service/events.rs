//! The part of the events that a reader asks for.

use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, Running, Service, cases, exoprobe, finish};
use serde_json::Value;

pub(crate) const CASES: &[Case] = cases![
    events_are_selected_by_probe_task_and_time needs [Kvm, Repeat],
    a_follower_begins_now_and_reports_that_the_service_ended needs [Kvm, Repeat],
];

fn numbers(service: &Service, args: &[&str]) -> Vec<u64> {
    service.events(args).iter().map(|event| event["seq"].as_u64().expect("a number")).collect()
}

fn events_are_selected_by_probe_task_and_time() {
    let service = Service::restored(1);
    let lines = ["p:one __x64_sys_getpid", "p:my/two __x64_sys_getpid+1"];
    let _ = service.ok(&[&["probe", "add"], &lines[..]].concat());
    assert_eq!(service.work("getpid 5"), "done getpid 5\n");
    // Both probes are hit by each call, in this order.
    assert_eq!(numbers(&service, &[]), (1..=10).collect::<Vec<_>>());
    assert_eq!(numbers(&service, &["--limit", "3"]), [8, 9, 10]);
    assert_eq!(numbers(&service, &["--last", "2", "--probe", "one"]), [7, 9]);
    assert_eq!(numbers(&service, &["--from", "3", "--limit", "2", "--probe", "m?/*"]), [4, 6]);
    assert_eq!(numbers(&service, &["--pid", "1", "--comm", "in*"]).len(), 10);
    assert_eq!(numbers(&service, &["--pid", "2"]).len(), 0);
    let time = service.events(&["--from", "5", "--limit", "1"])[0]["time"].to_string();
    assert_eq!(numbers(&service, &["--since", &time]), [5, 6, 7, 8, 9, 10]);
    assert_eq!(numbers(&service, &["--since", "1h"]).len(), 10);
    assert_eq!(numbers(&service, &["--since", "1000000"]).len(), 0);
    let _ = service.ok(&["events", "clear"]);
    assert_eq!(numbers(&service, &[]).len(), 0);
    assert_eq!(service.work("getpid 1"), "done getpid 1\n");
    assert_eq!(numbers(&service, &["--from", "1"]), [11, 12], "nothing was lost");
    for wrong in [&["--from", "1", "--last", "1"][..], &["--since", "soon"], &["--pid", "x"]] {
        assert!(!service.client(&[&["events"], wrong].concat()).status.success(), "{wrong:?}");
    }
}

fn a_follower_begins_now_and_reports_that_the_service_ended() {
    let mut service = Service::restored(1);
    let _ = service.ok(&["probe", "add", "p:one __x64_sys_getpid"]);
    assert_eq!(service.work("getpid 3"), "done getpid 3\n");
    let mut command = exoprobe();
    command.arg("--socket").arg(service.socket()).args(["--json", "events", "--follow"]);
    command.args(["--limit", "1"]);
    let one = std::thread::spawn(move || finish(&mut command, PATIENCE));
    // Its request may come after any of these calls, but not after all.
    while !one.is_finished() {
        assert_eq!(service.work("getpid 1"), "done getpid 1\n");
    }
    let one = one.join().expect("it ends");
    let seen: Value = serde_json::from_slice(&one.stdout).expect("one event");
    assert!(one.status.success() && seen["seq"].as_u64() > Some(3), "{one:?}");
    let mut command = exoprobe();
    command.arg("--socket").arg(service.socket()).args(["events", "--follow"]);
    let mut follower = Running::spawn(&mut command);
    while !follower.to_string().contains("(__x64_sys_getpid") {
        assert_eq!(service.work("getpid 1"), "done getpid 1\n");
    }
    service.end(libc::SIGTERM);
    assert_eq!(follower.wait(PATIENCE).code(), Some(3));
    assert!(follower.stderr().contains("the service has ended"), "{}", follower.stderr());
}
