//! The guest's processes, read from its memory.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use exoprobe_probes::Process;
use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, Service, TestGuest, cases, guest_file};
use serde_json::Value;

pub(crate) const CASES: &[Case] = cases![
    processes_are_those_that_the_guest_has(vcpus) needs [Kvm, QuickKernel],
    processes_are_listed_by_http_and_on_the_command_line needs [Kvm, Repeat],
    tasks_that_sleep_have_states_parents_stacks_and_user_memory needs [Kvm, Repeat],
    memory_is_shown_by_registers_and_types needs [Kvm, Repeat],
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
    // A task that spins is on a vCPU.
    let from = guest.send("spin 2000");
    guest.wait_until("it runs", |guest| !processes(guest)[0].vcpus.is_empty());
    assert!(guest.answer(from, "spin 2000") >= 2000);
    let on: Vec<u8> = processes(&guest).into_iter().flat_map(|process| process.vcpus).collect();
    assert!(on.len() <= usize::from(vcpus), "{on:?}");
    assert!(lists_while_tasks_come_and_go(&guest) > 1);
    guest.assert_unharmed();
}

const BETWEEN_LISTS: Duration = Duration::from_millis(2);

/// Lists the processes while the guest forks. Returns how often.
fn lists_while_tasks_come_and_go(guest: &TestGuest) -> u32 {
    std::thread::scope(|scope| {
        let forks = scope.spawn(|| guest.work("fork 40"));
        let mut lists = 0;
        while !forks.is_finished() {
            let found = processes(guest);
            let first: Vec<String> = found[..2].iter().map(|p| p.task.id.name()).collect();
            assert_eq!(first, ["init", "kthreadd"]);
            let pids: BTreeSet<u32> = found.iter().map(|process| process.task.tgid).collect();
            assert_eq!(pids.len(), found.len(), "each once");
            assert!(found.iter().all(|process| process.task.id.pid == process.task.tgid));
            lists += 1;
            // Each stops the vCPUs: the guest must come on as well.
            std::thread::sleep(BETWEEN_LISTS);
        }
        assert_eq!(forks.join().unwrap(), 40);
        lists
    })
}

fn processes_are_listed_by_http_and_on_the_command_line() {
    let service = Service::restored(1);
    let json: serde_json::Value = serde_json::from_str(&service.ok(&["--json", "ps"])).unwrap();
    assert_eq!((&json[1]["pid"], &json[1]["comm"]), (&2.into(), &"kthreadd".into()));
    let table = service.ok(&["ps"]);
    assert!(
        table.lines().any(|line| line.split_whitespace().eq(["2", "0", "S", "-", "kthreadd"])),
        "{table}"
    );
}

/// A service that knows the kernel's types.
fn service_with_types() -> Service {
    let (snapshot, types) = (TestGuest::snapshot(1), guest_file("vmlinux.btf"));
    let (snapshot, types) = (snapshot.to_str().unwrap(), types.to_str().unwrap());
    Service::start(&["--restore", snapshot, "--btf", types])
}

fn json(service: &Service, args: &[&str]) -> Value {
    serde_json::from_str(&service.ok(&[&["--json"], args].concat())).unwrap()
}

/// Functions of a back-trace's kernel part.
fn names(frames: &Value) -> Vec<&str> {
    let frames = frames.as_array().expect("a list").iter();
    frames.filter_map(|frame| frame["symbol_name"].as_str()).collect()
}

/// Asks until the answer is as wanted.
fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not reached");
    }
}

fn tasks_that_sleep_have_states_parents_stacks_and_user_memory() {
    let service = service_with_types();
    std::thread::scope(|scope| {
        let working = scope.spawn(|| service.work("par 2 sleep 5000"));
        let child = wait_for("a child sleeps", || {
            let processes = json(&service, &["ps"]);
            let sleeps = |p: &&Value| p["parent"] == 1 && p["state"] == "S" && p["comm"] == "init";
            processes.as_array().unwrap().iter().find(sleeps)?["pid"].as_u64()
        });
        let pid = child.to_string();
        // Before, it waits for the other to start.
        let frames = wait_for("it is in nanosleep", || {
            let frames = json(&service, &["stack", "--pid", &pid]);
            let names = names(&frames);
            // It has its state a little before it sleeps.
            let sleeps = names.contains(&"hrtimer_nanosleep") && names[0] == "__schedule";
            sleeps.then(|| frames.clone())
        });
        let called = names(&frames);
        assert!(called.contains(&"do_syscall_64"), "{called:?}");
        let frames = frames.as_array().unwrap();
        // The instruction that user mode came by is a SYSCALL.
        let user =
            frames.iter().find(|frame| frame["user"] == true).expect("its part in user mode");
        let ip = user["addr"].as_str().unwrap().trim_start_matches("0x");
        let before = format!("{:#x}", u64::from_str_radix(ip, 16).unwrap() - 2);
        assert_eq!(json(&service, &["x", "--pid", &pid, &before, "2"])["bytes"], "0f05");
        let done = working.join().unwrap();
        assert!(done.starts_with("done par"), "{done}");
    });
    let kernel_thread = json(&service, &["stack", "--pid", "2"]);
    let names = names(&kernel_thread);
    assert!(names.contains(&"kthreadd"), "{names:?}");
    let refused = service.client(&["stack", "--pid", "99999"]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && error.contains("no task 99999"), "{error}");
}

fn memory_is_shown_by_registers_and_types() {
    let service = service_with_types();
    let idle = json(&service, &["x", "--type", "task_struct", "init_task"]);
    let members = idle["members"].as_array().unwrap();
    let value = |name: &str| &members.iter().find(|it| it["name"] == name).unwrap()["value"];
    assert_eq!((value("comm"), value("pid")), (&"swapper/0".into(), &0.into()));
    assert!(
        service
            .ok(&["x", "--type", "task_struct", "init_task"])
            .contains("char comm[16] = swapper/0\n")
    );
    let _ = service.ok(&[
        "probe",
        "add",
        r#"{"event": "hold", "symbol_name": "do_sys_openat2", "actions": ["stop"]}"#,
    ]);
    std::thread::scope(|scope| {
        let working = scope.spawn(|| service.work("open /init 1"));
        wait_for("the hit", || {
            let vm = json(&service, &["vm", "status"]);
            (vm["held"].as_array()?.first()? == 0).then_some(())
        });
        // The file's name is the second argument, in user memory.
        let name = json(&service, &["x", "%si", "6"]);
        assert_eq!(name["bytes"], "2f696e697400");
        let at = json(&service, &["symbols", "do_sys_openat2"])[0]["addr"].clone();
        assert_eq!(json(&service, &["x", "%ip+0", "1"])["addr"], at);
        let _ = service.ok(&["probe", "rm", "hold"]);
        let _ = service.ok(&["vm", "resume"]);
        let done = working.join().unwrap();
        assert!(done.starts_with("done open"), "{done}");
    });
    for (args, expected) in [
        (&["x", "%zz"][..], "no register"),
        (&["x", "%di+zz"], "%di+0x10"),
        (&["x", "0x10"], "not mapped"),
        (&["x", "--type", "do_sys_openat2", "%di"], "no value in memory"),
        (&["x", "--vcpu", "9", "%di"], "no vCPU 9"),
        (&["x", "--vcpu", "0", "--pid", "1", "%di"], "cannot be used with"),
    ] {
        let refused = service.client(args);
        let error = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && error.contains(expected), "{args:?}: {error}");
    }
}
