//! Hits equal calls, exactly.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use exoprobe_probes::{DisplacedBy, Kprobe, Selection, Verdict};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, address, cases, definition, function_size, kernel_symbols};

pub(crate) const CASES: &[Case] = cases![
    a_thousand_calls_are_a_thousand_hits_until_disabled_and_deleted(vcpus),
    two_probes_at_one_address_both_count_and_one_can_go(vcpus),
    every_instruction_of_functions_can_be_probed_and_the_guest_is_unharmed(vcpus),
    handlers_run_before_and_after_and_can_change_registers(vcpus),
    a_pre_handler_that_returns_from_the_function_ends_the_hit(vcpus),
    events_carry_time_vcpu_place_and_the_registers_asked_for(vcpus),
    the_guests_own_breakpoints_reach_it_beside_ours(vcpus) needs [Kvm, OwnBreakpoint],
    a_child_of_the_workload_that_stops_early_is_reported(vcpus) needs [Kvm, OwnBreakpoint],
    two_vcpus_at_once_miss_nothing needs [Kvm, Smp],
    a_steady_probe_counts_all_while_others_come_and_go_at_its_address(vcpus),
    a_thousand_functions_at_once(vcpus),
];

const GETPID: &str = "__x64_sys_getpid";

fn a_thousand_calls_are_a_thousand_hits_until_disabled_and_deleted(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let original = guest.bytes(address(GETPID), 16);
    guest.probe("p:getpid __x64_sys_getpid");
    assert_eq!(guest.work("getpid 1000"), 1000);
    assert_eq!(guest.hits("getpid"), 1000);
    guest.assert_unharmed();

    guest.engine.set_enabled(Selection::kprobe("kprobes", "getpid"), false).unwrap();
    let before = guest.hits("getpid");
    assert_eq!(guest.bytes(address(GETPID), 16), original, "disabled: the byte is back");
    assert_eq!(guest.work("getpid 1000"), 1000);
    assert_eq!(guest.hits("getpid"), before);
    guest.assert_unharmed();

    guest.engine.set_enabled(Selection::kprobe("kprobes", "getpid"), true).unwrap();
    assert_ne!(guest.bytes(address(GETPID), 16), original);
    assert_eq!(guest.work("getpid 10"), 10);
    assert_eq!(guest.hits("getpid"), before + 10);

    guest.engine.unregister(Selection::kprobe("kprobes", "getpid")).unwrap();
    assert_eq!(guest.bytes(address(GETPID), 16), original, "deleted: the byte is back");
    assert_eq!(guest.work("getpid 1000"), 1000);
    assert!(guest.engine.list().is_empty());
    guest.assert_unharmed();
}

fn two_probes_at_one_address_both_count_and_one_can_go(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("p:first __x64_sys_getpid");
    guest.probe("p:second __x64_sys_getpid");
    guest.work("getpid 100");
    assert_eq!((guest.hits("first"), guest.hits("second")), (100, 100));
    guest.engine.set_enabled(Selection::kprobe("kprobes", "first"), false).unwrap();
    guest.work("getpid 10");
    assert_eq!((guest.hits("first"), guest.hits("second")), (100, 110));
    guest.engine.unregister(Selection::kprobe("kprobes", "first")).unwrap();
    guest.work("getpid 1");
    assert_eq!(guest.hits("second"), 111);
    guest.assert_unharmed();
}

/// Every instruction of the functions that each call of `command` runs through, as probes.
fn probe_all_of(guest: &TestGuest, functions: &[&str]) -> Vec<String> {
    let mut names = Vec::new();
    for function in functions {
        for offset in 0..function_size(function) {
            let line = format!("p:{function}_{offset} {function}+{offset}");
            if guest.engine.register(definition(&line)).is_ok() {
                names.push(format!("{function}_{offset}"));
            }
        }
    }
    names
}

fn every_instruction_of_functions_can_be_probed_and_the_guest_is_unharmed(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let functions =
        [GETPID, "__task_pid_nr_ns", "vfs_write", "ksys_write", "do_sys_openat2", "kernel_clone"];
    let names = probe_all_of(&guest, &functions);
    assert!(names.len() > 200, "only {} instructions were taken", names.len());
    guest.work("getpid 50");
    assert_eq!(guest.hits("__x64_sys_getpid_0"), 50);
    guest.work("write 20");
    guest.work("open /dev/null 20");
    guest.work("fork 2");
    assert!(guest.hits("vfs_write_0") >= 20);
    assert!(guest.hits("do_sys_openat2_0") >= 20);
    for how in [DisplacedBy::Emulation, DisplacedBy::Boost] {
        let hit = names.iter().filter(|name| {
            let status = guest.status(name);
            status.displaced == Some(how) && status.hits > 0
        });
        assert!(hit.count() > 20, "too few instructions were hit that run by {how:?}");
    }
    guest.assert_unharmed();
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn handlers_run_before_and_after_and_can_change_registers(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    // The last instruction before the function's ret leaves the result in RAX.
    let calls = Arc::new(AtomicU64::new(0));
    let mut stepped = 0;
    for offset in 0..function_size(GETPID) {
        let definition = definition(&format!("p:post{offset} {GETPID}+{offset}"));
        let (before, after) = (Arc::clone(&calls), Arc::clone(&calls));
        let probe = Kprobe {
            definition,
            pre_handler: Some(Box::new(move |_| {
                before.fetch_add(1, Ordering::SeqCst);
                Verdict::Continue
            })),
            post_handler: Some(Box::new(move |_| {
                after.fetch_sub(1, Ordering::SeqCst);
            })),
            ..Kprobe::default()
        };
        if guest.engine.register(probe).is_ok() {
            let how = guest.status(&format!("post{offset}")).displaced;
            stepped += u64::from(how == Some(DisplacedBy::Step));
        }
    }
    assert!(stepped > 0, "some instruction of {GETPID} is stepped");
    assert_eq!(guest.work("getpid 200"), 200);
    assert_eq!(calls.load(Ordering::SeqCst), 0, "each pre-handler had its post-handler");
    assert_eq!(guest.hits("post0"), 200);
    guest.assert_unharmed();
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn a_pre_handler_that_returns_from_the_function_ends_the_hit(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let target = address("__x64_sys_getppid");
    let probe = Kprobe {
        definition: definition("p:divert __x64_sys_getpid"),
        pre_handler: Some(Box::new(move |hit| {
            hit.regs.rip = target.0;
            Verdict::Done
        })),
        ..Kprobe::default()
    };
    guest.engine.register(probe).unwrap();
    assert_eq!(guest.work("getpid 20"), 20);
    assert_eq!(guest.hits("divert"), 20);
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn events_carry_time_vcpu_place_and_the_registers_asked_for(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let clock = guest.vm.clock();
    guest.probe("p:my/write ksys_write fd=%di %dx");
    let mut last = clock.seconds(clock.now());
    guest.work("write 50");
    let end = clock.seconds(clock.now());
    guest.engine.drain();
    let page = guest.engine.events().read(1, 1000);
    let status = guest.engine.show("my", "write").unwrap();
    assert_eq!(page.events.len() as u64, status.recorded);
    assert_eq!((status.lost, page.lost), (0, 0));
    // The workload writes one byte a time to /dev/null, then its answer to the port.
    let single = page.events.iter().filter(|e| e.args["arg2"] == "0x1");
    assert_eq!(single.count(), 50);
    for (index, event) in page.events.iter().enumerate() {
        assert_eq!(event.seq, index as u64 + 1);
        assert!(event.time >= last && event.time <= end, "guest seconds since boot, in order");
        last = event.time;
        assert!(event.vcpu < vcpus && event.offset == 0, "{event:?}");
        assert_eq!(event.symbol_name.as_deref(), Some("ksys_write"));
        assert_eq!(event.args.keys().collect::<Vec<_>>(), ["fd", "arg2"]);
    }
}

/// A program of the guest with an int3 of its own, as under a debugger, while do_exit is probed.
/// (The kernel checks one in its own text at boot: int3_selftest.)
fn the_guests_own_breakpoints_reach_it_beside_ours(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("p:exit do_exit");
    assert_eq!(guest.work("trap 20"), 20, "each child dies of SIGTRAP");
    assert_eq!(guest.hits("exit"), 20);
    guest.assert_unharmed_but_for("traps:");
}

/// The truth of all other tests: a count is never silently smaller than what was asked for.
fn a_child_of_the_workload_that_stops_early_is_reported(vcpus: u8) {
    const SIGKILL: u64 = 9;
    let guest = TestGuest::restored(vcpus);
    let probe = Kprobe {
        definition: definition("p:signal force_sig"),
        pre_handler: Some(Box::new(|hit| {
            hit.regs.rdi = SIGKILL;
            Verdict::Continue
        })),
        ..Kprobe::default()
    };
    guest.engine.register(probe).unwrap();
    for command in ["trap 3", "spawn 0 trap 3", "par 2 trap 3"] {
        let (name, _) = command.split_once(' ').unwrap();
        let line = guest.answer_line(guest.send(command), command);
        assert_eq!(line, format!("error {name}: child: signal {SIGKILL} (0 done)"));
    }
    guest.engine.unregister(Selection::all()).unwrap();
    assert_eq!(guest.work("par 2 trap 3"), 6);
    guest.assert_unharmed_but_for("traps:");
}

fn two_vcpus_at_once_miss_nothing() {
    let guest = TestGuest::restored(2);
    guest.probe("p:getpid __x64_sys_getpid");
    guest.probe("p:next __x64_sys_getpid+1");
    assert_eq!(guest.work("par 4 getpid 500"), 2000);
    assert_eq!(guest.hits("getpid"), 2000);
    assert_eq!(guest.hits("next"), 2000);
    guest.engine.drain();
    let page = guest.engine.events().read(1, 10_000);
    let vcpus: std::collections::BTreeSet<u8> = page.events.iter().map(|e| e.vcpu).collect();
    assert_eq!(vcpus.into_iter().collect::<Vec<_>>(), [0, 1], "both vCPUs hit");
    guest.assert_unharmed();
}

fn a_steady_probe_counts_all_while_others_come_and_go_at_its_address(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("p:steady __x64_sys_getpid");
    let calls = guest.work_during("par 2 getpid 3000", 5, |_| {
        guest.probe("p:other __x64_sys_getpid");
        guest.probe("p:near __task_pid_nr_ns");
        guest.engine.set_enabled(Selection::kprobe("kprobes", "other"), false).unwrap();
        guest.engine.set_enabled(Selection::kprobe("kprobes", "other"), true).unwrap();
        guest.engine.unregister(Selection::kprobe("kprobes", "near")).unwrap();
        guest.engine.unregister(Selection::kprobe("kprobes", "other")).unwrap();
    });
    assert_eq!(calls % 6000, 0);
    assert_eq!(guest.hits("steady"), calls);
    guest.assert_unharmed();
}

fn a_thousand_functions_at_once(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let symbols = kernel_symbols();
    let lines: Vec<String> = symbols
        .iter()
        .filter(|s| s.name.starts_with("__x64_sys_") || s.name.starts_with("vfs_"))
        .chain(symbols.iter().filter(|s| s.name.contains("file") || s.name.contains("page")))
        .filter(|s| symbols.lookup_function(s.name).is_ok())
        .enumerate()
        .map(|(n, s)| format!("p:t{n} {}", s.name))
        .filter(|line| guest.check(line).is_ok())
        .take(1000)
        .collect();
    assert!(guest.engine.list().is_empty(), "only looked at");
    assert_eq!(guest.probes(lines.into_iter()), 1000);
    assert_eq!(guest.work("getpid 10"), 10);
    assert_eq!(guest.work("fork 2"), 2);
    guest.assert_unharmed();
    assert_eq!(guest.list_text().lines().count(), 1000);
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}
