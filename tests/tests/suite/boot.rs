//! From power-on.

use std::path::Path;
use std::time::{Duration, Instant};

use exoprobe_probes::{AttachError, ProbeError, parse_line};
use exoprobe_tests::TestGuest;
use exoprobe_vmm::{DEFAULT_KVM, Host, Vm};

#[test]
fn a_probe_is_refused_while_the_kernel_boots_and_the_machine_can_go_at_any_moment() {
    let host = Host::open(Path::new(DEFAULT_KVM)).unwrap();
    let begun = Instant::now();
    let guest = TestGuest::start(Vm::create(&host, &TestGuest::config("vmlinux", 1)).unwrap());
    let early = guest.engine.register_kprobe(parse_line("p:getpid __x64_sys_getpid").unwrap());
    let error = early.unwrap_err();
    assert!(matches!(error, ProbeError::Attach(AttachError::Booting)), "{error}");
    assert_eq!(error.code(), "EAGAIN");
    std::thread::sleep(Duration::from_millis(300));
    assert!(guest.vm.registers(0).is_ok(), "a vCPU in the middle of boot answers");
    let clock = guest.vm.clock();
    let seconds = clock.seconds(clock.now());
    assert!(seconds > 0.3 && seconds <= begun.elapsed().as_secs_f64(), "since power-on: {seconds}");
}

#[test]
fn a_bzimage_boots_and_is_probed_by_the_symbols_of_its_vmlinux() {
    let host = Host::open(Path::new(DEFAULT_KVM)).unwrap();
    let guest = TestGuest::start(Vm::create(&host, &TestGuest::config("bzImage", 1)).unwrap());
    // Input that comes before the guest has opened its port waits for it, whole.
    guest.vm.serial(1).unwrap().send(b"ping\n").unwrap();
    guest.wait_for_prompt();
    assert_eq!(guest.answer(0, "ping"), 1);
    guest.probe("p:getpid __x64_sys_getpid");
    assert_eq!(guest.work("getpid 100"), 100);
    assert_eq!(guest.hits("getpid"), 100);
    guest.assert_unharmed();
}
