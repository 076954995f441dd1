//! Back-traces: of hits, and of a vCPU from outside.

use std::time::{Duration, Instant};

use exoprobe_probes::{Action, Selection};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, Service, TestGuest, cases, http};

use crate::support::frames::{held, parts, register};
use crate::support::returned::{By, events_of, follow};

pub(crate) const CASES: &[Case] = cases![
    a_hits_back_trace_ends_where_the_system_call_entered(vcpus),
    a_vcpus_stack_is_returned_while_a_hit_holds_the_machine(vcpus),
    a_stack_shows_true_callers_where_return_probes_have_trampolines(vcpus),
    a_vcpu_in_user_mode_has_frames_of_user_mode(vcpus),
    a_stack_is_shown_by_http_and_on_the_command_line needs [Kvm, Repeat],
];

/// The callers of a system call.
const CALLERS: [&str; 3] = ["x64_sys_call", "do_syscall_64", "entry_SYSCALL_64_after_hwframe"];

fn a_hits_back_trace_ends_where_the_system_call_entered(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    register(&guest, "p:getpid __x64_sys_getpid", &[Action::Stack]);
    assert_eq!(guest.work("getpid 5"), 5);
    let events = events_of(&guest, "getpid");
    assert_eq!(events.len(), 5);
    for event in events {
        let stack = event.stack.as_ref().expect("it was asked for");
        let names: Vec<&str> = stack.iter().filter_map(|f| f.symbol_name.as_deref()).collect();
        assert_eq!(names, [&["__x64_sys_getpid"], &CALLERS[..]].concat(), "{stack:?}");
    }
    guest.assert_unharmed();
}

fn a_vcpus_stack_is_returned_while_a_hit_holds_the_machine(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    register(&guest, "p:hold __x64_sys_getpid", &[Action::Stop]);
    let from = guest.send("getpid 1");
    let vcpu = held(&guest);
    let frames = guest.engine.stack(vcpu).unwrap();
    let (kernel, user) = parts(&frames);
    assert_eq!(kernel, [&["__x64_sys_getpid"], &CALLERS[..]].concat());
    assert!(user >= 1, "the workload's system call: {frames:?}");
    assert_eq!((frames[0].offset, frames[1].offset > 0), (0, true));
    assert!(frames.iter().filter(|f| !f.user).all(|f| f.offset < f.size), "{frames:?}");
    assert_eq!(guest.engine.stack(vcpu).unwrap(), frames, "nothing runs");
    assert!(guest.engine.stack(vcpus).is_err(), "there is no such vCPU");
    guest.vm.resume().unwrap();
    assert_eq!(guest.answer(from, "getpid 1"), 1);
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn a_stack_shows_true_callers_where_return_probes_have_trampolines(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    for line in ["r:open do_sys_openat2", "r:outer __x64_sys_openat"] {
        follow(&guest, line, By::Trampoline);
    }
    register(&guest, "p:hold getname_flags", &[Action::Stop]);
    let from = guest.send("open /dev/null 1");
    let frames = guest.engine.stack(held(&guest)).unwrap();
    let inner = ["getname_flags", "getname", "do_sys_openat2", "__x64_sys_openat"];
    assert_eq!(parts(&frames).0, [&inner[..], &CALLERS[..]].concat(), "{frames:?}");
    guest.engine.unregister(Selection::kprobe("kprobes", "hold")).unwrap();
    guest.vm.resume().unwrap();
    assert_eq!(guest.answer(from, "open /dev/null 1"), 1);
    assert_eq!((guest.hits("open"), guest.hits("outer")), (1, 1));
    guest.assert_unharmed();
}

fn a_vcpu_in_user_mode_has_frames_of_user_mode(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let from = guest.send("spin 4000");
    guest.wait_until("a vCPU is in user mode", |guest| {
        let stack = |vcpu| guest.engine.stack(vcpu).unwrap();
        (0..vcpus).any(|vcpu| stack(vcpu).first().is_some_and(|frame| frame.user))
    });
    assert!(guest.answer(from, "spin 4000") >= 4000);
    // A task that waits is in the kernel.
    guest.wait_until("it waits", |guest| {
        let frames = guest.engine.stack(0).unwrap();
        parts(&frames).0.len() > 1
    });
    guest.assert_unharmed();
}

fn a_stack_is_shown_by_http_and_on_the_command_line() {
    let service = Service::restored(1);
    let status = |service: &Service| -> serde_json::Value {
        serde_json::from_str(&service.ok(&["--json", "vm", "status"])).unwrap()
    };
    let json = r#"{"event":"hold","symbol_name":"__x64_sys_getpid","actions":["stop"]}"#;
    let _ = service.ok(&["probe", "add", json]);
    let banner = status(&service)["banner"].clone();
    assert!(banner.as_str().unwrap().starts_with("Linux version "), "{banner}");
    // Its answer comes when the guest is resumed.
    let _ = http::ask(service.socket(), "POST", "/v1/vm/serial/1", &[], b"getpid 1\n");
    let deadline = Instant::now() + PATIENCE;
    while status(&service)["state"] != "paused" {
        assert!(Instant::now() < deadline, "no hit");
        std::thread::sleep(Duration::from_millis(10));
    }
    let text = service.ok(&["stack", "0"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with(" => __x64_sys_getpid+0x0/0x"), "{text}");
    for (line, caller) in lines[1..].iter().zip(CALLERS) {
        assert!(line.starts_with(&format!(" => {caller}+0x")), "{text}");
    }
    assert!(lines[4].ends_with(" (user)"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&service.ok(&["--json", "stack", "0"])).unwrap();
    assert_eq!(json[1]["symbol_name"], "x64_sys_call");
    assert_eq!((&json[1]["user"], &json[4]["user"]), (&false.into(), &true.into()));
    let _ = service.ok(&["probe", "rm", "hold"]);
    let _ = service.ok(&["vm", "resume"]);
}
