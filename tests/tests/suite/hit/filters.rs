//! Filters: the hits that they let through, counted by the guest, by an int3 and in the guest
//! alike.

use std::sync::Arc;

use exoprobe_probes::definition::FieldError;
use exoprobe_probes::{Action, Event, ProbeError, ProbeStatus, Selection};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, cases, definition};

pub(crate) const CASES: &[Case] = cases![
    arguments_choose_the_hits_that_are_recorded(vcpus),
    a_task_chooses_the_hits_that_are_recorded(vcpus),
    results_choose_the_returns_that_are_recorded(vcpus),
    values_of_memory_choose_too(vcpus),
    a_vcpu_chooses_the_hits_that_are_recorded(vcpus),
    functions_and_the_events_number_choose_too(vcpus),
    texts_of_the_kernel_are_no_users(vcpus),
    texts_of_users_choose_too(vcpus),
    texts_and_tasks_choose_without_an_exit(vcpus),
    actions_are_for_hits_that_the_filter_lets_through,
    a_filter_over_an_unknown_field_is_refused needs [Kvm, Repeat],
];

const WRITE: &str = "ksys_write";
const GETPID: &str = "__x64_sys_getpid";

fn probe(guest: &TestGuest, line: &str, filter: &str, actions: Vec<Action>) {
    let mut definition = definition(line);
    definition.filter = Some(filter.parse().unwrap_or_else(|e| panic!("{filter}: {e}")));
    definition.actions = actions;
    guest.engine.register(definition).unwrap_or_else(|e| panic!("{line}: {e}"));
}

/// The books of a probe before and after some work, by an int3 and then optimized.
fn in_both_ways(guest: &TestGuest, event: &str, work: impl Fn()) {
    work();
    guest.optimize(event);
    let before = guest.vm.exit_counts().breakpoint;
    work();
    assert_eq!(guest.vm.exit_counts().breakpoint, before, "{:?}", guest.status(event));
}

/// Hits, and how many of them were recorded and filtered.
fn books(status: &ProbeStatus) -> (u64, u64, u64) {
    assert_eq!(status.lost, 0, "{status:?}");
    (status.hits, status.recorded, status.filtered)
}

fn arguments_choose_the_hits_that_are_recorded(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    // The workload's writes are of one byte, its answers are longer.
    probe(&guest, &format!("p:w {WRITE} fd=%di count=%dx"), "count == 1 && fd > 1", Vec::new());
    probe(&guest, &format!("p:rest {WRITE} n=%dx"), "!(n == 1)", Vec::new());
    probe(&guest, &format!("p:none {WRITE} n=%dx"), "n > 0xffffffffffff", Vec::new());
    in_both_ways(&guest, "w", || assert_eq!(guest.work("write 50"), 50));
    let (hits, recorded, filtered) = books(&guest.status("w"));
    assert_eq!((recorded, filtered), (100, hits - 100));
    assert!(filtered > 0, "answers are writes, too");
    assert_eq!(books(&guest.status("rest")), (hits, filtered, 100));
    assert_eq!(books(&guest.status("none")), (hits, 0, hits));
    guest.engine.drain();
    let events = guest.engine.events().read(1, 1000).events;
    let of_w: Vec<_> = events.iter().filter(|event| &*event.event == "w").collect();
    assert_eq!(of_w.len(), 100);
    assert!(of_w.iter().all(|event| event.args["count"] == "0x1"), "{:?}", of_w[0]);
    guest.assert_unharmed();
}

fn a_task_chooses_the_hits_that_are_recorded(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    probe(&guest, &format!("p:others {GETPID}"), "common_pid != 1", Vec::new());
    probe(&guest, &format!("p:init {GETPID}"), "common_pid == 1", Vec::new());
    in_both_ways(&guest, "others", || {
        assert_eq!(guest.work("getpid 30"), 30);
        assert_eq!(guest.work("spawn 0 getpid 20"), 20);
    });
    assert_eq!(books(&guest.status("others")), (100, 40, 60));
    assert_eq!(books(&guest.status("init")), (100, 60, 40));
}

fn results_choose_the_returns_that_are_recorded(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    probe(&guest, &format!("r:one {WRITE} result=$retval"), "result == 1", Vec::new());
    in_both_ways(&guest, "one", || assert_eq!(guest.work("write 50"), 50));
    let status = guest.status("one");
    let (hits, recorded, filtered) = books(&status);
    assert_eq!((recorded, filtered, status.nmissed), (100, hits - 100, 0));
    assert!(filtered > 0, "answers are writes, too");
    guest.assert_unharmed();
}

fn values_of_memory_choose_too(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    // pt_regs, whose field at 0x70 is RDI, the first argument of the system call: AT_FDCWD.
    let line = "p:open __x64_sys_openat dfd=+0x70(%di)";
    probe(&guest, line, "dfd == -100", Vec::new());
    in_both_ways(&guest, "open", || assert_eq!(guest.work("open /dev/null 20"), 20));
    // A word that no hit can read: the address of no memory.
    let nowhere = format!("p:nowhere {WRITE} none=+0(%dx)");
    probe(&guest, &nowhere, "none == 0 || none != 0", Vec::new());
    assert_eq!(guest.work("write 10"), 10);
    let (hits, recorded, _) = books(&guest.status("nowhere"));
    assert!(hits >= 10 && recorded == 0, "{hits} {recorded}");
    let (hits, recorded, filtered) = books(&guest.status("open"));
    assert!(recorded >= 40 && filtered == hits - recorded, "{recorded} {filtered}");
    guest.assert_unharmed();
}

fn texts_and_tasks_choose_without_an_exit(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let line = "do_sys_openat2 path=+0(%si):ustring dfd=%di:s32 low=%dx:b1@0/64";
    let filters = [
        ("null", "path ~ \"/dev/*\""),
        ("root", "dfd == -100 && path == \"/\""),
        ("none", "dfd == 5 && path == \"/\""),
        ("task", "comm == \"init\" && common_pid == 1"),
        ("bits", "low == 1 || path !~ \"*\""),
    ];
    for (event, filter) in filters {
        probe(&guest, &format!("p:{event} {line}"), filter, Vec::new());
    }
    let returns = "r:ret do_sys_openat2 path=+0($arg2):string fd=$retval:s32";
    probe(&guest, returns, "path == \"/\" && fd > 0", Vec::new());
    in_both_ways(&guest, "null", || {
        assert_eq!(guest.work("open /dev/null 20"), 20);
        assert_eq!(guest.work("open / 30"), 30);
    });
    guest.engine.drain();
    let found = ["null", "root", "none", "task", "ret"].map(|event| books(&guest.status(event)));
    let each = |recorded| (100, recorded, 100 - recorded);
    assert_eq!(found, [each(40), each(60), each(0), each(100), each(60)]);
    let events = guest.engine.events().read(1, 1000).events;
    let count = |event: &str, path: &str| {
        let is_one = |it: &&Arc<Event>| &*it.event == event && it.args["path"] == path;
        events.iter().filter(is_one).count()
    };
    assert_eq!((count("null", "/dev/null"), count("null", "/")), (40, 0));
    assert_eq!((count("root", "/"), count("ret", "/"), count("ret", "/dev/null")), (60, 60, 0));
    // A text that cannot be read is none of them.
    let (before, bits) = (guest.hits("null"), guest.status("bits"));
    assert_eq!(bits.recorded + bits.filtered, 100);
    assert_eq!(guest.work("badptr 5"), 5);
    let faults = guest.hits("null") - before;
    assert!(faults > 0);
    assert_eq!(books(&guest.status("null")), (100 + faults, 40, 60 + faults));
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn a_vcpu_chooses_the_hits_that_are_recorded(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    probe(&guest, &format!("p:first {GETPID}"), "CPU == 0", Vec::new());
    probe(&guest, &format!("p:others {GETPID}"), "cpu > 0", Vec::new());
    in_both_ways(&guest, "first", || assert_eq!(guest.work("par 2 getpid 100"), 200));
    guest.engine.drain();
    let events = guest.engine.events().read(1, 1000).events;
    assert_eq!(events.len(), 400);
    let [first, others] = ["first", "others"].map(|event| {
        let (hits, recorded, filtered) = books(&guest.status(event));
        let is_first = event == "first";
        let there = events.iter().filter(|it| (it.vcpu == 0) == is_first && *it.event == *event);
        assert_eq!(there.count() as u64, recorded, "{event}");
        assert_eq!((hits, filtered), (400, 400 - recorded));
        recorded
    });
    assert_eq!(first + others, 400);
    assert_eq!(others > 0, vcpus > 1, "{first} {others}");
}

fn texts_of_users_choose_too(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let line = "do_sys_openat2 name=%si";
    probe(&guest, &format!("p:null {line}"), "name.ustring ~ \"/dev/nu*\"", Vec::new());
    probe(&guest, &format!("p:none {line}"), "name.ustring == \"/dev/nul\"", Vec::new());
    // A text of its own beside that of the filter, which is not shown.
    let both = "p:both do_sys_openat2 dfd=%di:s32 name=%si text=+0(%si):ustring";
    probe(&guest, both, "dfd == -100 && (name.ustring == \"/\" || text == \"x\")", Vec::new());
    let returns = "r:ret do_sys_openat2 name=$arg2";
    probe(&guest, returns, "name.ustring == \"/dev/null\"", Vec::new());
    in_both_ways(&guest, "null", || {
        assert_eq!(guest.work("open /dev/null 10"), 10);
        assert_eq!(guest.work("open / 5"), 5);
    });
    guest.engine.drain();
    let found = ["null", "none", "both", "ret"].map(|event| books(&guest.status(event)));
    assert_eq!(found, [(30, 20, 10), (30, 0, 30), (30, 10, 20), (30, 20, 10)]);
    let events = guest.engine.events().read(1, 1000).events;
    let shown = |event: &str| events.iter().filter(|it| &*it.event == event).collect::<Vec<_>>();
    assert!(shown("null").iter().all(|it| it.args.len() == 1), "{:?}", shown("null"));
    assert_eq!(shown("both").len(), 10);
    assert!(shown("both").iter().all(|it| it.args.len() == 3 && it.args["text"] == "/"));
    // A text that cannot be read is none of them, whoever reads it.
    let before = guest.hits("null");
    assert_eq!(guest.work("badptr 5"), 5);
    let faults = guest.hits("null") - before;
    assert!(faults > 0);
    assert_eq!(books(&guest.status("null")), (30 + faults, 20, 10 + faults));
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn functions_and_the_events_number_choose_too(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let line = "do_sys_openat2 at=%ip from=$stack0";
    let inside = guest.engine.symbols().unwrap().lookup("do_sys_openat2").unwrap().address.0 + 1;
    for (event, filter) in [
        ("in", "at.function == do_sys_openat2".to_owned()),
        ("out", "at.function != do_sys_openat2".to_owned()),
        ("other", "__probe_ip.function == vfs_read || at.function == vfs_read".to_owned()),
        ("others", "!(at.function == vfs_read ) && __probe_ip.function != vfs_read".to_owned()),
        ("number", format!("at.function == {inside:#x} && comm == \"init\"")),
        // The return address is in the middle of its function.
        ("from", "from.function == __x64_sys_openat".to_owned()),
    ] {
        probe(&guest, &format!("p:{event} {line}"), &filter, Vec::new());
    }
    let returns = "r:caller do_sys_openat2 fd=$retval:s32";
    probe(&guest, returns, "__probe_func.function == do_sys_openat2", Vec::new());
    let id = guest.status("caller").id + 1;
    probe(&guest, &format!("p:own {line}"), &format!("common_type == {id}"), Vec::new());
    probe(&guest, &format!("p:none {line}"), &format!("common_type == {id}"), Vec::new());
    in_both_ways(&guest, "in", || assert_eq!(guest.work("open /dev/null 10"), 10));
    guest.engine.drain();
    let all = ["in", "others", "number", "from", "caller", "own"];
    assert_eq!(all.map(|event| books(&guest.status(event))), [(20, 20, 0); 6]);
    let none = ["out", "other", "none"];
    assert_eq!(none.map(|event| books(&guest.status(event))), [(20, 0, 20); 3]);
    let mut unknown = definition(&format!("p:unknown {line}"));
    unknown.filter = Some("at.function == no_such_function".parse().unwrap());
    let refused = guest.engine.register(unknown).map(drop).unwrap_err();
    assert!(refused.to_string().contains("a function that the kernel does not have"), "{refused}");
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

/// The VMM is asked, and lets none through.
fn texts_of_the_kernel_are_no_users(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    // The page of the stack is there.
    let kernels = "p:kernels do_sys_openat2 at=%sp";
    probe(&guest, kernels, "at.ustring ~ \"*\"", Vec::new());
    for round in 1..=2 {
        assert_eq!(guest.work("open /dev/null 10"), 10);
        assert_eq!(books(&guest.status("kernels")), (10 * round, 0, 10 * round));
        guest.optimize("kernels");
    }
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn actions_are_for_hits_that_the_filter_lets_through() {
    let guest = TestGuest::restored(1);
    let fail = vec![Action::Record, Action::Return(0_u64.wrapping_sub(9))];
    probe(&guest, &format!("p:fail {WRITE} fd=%di n=%dx"), "n == 1 && fd > 2", fail);
    // EBADF for the workload's bytes, and for nothing else: its answer comes.
    let from = guest.send("write 5");
    let answer = guest.answer_line(from, "write 5");
    assert_eq!(answer, "error write: write: errno 9 (0 done)");
    let (hits, recorded, filtered) = books(&guest.status("fail"));
    assert_eq!((recorded, filtered), (1, hits - 1));
    guest.engine.unregister(Selection::all()).unwrap();
    assert_eq!(guest.work("write 5"), 5);
    guest.assert_unharmed();
}

fn a_filter_over_an_unknown_field_is_refused() {
    let guest = TestGuest::restored(1);
    let refused = |filter: &str| {
        let mut definition = definition(&format!("p:w {WRITE} fd=%di %si"));
        definition.filter = Some(filter.parse().unwrap_or_else(|e| panic!("{filter}: {e}")));
        guest.engine.register(definition).map(drop)
    };
    let error = refused("arg2 == 1 && size == 1").unwrap_err();
    assert!(
        matches!(&error.error, ProbeError::Filter { error: FieldError::NoSuch(field), .. } if field == "size")
    );
    assert!(error.to_string().contains("`fd`, `arg2`, `common_pid`"), "{error}");
    refused("arg2 == 1 || fd == 1 || common_pid == 1").unwrap();
}
