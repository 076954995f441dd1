//! Return probes: returns equal calls, exactly, and the guest does not notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use exoprobe_guest::layout::KERNEL_IMAGE_BASE;
use exoprobe_guest::{Gpa, Gva};
use exoprobe_probes::{
    EntryVerdict, Event, Kprobe, Kretprobe, ProbeDefinition, Selection, Verdict,
};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, address, cases, definition, kernel_symbols};

use crate::support::returned::{
    ALL, By, MODES, SCRATCH, assert_durations, events_of, follow, in_mode, values,
};

pub(crate) const CASES: &[Case] = cases![
    each_call_returns_once_with_its_value_to_its_caller(vcpus),
    calls_on_both_vcpus_at_once_are_all_followed needs [Kvm, Smp],
    probes_of_one_function_and_of_nested_ones_all_count(vcpus),
    one_of_several_return_probes_can_go_while_calls_are_under_way(vcpus),
    a_function_that_jumps_to_another_returns_once_for_both(vcpus) needs [Kvm, QuickKernel],
    calls_beyond_maxactive_are_missed_and_counted(vcpus),
    an_entry_handler_chooses_the_calls_to_follow(vcpus),
    data_of_an_entry_handler_is_there_at_the_return(vcpus),
    arguments_of_the_entry_are_there_at_the_return(vcpus),
    a_return_handler_changes_what_the_caller_sees(vcpus),
    only_a_trampoline_shows_on_the_guests_stack(vcpus),
    back_traces_show_true_addresses(vcpus),
];

/// f: dec edi; jz 1f; call f; inc eax; ret; 1: mov eax, 1; ret. So f(n) is n, by n calls in one
/// another.
const RECURSIVE: [u8; 18] = [
    0xff, 0xcf, 0x74, 0x08, 0xe8, 0xf7, 0xff, 0xff, 0xff, 0xff, 0xc0, 0xc3, 0xb8, 1, 0, 0, 0, 0xc3,
];

/// The function of an address.
fn symbol_at(addr: &str) -> String {
    let addr = u64::from_str_radix(addr.strip_prefix("0x").unwrap(), 16).unwrap();
    kernel_symbols().resolve(Gva(addr)).map(|found| found.name.to_owned()).unwrap_or_default()
}

/// The one function that all of these calls returned to.
fn caller(events: &[Arc<Event>]) -> String {
    let first = events[0].ret_addr.as_ref().expect("a return probe's event has it");
    assert!(events.iter().all(|event| event.ret_addr.as_ref() == Some(first)));
    symbol_at(first)
}

/// Followed to the end, none missed.
fn assert_books(guest: &TestGuest, event: &str, hits: u64) {
    let status = guest.status(event);
    assert_eq!((status.hits, status.nmissed), (hits, 0), "{event}");
    assert_eq!(status.active, Some(0), "{event}");
}

fn each_call_returns_once_with_its_value_to_its_caller(vcpus: u8) {
    for mode in ALL {
        let guest = TestGuest::restored(vcpus);
        let lines = [
            "r:getpid __x64_sys_getpid pid=$retval",
            "r:write ksys_write $retval",
            "r:open do_sys_openat2 $retval",
        ];
        lines.iter().for_each(|line| follow(&guest, line, mode));
        guest.probe("p:written ksys_write");
        assert_eq!(guest.work("getpid 500"), 500);
        assert_books(&guest, "getpid", 500);
        assert_eq!(guest.work("open /dev/null 100"), 100);
        assert_books(&guest, "open", 100);
        assert_eq!(guest.work("write 200"), 200);
        // The answers are written too, the last of which is still on its way back.
        guest.wait_until("the answer's write returns", |g| g.hits("write") == g.hits("written"));

        ["getpid", "open", "write"].iter().for_each(|event| assert_durations(&guest, event));
        let getpid = events_of(&guest, "getpid");
        assert_eq!(values(&getpid, "pid"), ["0x1"; 500], "init's own");
        let write = events_of(&guest, "write");
        assert_eq!(values(&write, "arg1").iter().filter(|v| **v == "0x1").count(), 200);
        let open = events_of(&guest, "open");
        let first = open[0].args["arg1"].clone();
        assert!(open.iter().all(|e| e.args["arg1"] == first), "the lowest free descriptor");
        assert_eq!(caller(&getpid), "x64_sys_call");
        assert_eq!(caller(&write), "__x64_sys_write");
        assert_eq!(caller(&open), "__x64_sys_openat");
        assert!(getpid.iter().all(|e| e.offset == 0), "the function's own address");
        guest.assert_unharmed();
        guest.engine.unregister(Selection::all()).unwrap();
        assert_eq!(guest.work("getpid 5"), 5);
        guest.assert_unharmed();
    }
}

fn calls_on_both_vcpus_at_once_are_all_followed() {
    for mode in ALL {
        let guest = TestGuest::restored(2);
        follow(&guest, "r:getpid __x64_sys_getpid $retval", mode);
        follow(&guest, "r:inner __task_pid_nr_ns $retval", mode);
        assert_eq!(guest.work("par 2 getpid 500"), 1000);
        assert_books(&guest, "getpid", 1000);
        let events = events_of(&guest, "getpid");
        let mut pids = values(&events, "arg1");
        pids.sort_unstable();
        assert_eq!(pids[..500], [pids[0]; 500]);
        assert_eq!(pids[500..], [pids[999]; 500]);
        assert_ne!(pids[0], pids[999], "each child has its own");
        let vcpus: std::collections::BTreeSet<u8> = events.iter().map(|e| e.vcpu).collect();
        assert_eq!(vcpus.len(), 2, "both vCPUs return");
        guest.assert_unharmed();
    }
}

fn probes_of_one_function_and_of_nested_ones_all_count(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("p:entry getname");
    follow(&guest, "r:first getname name=$retval", By::Trampoline);
    follow(&guest, "r:second getname name=$retval", By::Trampoline);
    follow(&guest, "r:third getname name=$retval", By::Site);
    follow(&guest, "r:callee getname_flags name=$retval", By::Trampoline);
    follow(&guest, "r:caller do_sys_openat2", By::Trampoline);
    follow(&guest, "r:outer __x64_sys_openat", By::Site);
    assert_eq!(guest.work("open /dev/null 100"), 100);
    assert_eq!(guest.hits("entry"), 100);
    for event in ["first", "second", "third", "callee", "caller", "outer"] {
        assert_books(&guest, event, 100);
    }
    let names = values(&events_of(&guest, "callee"), "name").join(" ");
    for event in ["first", "second", "third"] {
        let events = events_of(&guest, event);
        assert_eq!(values(&events, "name").join(" "), names, "{event}: what getname passes on");
        assert_eq!(caller(&events), "do_sys_openat2");
    }
    guest.engine.unregister(Selection::kretprobe("kprobes", "first")).unwrap();
    guest.engine.set_enabled(Selection::kretprobe("kprobes", "third"), false).unwrap();
    assert_eq!(guest.work("open /dev/null 10"), 10);
    assert_books(&guest, "second", 110);
    assert_books(&guest, "callee", 110);
    assert_books(&guest, "third", 100);
    guest.assert_unharmed();
}

fn one_of_several_return_probes_can_go_while_calls_are_under_way(vcpus: u8) {
    for mode in ALL {
        let guest = TestGuest::restored(vcpus);
        let (mut calls, mut rounds) = (0, 0);
        follow(&guest, "r:steady __x64_sys_getpid", mode);
        while rounds < 3 {
            let command = "par 2 getpid 1000";
            let from = guest.send(command);
            while guest.is_silent(from) {
                follow(&guest, "r:other __x64_sys_getpid", mode);
                follow(&guest, "r:inner __task_pid_nr_ns", mode);
                guest.wait_until("some calls", |g| g.hits("other") > 2 || !g.is_silent(from));
                guest.engine.unregister(Selection::kretprobe("kprobes", "other")).unwrap();
                guest.engine.unregister(Selection::kretprobe("kprobes", "inner")).unwrap();
                rounds += 1;
            }
            calls += guest.answer(from, command);
        }
        assert_books(&guest, "steady", calls);
        guest.assert_unharmed();
    }
}

/// Sends getpid to another function by a jump.
fn divert_getpid(guest: &TestGuest, to: Gva, argument: u64) {
    let probe = Kprobe {
        definition: definition("p:divert __x64_sys_getpid"),
        pre_handler: Some(Box::new(move |hit| {
            (hit.regs.rip, hit.regs.rdi) = (to.0, argument);
            Verdict::Done
        })),
        ..Kprobe::default()
    };
    guest.engine.register(probe).unwrap();
}

fn a_function_that_jumps_to_another_returns_once_for_both(vcpus: u8) {
    let both = ALL.iter().flat_map(|outer| ALL.map(|inner| (*outer, inner)));
    for (outer, inner) in both.filter(|both| *both != (By::Site, By::Site)) {
        let guest = TestGuest::restored(vcpus);
        follow(&guest, "r:inner __x64_sys_getppid $retval", inner);
        follow(&guest, "r:outer __x64_sys_getpid $retval", outer);
        divert_getpid(&guest, address("__x64_sys_getppid"), 0);
        assert_eq!(guest.work("par 2 getpid 50"), 100);
        for event in ["outer", "inner"] {
            assert_books(&guest, event, 100);
            let events = events_of(&guest, event);
            assert_eq!(values(&events, "arg1"), ["0x1"; 100], "init is their parent");
            assert_eq!(caller(&events), "x64_sys_call");
        }
        guest.assert_unharmed();
    }
}

fn calls_beyond_maxactive_are_missed_and_counted(vcpus: u8) {
    const DEPTH: u64 = 5;
    for mode in MODES {
        let guest = TestGuest::restored(vcpus);
        let f = address(SCRATCH);
        let gpa = Gpa(f.0 - KERNEL_IMAGE_BASE.0);
        guest.vm.ram().write(gpa, &RECURSIVE).expect("kernel text is in RAM");
        divert_getpid(&guest, f, DEPTH);
        let asked = Arc::new(AtomicU64::new(0));
        let at_entry = Arc::clone(&asked);
        let three = Kretprobe {
            definition: in_mode(&format!("r3:three {SCRATCH} $retval"), mode),
            entry_handler: Some(Box::new(move |_, _| {
                at_entry.fetch_add(1, Ordering::SeqCst);
                EntryVerdict::Follow
            })),
            ..Kretprobe::default()
        };
        guest.engine.register(three).unwrap();
        follow(&guest, &format!("r:all {SCRATCH} $retval"), mode);
        guest.probe(&format!("p:calls {SCRATCH}"));
        assert_eq!(guest.work("getpid 20"), 20);
        assert_eq!(guest.hits("calls"), 20 * DEPTH);
        assert_books(&guest, "all", 20 * DEPTH);
        let events = events_of(&guest, "all");
        assert_eq!(values(&events, "arg1"), ["0x1", "0x2", "0x3", "0x4", "0x5"].repeat(20));
        let three = guest.status("three");
        assert_eq!((three.hits, three.nmissed, three.active), (20 * 3, 20 * 2, Some(0)));
        assert_eq!(asked.load(Ordering::SeqCst), 20 * 3, "not about those that are missed");
        let events = events_of(&guest, "three");
        assert_eq!(values(&events, "arg1"), ["0x3", "0x4", "0x5"].repeat(20), "the outer calls");
        guest.engine.unregister(Selection::all()).unwrap();
        guest.assert_unharmed();
    }
}

fn an_entry_handler_chooses_the_calls_to_follow(vcpus: u8) {
    for mode in MODES {
        let guest = TestGuest::restored(vcpus);
        let (entries, returns) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (at_entry, at_return) = (Arc::clone(&entries), Arc::clone(&returns));
        let probe = Kretprobe {
            definition: in_mode("r1:half __x64_sys_getpid", mode),
            entry_handler: Some(Box::new(move |_, _| {
                match at_entry.fetch_add(1, Ordering::SeqCst) % 2 {
                    0 => EntryVerdict::Follow,
                    _ => EntryVerdict::Skip,
                }
            })),
            handler: Some(Box::new(move |_, _| {
                at_return.fetch_add(1, Ordering::SeqCst);
            })),
            ..Kretprobe::default()
        };
        guest.engine.register(probe).unwrap();
        assert_eq!(guest.work("getpid 100"), 100);
        assert_books(&guest, "half", 50);
        assert_eq!(entries.load(Ordering::SeqCst), 100);
        assert_eq!(returns.load(Ordering::SeqCst), 50);
        guest.assert_unharmed();
    }
}

/// Each call's own words: where it was entered, and a number that no other call has.
fn data_of_an_entry_handler_is_there_at_the_return(vcpus: u8) {
    for mode in MODES {
        let guest = TestGuest::restored(vcpus);
        let (entries, sum) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
        let at_return = Arc::clone(&sum);
        let probe = Kretprobe {
            definition: in_mode("r:data __x64_sys_getpid", mode),
            data_size: 17,
            entry_handler: Some(Box::new(move |instance, hit| {
                assert_eq!(instance.data[..], [0; 17], "cleared for each call");
                assert_eq!(instance.entered, hit.time());
                let number = 1 + entries.fetch_add(1, Ordering::SeqCst);
                instance.data[..8].copy_from_slice(&hit.regs.rsp.to_le_bytes());
                instance.data[8..16].copy_from_slice(&number.to_le_bytes());
                instance.data[16] = 0xff;
                EntryVerdict::Follow
            })),
            handler: Some(Box::new(move |instance, hit| {
                let word =
                    |at: usize| u64::from_le_bytes(instance.data[at..at + 8].try_into().unwrap());
                assert_eq!(word(0) + 8, hit.regs.rsp, "the call that was entered there");
                assert_eq!(instance.data[16], 0xff);
                assert!(instance.entered < hit.time());
                assert_eq!(hit.regs.rip, instance.ret_addr.0);
                at_return.fetch_add(word(8), Ordering::SeqCst);
            })),
            ..Kretprobe::default()
        };
        guest.engine.register(probe).unwrap();
        assert_eq!(guest.work("par 2 getpid 100"), 200);
        assert_books(&guest, "data", 200);
        assert_eq!(sum.load(Ordering::SeqCst), 200 * 201 / 2, "each number came back once");
        guest.assert_unharmed();
    }
}

fn arguments_of_the_entry_are_there_at_the_return(vcpus: u8) {
    for mode in ALL {
        let guest = TestGuest::restored(vcpus);
        guest.probe("p:entered ksys_write fd=%di n=%dx");
        follow(&guest, "r:write ksys_write fd=$arg1 n=$arg3 result=$retval", mode);
        let open = "r:open do_sys_openat2 dfd=$arg1:s32 name=+u0($arg2):ustring $arg16";
        follow(&guest, open, mode);
        if mode == By::Code {
            guest.optimize("write");
        }
        assert_eq!(guest.work("par 2 write 50"), 100);
        guest.wait_until("the last returns", |g| g.hits("write") == g.hits("entered"));
        let (entered, written) = (events_of(&guest, "entered"), events_of(&guest, "write"));
        for name in ["fd", "n"] {
            let [mut entered, mut written] = [&entered, &written].map(|all| values(all, name));
            entered.sort_unstable();
            written.sort_unstable();
            assert_eq!(entered, written, "{name}, {mode:?}");
        }
        assert_eq!(values(&written, "n"), values(&written, "result"), "all of it was written");
        assert_eq!(values(&written, "n").iter().filter(|n| **n == "0x1").count(), 100);
        // The children opened what they wrote to, too.
        let before = events_of(&guest, "open").len();
        assert_eq!(guest.work("open /dev/null 20"), 20);
        assert_books(&guest, "open", before as u64 + 20);
        let open = events_of(&guest, "open").split_off(before);
        assert_eq!(values(&open, "name"), ["/dev/null"; 20], "read at the return");
        assert!(open.iter().all(|event| event.args["dfd"] == -100), "{:?}", open[0]);
        guest.assert_unharmed();
    }
}

fn a_return_handler_changes_what_the_caller_sees(vcpus: u8) {
    const EACCES: i64 = 13;
    for mode in MODES {
        let guest = TestGuest::restored(vcpus);
        let probe = Kretprobe {
            definition: in_mode("r:deny do_sys_openat2 $retval", mode),
            handler: Some(Box::new(|_, hit| hit.regs.rax = (-EACCES).cast_unsigned())),
            ..Kretprobe::default()
        };
        guest.engine.register(probe).unwrap();
        let answer = guest.answer_line(guest.send("open /dev/null 1"), "open");
        assert!(answer.starts_with("error open: ") && answer.contains("13"), "EACCES: {answer}");
        assert_books(&guest, "deny", 1);
        guest.engine.unregister(Selection::kretprobe("kprobes", "deny")).unwrap();
        assert_eq!(guest.work("open /dev/null 3"), 3);
        guest.assert_unharmed();
    }
}

/// The return address of do_sys_openat2 as the guest itself would find it, from inside.
fn only_a_trampoline_shows_on_the_guests_stack(vcpus: u8) {
    for mode in ALL {
        let guest = TestGuest::restored(vcpus);
        let seen = Arc::new(AtomicU64::new(0));
        let see = Arc::clone(&seen);
        let probe = Kprobe {
            definition: definition("p:inside getname"),
            pre_handler: Some(Box::new(move |hit| {
                let at = Gva(hit.regs.rbp + 8);
                see.store(hit.read_u64(at).expect("a frame"), Ordering::SeqCst);
                Verdict::Continue
            })),
            ..Kprobe::default()
        };
        guest.engine.register(probe).unwrap();
        let look = || {
            assert_eq!(guest.work("open /dev/null 1"), 1);
            seen.load(Ordering::SeqCst)
        };
        let original = look();
        assert_eq!(symbol_at(&format!("{original:#x}")), "__x64_sys_openat");
        follow(&guest, "r:open do_sys_openat2", mode);
        let followed = look();
        let hidden = guest.vm.hidden();
        let window = match mode {
            By::Trampoline => hidden.trampoline_window(),
            By::Code => hidden.detour_window(),
            By::Site => None,
        };
        match window {
            Some(window) => assert!((window.gva.0..window.gva.0 + window.len).contains(&followed)),
            None => assert_eq!(followed, original),
        }
        assert_books(&guest, "open", 1);
        guest.engine.unregister(Selection::kretprobe("kprobes", "open")).unwrap();
        assert_eq!(look(), original);
        guest.assert_unharmed();
    }
}

fn back_traces_show_true_addresses(vcpus: u8) {
    const OUTER: [&str; 3] = ["__x64_sys_openat", "x64_sys_call", "do_syscall_64"];
    for mode in ALL {
        let guest = TestGuest::restored(vcpus);
        let stack = vec![exoprobe_probes::Action::Stack];
        let trace = |definition: ProbeDefinition| {
            let definition = ProbeDefinition { actions: stack.clone(), ..definition };
            guest.engine.register(definition).unwrap();
        };
        follow(&guest, "r:open do_sys_openat2", mode);
        follow(&guest, "r:flags getname_flags", mode);
        trace(definition("p:entry getname_flags"));
        trace(definition("p:after getname+8"));
        // The same place, by its address alone.
        let after = address("getname").0 + 8;
        trace(definition(&format!("p:by_addr {after:#x}")));
        trace(in_mode("r:back getname_flags", mode));
        assert_eq!(guest.work("open /dev/null 20"), 20);
        let names = |event: &str| {
            let events = events_of(&guest, event);
            assert_eq!(events.len(), 20);
            let name =
                |frame: &exoprobe_probes::StackFrame| frame.symbol_name.clone().unwrap_or_default();
            let traces =
                events.iter().map(|e| e.stack.iter().flatten().map(name).collect::<Vec<_>>());
            let mut traces: Vec<Vec<String>> = traces.collect();
            traces.dedup();
            assert_eq!(traces.len(), 1, "each call comes the same way: {traces:?}");
            traces.remove(0)
        };
        let called = [&["getname_flags", "getname", "do_sys_openat2"], &OUTER[..]].concat();
        for event in ["entry", "back"] {
            assert_eq!(names(event)[..called.len()], called, "{event} {mode:?}");
        }
        for event in ["after", "by_addr"] {
            assert_eq!(names(event)[..called.len() - 1], called[1..], "{event} {mode:?}");
        }
        guest.assert_unharmed();
    }
}
