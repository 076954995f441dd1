//! Probes that are there before the guest is: from the kernel's first C function on.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use exoprobe_probes::{Kprobe, ProbeStatus, Selection, StatusFlag, Verdict};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, TestGuest, cases, definition, function_size, host, kernel_symbols};
use exoprobe_vmm::Vm;

pub(crate) const CASES: &[Case] = cases![probes_set_before_power_on_count_from_the_kernels_first_function(vcpus) needs [Kvm, QuickKernel]];

/// Functions that boot runs through once. Those of the first list are freed with init text.
const ONCE_INIT: [&str; 5] = [
    "x86_64_start_kernel",
    "x86_64_start_reservations",
    "start_kernel",
    "setup_arch",
    "sched_init",
];
const ONCE: [&str; 3] = ["rest_init", "kernel_init", "free_initmem"];
/// Bytes of `start_kernel` that are probed one by one: its prologue, without a branch.
const PROLOGUE: u64 = 12;
/// Reads user memory, between instructions that the kernel patches while it boots.
const READER: &str = "strncpy_from_user";

/// A probe at each byte of the beginning of a function, `function_OFFSET`: whether an instruction
/// starts there is not known before the guest runs.
fn set_at_each_byte(guest: &TestGuest, function: &str, bytes: u64) {
    for offset in 0..bytes {
        guest.probe(&format!("p:{function}_{offset} {function}+{offset}"));
    }
}

fn of_function(guest: &TestGuest, function: &str) -> Vec<ProbeStatus> {
    let prefix = format!("{function}_");
    let of = |status: &ProbeStatus| {
        let offset = status.event.strip_prefix(&prefix);
        offset.is_some_and(|offset| offset.bytes().all(|byte| byte.is_ascii_digit()))
    };
    guest.engine.list().into_iter().filter(of).collect()
}

/// Holds the guest: a probe in the middle of its boot.
struct Halfway {
    reached: Receiver<()>,
    go_on: SyncSender<()>,
}

impl Halfway {
    fn set(guest: &TestGuest, place: &str) -> Self {
        let (reach, reached) = sync_channel(1);
        let (go_on, resumed) = sync_channel::<()>(1);
        let resumed = Mutex::new(resumed);
        let probe = Kprobe {
            definition: definition(&format!("p:halfway {place}")),
            pre_handler: Some(Box::new(move |_| {
                let resumed = resumed.lock().unwrap();
                let _ = reach.send(()).map(|()| resumed.recv_timeout(PATIENCE));
                Verdict::Continue
            })),
            ..Kprobe::default()
        };
        guest.engine.register(probe).unwrap();
        Self { reached, go_on }
    }
}

fn set_all(guest: &TestGuest) {
    for function in ONCE_INIT.iter().chain(&ONCE) {
        guest.probe(&format!("p:{function} {function}"));
    }
    set_at_each_byte(guest, "start_kernel", PROLOGUE);
    set_at_each_byte(guest, READER, function_size(READER));
    for function in ["do_one_initcall", "_printk"] {
        guest.probe(&format!("p:{function}_called {function}"));
        guest.probe(&format!("r:{function}_returned {function}"));
    }
    guest.probe("p:refused startup_64");
    guest.probe("p:secondary start_secondary");
    guest.probe("p:dead do_task_dead");
    guest.probe("p:getpid __x64_sys_getpid");
}

/// The kernel's own list of calls: one 32-bit word each.
fn initcalls() -> u64 {
    let symbols = kernel_symbols();
    let edge = |name| symbols.lookup(name).unwrap().address.0;
    (edge("__initcall_end") - edge("__initcall_start")) / 4
}

fn probes_set_before_power_on_count_from_the_kernels_first_function(vcpus: u8) {
    // Both images, in as many boots as there are numbers of vCPUs.
    let kernel = if vcpus == 1 { "bzImage" } else { "vmlinux" };
    let guest = TestGuest::new(Vm::create(host(), &TestGuest::config(kernel, vcpus)).unwrap());
    let halfway = Halfway::set(&guest, "sched_init");
    set_all(&guest);
    for status in guest.engine.list() {
        assert_eq!(status.flags, [StatusFlag::Pending], "{status:?}");
        assert!(status.reason.is_some_and(|reason| reason.contains("not begun")));
    }
    guest.vm.start(guest.engine.exit_hook()).unwrap();
    halfway.reached.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("{e}: {}", guest.console()));
    let patched = check_halfway(&guest);
    halfway.go_on.send(()).unwrap();
    guest.wait_for_prompt();
    check_booted(&guest, vcpus);
    check_patched_places(&guest, &patched);
    let gone = guest.status("start_kernel");
    assert_eq!((gone.flags, gone.hits), (vec![StatusFlag::Gone], 1));
    guest.assert_unharmed();
    // Once is enough, for a boot takes long.
    if vcpus == 1 {
        check_the_next_boot(&guest);
    }
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

/// All probes are there from the first function on when the guest is booted again.
fn check_the_next_boot(guest: &TestGuest) {
    // That one is never resumed.
    guest.engine.unregister(Selection::kprobe("kprobes", "halfway")).unwrap();
    let calls = guest.hits("getpid");
    guest.reboot();
    for function in ONCE_INIT.iter().chain(&ONCE) {
        assert_eq!(guest.hits(function), 2, "{function}");
    }
    assert_eq!(guest.status("start_kernel").flags, [StatusFlag::Gone], "and gone again");
    assert_eq!(guest.hits("do_one_initcall_called"), guest.hits("do_one_initcall_returned"));
    assert_eq!(guest.work("getpid 30"), 30);
    assert_eq!(guest.hits("getpid"), calls + 30);
    guest.assert_unharmed();
}

/// At `sched_init`, before the kernel patches itself; gives the probes that wait for that.
fn check_halfway(guest: &TestGuest) -> Vec<String> {
    assert_eq!(guest.status("start_kernel").hits, 1);
    assert_eq!(guest.status("rest_init").hits, 0);
    for event in ["start_kernel", "rest_init", "do_one_initcall_returned", "getpid"] {
        assert_eq!(guest.status(event).flags, [], "{event} is armed");
    }
    let waits = |status: &ProbeStatus, why: &str| {
        let has_reason = status.reason.as_ref().is_some_and(|reason| reason.contains(why));
        has_reason && status.flags == [StatusFlag::Pending]
    };
    let inside = of_function(guest, "start_kernel");
    assert!(inside.iter().any(|status| waits(status, "is inside the")), "{inside:?}");
    let patched = of_function(guest, READER).into_iter();
    let patched = patched.filter(|status| waits(status, "while it boots")).map(|s| s.event);
    let patched: Vec<String> = patched.collect();
    assert!(!patched.is_empty(), "the kernel patches no instruction of {READER}");
    patched
}

fn check_booted(guest: &TestGuest, vcpus: u8) {
    for function in ONCE_INIT.iter().chain(&ONCE) {
        let status = guest.status(function);
        let gone = ONCE_INIT.contains(function);
        let flags: &[StatusFlag] = if gone { &[StatusFlag::Gone] } else { &[] };
        assert_eq!((status.hits, status.flags.as_slice()), (1, flags), "{function}");
    }
    let prologue = of_function(guest, "start_kernel");
    let (placed, pending): (Vec<_>, Vec<_>) =
        prologue.into_iter().partition(|status| status.flags == [StatusFlag::Gone]);
    assert!(placed.len() > 2 && !pending.is_empty(), "{placed:?}");
    assert!(placed.iter().all(|status| status.hits == 1), "one straight line: {placed:?}");
    for status in pending {
        assert_eq!((status.flags.as_slice(), status.hits), (&[StatusFlag::Pending][..], 0));
    }
    let refused = guest.status("refused");
    assert_eq!(refused.flags, [StatusFlag::Pending]);
    assert!(refused.reason.is_some_and(|reason| reason.contains("at another address")));
    assert_eq!(guest.hits("do_one_initcall_called"), initcalls());
    for function in ["do_one_initcall", "_printk"] {
        let returned = guest.status(&format!("{function}_returned"));
        assert_eq!(returned.hits, guest.hits(&format!("{function}_called")), "{returned:?}");
        assert!(returned.hits > 1 && returned.nmissed == 0 && returned.active == Some(0));
    }
    assert_eq!(guest.hits("secondary"), u64::from(vcpus) - 1);
    assert_eq!(guest.work("getpid 100"), 100);
    assert_eq!(guest.hits("getpid"), 100);
    let dead = guest.hits("dead");
    assert_eq!(guest.work("fork 5"), 5);
    assert_eq!(guest.hits("dead") - dead, 5, "beside the engine's own mark");
}

/// A probe that waited for its text is armed, and counts as its function's entry does. Several nops
/// that the kernel made one of are no instructions any more.
fn check_patched_places(guest: &TestGuest, patched: &[String]) {
    let waits = |event: &&String| guest.status(event).flags == [StatusFlag::Pending];
    let (merged, patched): (Vec<&String>, Vec<&String>) = patched.iter().partition(waits);
    for event in merged {
        let reason = guest.status(event).reason.unwrap_or_default();
        assert!(reason.contains("is inside the"), "{event}: {reason}");
    }
    assert!(!patched.is_empty());
    let entry = format!("{READER}_0");
    let counts = || -> Vec<u64> { patched.iter().map(|event| guest.hits(event)).collect() };
    let (before, calls) = (counts(), guest.hits(&entry));
    guest.work("open /dev/null 20");
    let calls = guest.hits(&entry) - calls;
    assert!(calls >= 20);
    for ((event, before), after) in patched.iter().zip(before).zip(counts()) {
        assert_eq!(guest.status(event).flags, [], "{event}");
        assert!(after - before <= calls, "{event}: {} of {calls} calls", after - before);
        assert!(after > before, "{event} is on the way of each call");
    }
}
