//! Commands with a probe of their own: `hist` and `stacks`.

use std::time::Instant;

use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, Running, Service, cases, exoprobe};
use serde_json::Value;

pub(crate) const CASES: &[Case] = cases![
    hist_counts_each_call_by_its_arguments(vcpus),
    hist_of_latency_and_of_text_has_each_call needs [Kvm, Repeat],
    stacks_fold_each_call_into_its_callers needs [Kvm, Repeat],
    the_probe_goes_in_every_way_of_ending needs [Kvm, Repeat],
];

fn probes(service: &Service) -> Vec<Value> {
    serde_json::from_str(&service.ok(&["--json", "probe", "list"])).expect("a list")
}

/// Starts a command, and waits until its probe has its histogram.
fn begin(service: &Service, args: &[&str]) -> Running {
    let running = Running::spawn(exoprobe().arg("--socket").arg(service.socket()).args(args));
    let begun = Instant::now();
    while !probes(service).iter().any(|probe| probe["triggers"] == 1) {
        assert!(begun.elapsed() < PATIENCE, "no histogram; {running}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    running
}

/// Ends a command as Ctrl-C does; returns what it printed. Its probe has gone, and no hit was an
/// event.
fn end(service: &Service, running: Running) -> String {
    running.signal(libc::SIGINT);
    let output = running.finish(PATIENCE);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(probes(service), [] as [Value; 0]);
    assert_eq!(service.ok(&["events"]), "");
    String::from_utf8(output.stdout).expect("text")
}

fn hist_counts_each_call_by_its_arguments(vcpus: u8) {
    let service = Service::restored(vcpus);
    let hist = begin(&service, &["--json", "hist", "ksys_write if n == 1", "n=%dx:u64"]);
    let answer = match vcpus {
        1 => service.work("write 300"),
        _ => service.work("par 2 write 150"),
    };
    assert!(answer.starts_with("done"), "{answer}");
    let json: Value = serde_json::from_str(&end(&service, hist)).expect("an object");
    assert_eq!(
        (&json["hits"], &json["dropped"], &json["lost"]),
        (&300.into(), &0.into(), &0.into())
    );
    let only = serde_json::json!([{"keys": [{"from": 0, "to": 1}], "hits": 300, "sums": []}]);
    assert_eq!(json["entries"], only);
}

fn hist_of_latency_and_of_text_has_each_call() {
    let service = Service::restored(1);
    let hist = begin(&service, &["hist", "r __x64_sys_getpid", "common_latency"]);
    let _ = service.work("getpid 40");
    let text = end(&service, hist);
    assert!(text.starts_with("common_latency"), "{text}");
    let rows = text.lines().filter_map(|line| line.split_once(" |")?.0.split(' ').next_back());
    assert_eq!(rows.map(|hits| hits.parse::<u64>().unwrap()).sum::<u64>(), 40, "{text}");
    assert!(text.lines().last().unwrap().starts_with("hits 40, "), "{text}");

    let hist = begin(&service, &["hist", "do_sys_openat2", "name=+0(%si):ustring"]);
    let _ = service.work("open /dev/null 3");
    let _ = service.work("open /init 2");
    let text = end(&service, hist);
    let rows: Vec<Vec<&str>> =
        text.lines().map(|l| l.split_whitespace().take(2).collect()).collect();
    assert_eq!(rows[1..3], [["/dev/null", "3"], ["/init", "2"]], "{text}");
}

fn stacks_fold_each_call_into_its_callers() {
    let service = Service::restored(1);
    let stacks = begin(&service, &["stacks", "--folded", "__x64_sys_getpid"]);
    let _ = service.work("getpid 60");
    let text = end(&service, stacks);
    let [line] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    assert!(line.starts_with("init;") && line.contains(";do_syscall_64;"), "{text}");
    assert!(line.ends_with(";__x64_sys_getpid 60"), "{text}");
    let stacks = begin(&service, &["stacks", "__x64_sys_getpid"]);
    let _ = service.work("getpid 5");
    let text = end(&service, stacks);
    assert!(text.starts_with("         5 init\n           => __x64_sys_getpid+0x0\n"), "{text}");
}

fn the_probe_goes_in_every_way_of_ending() {
    let mut service = Service::restored(1);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let hist = begin(&service, &["hist", "__x64_sys_getpid"]);
        hist.signal(signal);
        let output = hist.finish(PATIENCE);
        assert!(output.status.success(), "{signal}: {output:?}");
        assert_eq!(probes(&service), [] as [Value; 0], "{signal}");
    }
    let text = service.ok(&["hist", "--for", "0.1", "__x64_sys_getpid"]);
    assert!(text.ends_with("hits 0, entries 0, dropped 0, lost 0, nmissed 0\n"), "{text}");
    for (args, status, why) in [
        (&["hist", "__x64_sys_getpid", "common_latency"][..], 1, "common_latency"),
        (&["hist", "__x64_sys_getpid", "comm.log2"], 1, "modifier"),
        (&["hist", "no_such_function"], 1, "ENOENT"),
        (&["hist", "vfs_*"], 1, "one place"),
        (&["stacks", "p:e __x64_sys_getpid %zz"], 1, "^"),
    ] {
        let output = service.client(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {error}");
        assert!(error.contains(why), "{args:?}: {error}");
    }
    assert_eq!(probes(&service), [] as [Value; 0]);
    let removed = begin(&service, &["hist", "__x64_sys_getpid"]);
    let _ = service.ok(&["probe", "rm", "--all"]);
    let output = removed.finish(PATIENCE);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let orphan = begin(&service, &["stacks", "__x64_sys_getpid"]);
    assert!(service.end(libc::SIGTERM).success());
    let output = orphan.finish(PATIENCE);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), &b""[..]), "{output:?}");
}
