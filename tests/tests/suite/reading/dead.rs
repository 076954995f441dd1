//! Guests that have stopped: their memory and registers are read as they were at that moment.

use exoprobe_probes::{AttachError, Kprobe, ProbeError, Selection};
use exoprobe_tests::harness::Case;
use exoprobe_tests::http;
use exoprobe_tests::{PATIENCE, Service, TestGuest, TestKernel, address, cases, definition};
use exoprobe_vmm::{StopReason, StopRecord, Vm};
use serde_json::Value;

use crate::support::frames::parts;

pub(crate) const CASES: &[Case] = cases![
    a_panicked_guest_is_read_as_it_was(vcpus),
    a_guest_that_was_never_asked_before_its_end_is_read(vcpus),
    a_guest_that_was_shut_down_is_read_and_booted_again needs [Kvm, QuickKernel],
    a_guest_whose_handler_panicked_is_read_and_booted_again needs [Kvm, QuickKernel],
    a_dead_kernel_of_its_own_symbols_and_modules_is_read needs [Kvm, QuickKernel],
    a_guest_that_never_began_says_so needs [Kvm, Repeat],
    every_command_reads_a_panicked_guest needs [Kvm, Repeat],
];

fn panic_of(guest: &TestGuest) -> StopRecord {
    let _ = guest.send("panic");
    let record = guest.vm.wait_stopped(PATIENCE).expect("it stops");
    assert!(matches!(record.reason, StopReason::Panic { .. }), "{:?}", record.reason);
    record
}

/// Checks a guest that ended by init's panic.
fn assert_panicked(guest: &TestGuest, record: &StopRecord) {
    let frames = guest.engine.stack(record.vcpu).unwrap();
    let (names, _) = parts(&frames);
    let panic = names.iter().position(|name| *name == "panic");
    let caller = panic.and_then(|at| names.get(at + 1));
    assert!(caller.is_some_and(|name| name.starts_with("do_exit")), "{names:?}");
    assert!(names.contains(&"do_syscall_64"), "{names:?}");
    assert_eq!(guest.vm.registers(record.vcpu).unwrap().regs.rip, record.regs.rip);
    let processes = guest.engine.processes().unwrap();
    let first: Vec<_> = processes[..2].iter().map(|it| it.task.id.name()).collect();
    assert_eq!(first, ["init", "kthreadd"]);
    assert_eq!(processes[0].vcpus, [record.vcpu], "init caused it");
    let banner = guest.engine.address_of("linux_banner").unwrap();
    let mut text = [0; 14];
    guest.engine.read_memory(banner, &mut text).unwrap();
    assert_eq!(&text, b"Linux version ");
    let lines = guest.engine.disassemble(guest.engine.address_of("panic").unwrap()).unwrap();
    assert!(lines.len() > 20);
    assert!(guest.engine.running_kernel().banner.is_some());
}

fn a_panicked_guest_is_read_as_it_was(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("p:getpid __x64_sys_getpid");
    assert_eq!(guest.work("getpid 3"), 3);
    let record = panic_of(&guest);
    assert_panicked(&guest, &record);
    let at = address("__x64_sys_getpid");
    let mut without = [0];
    guest.engine.read_without_probes(at, &mut without).unwrap();
    assert_ne!(without, [0xcc], "the guest's own bytes");
    let late = guest.engine.register(definition("p:late vfs_read"));
    assert!(matches!(late.unwrap_err().error, ProbeError::Attach(AttachError::Stopped)));
    guest.engine.unregister(Selection::all()).unwrap();
}

fn a_guest_that_was_never_asked_before_its_end_is_read(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let record = panic_of(&guest);
    let ram = |guest: &TestGuest| {
        let mut bytes = vec![0; usize::try_from(guest.vm.ram().size()).unwrap()];
        guest.vm.ram().read(exoprobe_guest::Gpa(0), &mut bytes).unwrap();
        bytes
    };
    let before = ram(&guest);
    assert_panicked(&guest, &record);
    assert!(ram(&guest) == before, "questions change nothing");
}

fn a_guest_that_was_shut_down_is_read_and_booted_again() {
    let guest = TestGuest::restored(1);
    guest.vm.shut_down();
    let first = guest.engine.stack(0).unwrap();
    assert!(!first.is_empty());
    assert_eq!(guest.engine.stack(0).unwrap(), first);
    assert_eq!(guest.engine.processes().unwrap()[0].task.id.name(), "init");
    guest.reboot();
    guest.probe("p:getpid __x64_sys_getpid");
    assert_eq!((guest.work("getpid 5"), guest.hits("getpid")), (5, 5));
    guest.assert_unharmed();
}

fn a_guest_whose_handler_panicked_is_read_and_booted_again() {
    let guest = TestGuest::restored(1);
    let probe = Kprobe {
        definition: definition("p:bad __x64_sys_getpid"),
        pre_handler: Some(Box::new(|_| std::panic::resume_unwind(Box::new("a bug in a handler")))),
        ..Kprobe::default()
    };
    guest.engine.register(probe).unwrap();
    let _ = guest.send("getpid 1");
    let record = guest.vm.wait_stopped(PATIENCE).expect("it stops");
    let at = address("__x64_sys_getpid");
    assert_eq!(guest.vm.registers(0).unwrap().regs.rip, record.regs.rip);
    assert_eq!(record.regs.rip & !1, at.0 & !1, "at the int3, or after it");
    let frames = guest.engine.stack(0).unwrap();
    assert!(parts(&frames).0.contains(&"do_syscall_64"), "{frames:?}");
    guest.engine.unregister(Selection::all()).unwrap();
    guest.reboot();
    assert_eq!(guest.work("getpid 5"), 5);
}

fn a_dead_kernel_of_its_own_symbols_and_modules_is_read() {
    let guest = TestKernel::Linux6_12.restored(1);
    let symbols = guest.engine.symbols().unwrap().len();
    assert_eq!(guest.work("insmod test_module"), 1);
    let record = panic_of(&guest);
    assert_panicked(&guest, &record);
    assert!(guest.engine.symbols().unwrap().len() >= symbols);
    let modules = guest.engine.modules().unwrap();
    assert!(modules.iter().any(|module| module.name == "test_module"), "{modules:?}");
    assert!(guest.engine.types().is_ok());
}

fn a_guest_that_never_began_says_so() {
    let config = TestGuest::config("vmlinux", 1);
    let guest = TestGuest::new(Vm::create(exoprobe_tests::host(), &config).unwrap());
    guest.vm.shut_down();
    let error = guest.engine.stack(0).unwrap_err();
    assert_eq!(error.code(), "ESHUTDOWN");
    assert!(guest.engine.symbols().is_ok(), "its file has them");
}

fn every_command_reads_a_panicked_guest() {
    let service = Service::restored(1);
    let _ = http::ask(service.socket(), "POST", "/v1/vm/serial/1", &[], b"panic\n");
    let status =
        || -> Value { serde_json::from_str(&service.ok(&["--json", "vm", "status"])).unwrap() };
    let deadline = std::time::Instant::now() + PATIENCE;
    while status()["state"] != "stopped" {
        assert!(std::time::Instant::now() < deadline, "{}", status());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let shows = [
        (&["stack", "0"][..], "panic+"),
        (&["ps"], "kthreadd"),
        (&["x", "linux_banner", "16"], "Linux version"),
        (&["symbols", "vfs_read"], "vfs_read"),
        (&["disas", "panic"], "panic"),
        (&["vm", "registers"], "rip"),
    ];
    for (command, shown) in shows {
        let output = service.ok(command);
        assert!(output.contains(shown), "{command:?}: {output}");
    }
    let refused = [
        &["probe", "add", "p vfs_read"][..],
        &["vm", "send", "ping"],
        &["vm", "pause"],
        &["vm", "resume"],
        &["vm", "snapshot", "dead.snap"],
    ];
    for command in refused {
        let output = service.client(command);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{command:?}");
        assert!(error.contains("the guest has stopped"), "{command:?}: {error}");
        assert_eq!(error.contains("`exoprobe stack`"), command[1] == "snapshot", "{error}");
    }
    assert!(!std::path::Path::new("dead.snap").exists());
}
