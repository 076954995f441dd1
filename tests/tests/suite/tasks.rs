//! The guest's processes, read from its memory.

use std::collections::BTreeSet;

use exoprobe_probes::Process;
use exoprobe_tests::harness::Case;
use exoprobe_tests::{Service, TestGuest, cases};

pub(crate) const CASES: &[Case] = cases![
    processes_are_those_that_the_guest_has(vcpus),
    processes_are_listed_by_http_and_on_the_command_line,
];

fn processes(guest: &TestGuest) -> Vec<Process> {
    guest.engine.processes().unwrap_or_else(|e| panic!("{e}"))
}

fn named(processes: &[Process], name: &str) -> usize {
    processes.iter().filter(|process| process.task.id.name() == name).count()
}

fn processes_are_those_that_the_guest_has(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    assert_eq!(guest.work("getpid 1"), 1);
    let before = processes(&guest);
    let first: Vec<(u32, String)> =
        before[..2].iter().map(|p| (p.task.tgid, p.task.id.name())).collect();
    assert_eq!(first, [(1, "init".to_owned()), (2, "kthreadd".to_owned())]);
    let pids: BTreeSet<u32> = before.iter().map(|process| process.task.tgid).collect();
    assert_eq!(pids.len(), before.len(), "each once");
    assert!(before.iter().all(|process| process.task.id.pid == process.task.tgid));
    // Children of init have its name.
    let from = guest.send("par 3 sleep 4000");
    guest.wait_until("its children", |guest| named(&processes(guest), "init") == 4);
    assert!(guest.answer(from, "par 3 sleep 4000") >= 12_000);
    assert_eq!(named(&processes(&guest), "init"), 1);
    // Whoever spins is on a vCPU.
    let from = guest.send("spin 4000");
    guest.wait_until("it runs", |guest| !processes(guest)[0].vcpus.is_empty());
    assert!(guest.answer(from, "spin 4000") >= 4000);
    let on: Vec<u8> = processes(&guest).into_iter().flat_map(|process| process.vcpus).collect();
    assert!(on.len() <= usize::from(vcpus), "{on:?}");
    guest.assert_unharmed();
}

fn processes_are_listed_by_http_and_on_the_command_line() {
    let service = Service::restored(1);
    let json: serde_json::Value = serde_json::from_str(&service.ok(&["--json", "ps"])).unwrap();
    assert_eq!((&json[1]["pid"], &json[1]["comm"]), (&2.into(), &"kthreadd".into()));
    let table = service.ok(&["ps"]);
    assert!(
        table.lines().any(|line| line.split_whitespace().eq(["2", "-", "kthreadd"])),
        "{table}"
    );
}
