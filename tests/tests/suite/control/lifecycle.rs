//! Run control, states and snapshots.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use exoprobe_guest::{GuestTime, paging};
use exoprobe_probes::{AttachError, Kprobe, ProbeError, Selection};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, TestGuest, TestKernel, cases, definition, guest_file, host};
use exoprobe_vmm::{
    BootFiles, ControlError, CreateError, HostSides, NewFileError, RebootError, SnapshotError,
    StopReason, StopRecord, Vm, VmConfig, VmState,
};

/// IA32_EFER, long mode active (Intel SDM vol. 3, 2.2.1).
const EFER_LMA: u64 = 1 << 10;

pub(crate) const CASES: &[Case] = cases![
    a_paused_guest_does_nothing_and_goes_on_where_it_was(vcpus),
    a_panic_and_a_reset_become_states_and_the_data_stays(vcpus),
    a_guest_without_an_idt_ends_in_a_triple_fault(vcpus) needs [Kvm, TripleFault],
    a_handler_that_panics_stops_the_machine_and_says_so(vcpus),
    shutdown_by_the_user_stops_all_vcpus(vcpus),
    a_guest_boots_again_whatever_it_was_doing(vcpus) needs [Kvm, QuickKernel],
    a_guest_that_cannot_be_booted_again_goes_on_as_it_was,
    a_snapshot_taken_under_load_goes_on_in_another_machine(vcpus),
    a_guest_does_not_feel_how_long_its_snapshot_lay(vcpus),
    a_snapshot_replaces_regular_files_and_nothing_else needs [Kvm, Repeat],
    a_damaged_snapshot_is_refused_by_the_part_that_is_damaged needs [Kvm, Repeat],
];

fn stopped_by(guest: &TestGuest, command: &str) -> StopRecord {
    let _ = guest.send(command);
    guest.vm.wait_stopped(PATIENCE).unwrap_or_else(|| panic!("{command}: {}", guest.console()))
}

/// A guest that was paused in the middle of its calls of getpid.
struct AtWork {
    /// Where their answer will be in the port's log.
    from: u64,
    /// How many calls it was asked for.
    calls: u64,
    /// Hits of `getpid` when they are all done.
    hits: u64,
}

fn pause_at_work(guest: &TestGuest) -> AtWork {
    let mut calls = 2000;
    loop {
        let before = guest.hits("getpid");
        let from = guest.send(&format!("par 2 getpid {}", calls / 2));
        let deadline = Instant::now() + PATIENCE;
        while guest.hits("getpid") == before {
            assert!(Instant::now() < deadline, "{}", guest.console());
            std::thread::yield_now();
        }
        guest.vm.pause().unwrap();
        let hits = before + calls;
        if guest.hits("getpid") < hits && guest.is_silent(from) {
            return AtWork { from, calls, hits };
        }
        // A fast guest had done it before the pause.
        guest.vm.resume().unwrap();
        assert_eq!(guest.answer(from, "par"), calls);
        calls *= 4;
    }
}

fn a_paused_guest_does_nothing_and_goes_on_where_it_was(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("p:getpid __x64_sys_getpid");
    let work = pause_at_work(&guest);
    guest.vm.pause().unwrap();
    assert!(matches!(guest.vm.state(), VmState::Paused));
    let (hits, regs) = (guest.hits("getpid"), guest.vm.registers(vcpus - 1).unwrap().regs);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(guest.hits("getpid"), hits);
    assert!(guest.is_silent(work.from));
    assert_eq!(guest.vm.registers(vcpus - 1).unwrap().regs, regs);
    // Probes come and go on a paused guest too.
    guest.probe("p:more vfs_write");
    guest.engine.unregister(Selection::kprobe("kprobes", "more")).unwrap();
    guest.vm.resume().unwrap();
    guest.vm.resume().unwrap();
    assert_eq!(guest.answer(work.from, "par"), work.calls);
    assert_eq!(guest.hits("getpid"), work.hits);
    guest.assert_unharmed();
}

fn a_panic_and_a_reset_become_states_and_the_data_stays(vcpus: u8) {
    for command in ["panic", "poweroff", "reboot"] {
        let guest = TestGuest::restored(vcpus);
        guest.probe("p:getpid __x64_sys_getpid");
        guest.work("getpid 7");
        let clock = guest.vm.clock();
        let before = clock.seconds(clock.now());
        let record = stopped_by(&guest, command);
        let after = clock.seconds(clock.now());
        match command {
            "panic" => {
                let StopReason::Panic { message } = &record.reason else {
                    panic!("{:?}", record.reason)
                };
                assert!(message.contains("kill init"), "{message}");
            }
            _ => assert_eq!(record.reason, StopReason::Reset),
        }
        assert!(record.regs.rip > 0xffff_ffff_8000_0000, "registers of that moment");
        assert!(before <= record.seconds && record.seconds <= after, "the guest's time");
        assert_eq!(guest.hits("getpid"), 7, "books outlive the guest");
        let late = guest.engine.register(definition("p:late vfs_read"));
        assert!(matches!(late.unwrap_err().error, ProbeError::Attach(AttachError::Stopped)));
        assert!(matches!(guest.vm.pause(), Err(ControlError::Stopped)));
        assert!(guest.vm.registers(vcpus - 1).is_ok(), "memory and registers can be read");
        guest.engine.unregister(Selection::all()).unwrap();
    }
}

fn a_guest_without_an_idt_ends_in_a_triple_fault(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.vm.pause().unwrap();
    let idt = exoprobe_guest::Gva(guest.vm.registers(0).unwrap().sregs.idt.base);
    let idt = paging::translate(guest.vm.ram(), guest.paging_mode(), idt).unwrap();
    guest.vm.ram().write(idt.gpa, &[0; 4096]).unwrap();
    guest.vm.resume().unwrap();
    let _ = guest.send("getpid 1");
    let record = guest.vm.wait_stopped(PATIENCE).expect("it stops");
    assert_eq!(record.reason, StopReason::TripleFault);
}

fn a_handler_that_panics_stops_the_machine_and_says_so(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let probe = Kprobe {
        definition: definition("p:bad __x64_sys_getpid"),
        // A panic as any other, without its message among those of tests that fail.
        pre_handler: Some(Box::new(|_| std::panic::resume_unwind(Box::new("a bug in a handler")))),
        ..Kprobe::default()
    };
    guest.engine.register(probe).unwrap();
    let _ = guest.send("getpid 1");
    let record = guest.vm.wait_stopped(PATIENCE).expect("it stops");
    let StopReason::Failed { message } = record.reason else { panic!("{:?}", record.reason) };
    assert!(message.contains("panicked"), "{message}");
    assert_eq!(guest.engine.list()[0].hits, 1, "the books stay");
}

fn shutdown_by_the_user_stops_all_vcpus(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let _ = guest.send("par 2 getpid 100000");
    // The tiny kernel has no ACPI.
    let pressed = guest.vm.press_power_button();
    assert!(matches!(pressed, Err(ControlError::NoPowerButton)), "{pressed:?}");
    guest.vm.shut_down();
    let pressed = guest.vm.press_power_button();
    assert!(matches!(pressed, Err(ControlError::Stopped)), "{pressed:?}");
    let exits = guest.vm.exit_counts();
    let record = guest.vm.wait_stopped(Duration::ZERO).unwrap();
    assert_eq!(record.reason, StopReason::ShutDown);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(guest.vm.exit_counts(), exits, "nothing runs any more");
}

/// Boots the guest again to where it works, and checks what goes on and what begins anew.
fn reboot(guest: &TestGuest) {
    let (boots, exits, console) = (guest.vm.boots(), guest.vm.exit_counts(), guest.console());
    let before = guest.vm.clock().now();
    guest.reboot();
    assert!(matches!(guest.vm.state(), VmState::Running));
    assert_eq!(guest.vm.boots(), boots + 1);
    assert!(guest.vm.clock().now() > before, "its time goes on");
    assert!(guest.vm.exit_counts().port > exits.port, "and so do its exits");
    assert!(guest.console().starts_with(&console), "and its console");
    assert_eq!(guest.work("par 2 getpid 10"), 20);
    for vcpu in 0..guest.vm.config().vcpus {
        let efer = guest.vm.registers(vcpu).unwrap().sregs.efer;
        assert_ne!(efer & EFER_LMA, 0, "vCPU {vcpu} was brought up");
    }
}

fn a_guest_boots_again_whatever_it_was_doing(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    assert_eq!(guest.vm.boots(), 1);
    let _ = guest.send("par 2 getpid 100000");
    if vcpus > 1 {
        guest.vm.pause().unwrap();
    }
    reboot(&guest);
    guest.assert_unharmed();
    // Each of the reasons to stop, and of the kinds of memory: a snapshot's file, and none.
    let (command, sign) = if vcpus > 1 { ("panic", "panic") } else { ("reboot", "no sign") };
    let record = stopped_by(&guest, command);
    assert_eq!(matches!(record.reason, StopReason::Panic { .. }), command == "panic");
    assert!(!guest.vm.reboot_after(1).unwrap(), "it has been booted since");
    reboot(&guest);
    assert_eq!(guest.vm.boots(), 3);
    guest.assert_unharmed_but_for(sign);
    // What the panic's text says is of the former boot.
    assert_eq!(stopped_by(&guest, "reboot").reason, StopReason::Reset);
}

fn a_guest_that_cannot_be_booted_again_goes_on_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let kernel = dir.path().join("vmlinux");
    std::fs::copy(guest_file("vmlinux"), &kernel).unwrap();
    let mut vm = TestKernel::Tiny.restored_vm(1);
    let VmConfig { initramfs, cmdline, .. } = TestGuest::config("vmlinux", 1);
    let files = BootFiles { kernel: kernel.clone(), initramfs, cmdline: Some(cmdline) };
    vm.set_boot_files(files).unwrap();
    let guest = TestGuest::new(vm);
    assert!(matches!(guest.vm.reboot(), Err(RebootError::NotStarted)));
    guest.power_on();
    std::fs::remove_file(&kernel).unwrap();
    assert!(matches!(guest.vm.reboot(), Err(RebootError::Boot(_))));
    assert_eq!(guest.vm.boots(), 1);
    guest.assert_unharmed();
}

/// Takes a snapshot while the guest works; gives what the work's answer is.
fn snapshot_under_load(guest: &TestGuest, path: &Path) -> u64 {
    let mut calls = 1500;
    loop {
        let command = format!("par 2 getpid {calls}");
        let from = guest.send(&command);
        std::thread::sleep(Duration::from_millis(150));
        guest.vm.snapshot(path).unwrap();
        let under_load = guest.is_silent(from);
        assert_eq!(guest.answer(from, &command), 2 * calls, "the original goes on");
        if under_load {
            return 2 * calls;
        }
        // A fast guest had done it before the snapshot.
        calls *= 4;
    }
}

fn a_snapshot_taken_under_load_goes_on_in_another_machine(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("under-load");
    let clock = guest.vm.clock();
    let before = clock.now();
    let calls = snapshot_under_load(&guest, &path);
    let after = clock.now();
    let host = host();
    let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "it holds the guest's memory");
    let ready = clock.now();
    let twin = TestGuest::start(Vm::restore(host, &path, &HostSides::default()).unwrap());
    let (restored, now) = (twin.vm.clock().now(), clock.now());
    assert!(restored >= before, "its time goes on where it was");
    assert!(now.0 - restored.0 >= ready.0 - after.0, "and stood still in the file");
    assert_eq!(twin.answer(0, "par"), calls, "and so does the copy");
    twin.probe("p:getpid __x64_sys_getpid");
    assert_eq!(twin.work("par 2 getpid 100"), 200);
    assert_eq!(twin.hits("getpid"), 200);
    twin.assert_unharmed();
    guest.assert_unharmed();
}

/// Pauses the guest in the middle of a sleep; gives when that was asked for, and how many
/// milliseconds.
fn pause_asleep(guest: &TestGuest) -> (GuestTime, u64) {
    let mut millis = 1000;
    loop {
        guest.probe("p:asleep hrtimer_nanosleep");
        let begun = guest.vm.clock().now();
        let from = guest.send(&format!("sleep {millis}"));
        let deadline = Instant::now() + PATIENCE;
        while guest.hits("asleep") == 0 {
            assert!(Instant::now() < deadline, "{}", guest.console());
            std::thread::sleep(Duration::from_millis(1));
        }
        // A snapshot wants no probes.
        guest.engine.unregister(Selection::kprobe("kprobes", "asleep")).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        guest.vm.pause().unwrap();
        if guest.is_silent(from) {
            return (begun, millis);
        }
        // It was over before the pause.
        guest.vm.resume().unwrap();
        guest.answer(from, "sleep");
        millis *= 4;
    }
}

fn a_guest_does_not_feel_how_long_its_snapshot_lay(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let clock = guest.vm.clock();
    let (begun, asked) = pause_asleep(&guest);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("asleep");
    guest.vm.snapshot(&path).unwrap();
    guest.vm.shut_down();
    std::thread::sleep(Duration::from_secs(5));
    let host = host();
    let twin = TestGuest::start(Vm::restore(host, &path, &HostSides::default()).unwrap());
    let millis = twin.answer(0, "sleep");
    assert!(millis >= asked, "{millis} ms by its own clock, of {asked}");
    // The guest's own clock against the engine's, which stood still in the file. Both may tick a
    // little differently.
    let passed = clock.seconds(GuestTime(twin.vm.clock().now().0 - begun.0));
    let slept = f64::from(u32::try_from(millis).unwrap()) / 1e3;
    assert!(slept < 1.5 * passed, "it felt {slept} s, of which {passed} s passed for it");
    twin.assert_unharmed();
}

fn a_snapshot_replaces_regular_files_and_nothing_else() {
    let guest = TestGuest::restored(1);
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("old"), "old").unwrap();
    // Named as a service's own files were once, which it removed.
    let foreign = at(&format!("old.{}.partial", std::process::id()));
    std::fs::write(&foreign, "mine").unwrap();
    guest.vm.snapshot(&at("old")).unwrap();
    assert_eq!(std::fs::read(&foreign).unwrap(), b"mine");
    drop(Vm::restore(host(), &at("old"), &HostSides::default()).unwrap());
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    std::os::unix::fs::symlink(at("old"), at("link")).unwrap();
    for name in ["socket", "link"] {
        let kind = at(name).symlink_metadata().unwrap().file_type();
        match guest.vm.snapshot(&at(name)) {
            Err(ControlError::Snapshot(SnapshotError::File(NewFileError::NotAFile(_)))) => {}
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(at(name).symlink_metadata().unwrap().file_type(), kind);
    }
    let missing = guest.vm.snapshot(&at("missing/x"));
    assert!(matches!(missing, Err(ControlError::Snapshot(_))), "{missing:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4, "nothing else is left");
    guest.assert_unharmed();
}

/// Offset of a byte, and the error that its change must give.
type Flip = (u64, fn(&SnapshotError) -> bool);

fn a_damaged_snapshot_is_refused_by_the_part_that_is_damaged() {
    let host = host();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged");
    let restore = || match Vm::restore(host, &path, &HostSides::default()) {
        Ok(_) => panic!("a damaged snapshot was restored"),
        Err(CreateError::Snapshot(error)) => error,
        Err(other) => panic!("{other}"),
    };
    assert!(matches!(restore(), SnapshotError::Io { .. }), "missing");
    std::fs::write(&path, b"EXO").unwrap();
    assert!(matches!(restore(), SnapshotError::NotASnapshot(_)));
    std::fs::write(&path, [b'x'; 100]).unwrap();
    assert!(matches!(restore(), SnapshotError::NotASnapshot(_)));
    let whole = TestGuest::snapshot(1);
    let len = std::fs::metadata(&whole).unwrap().len();
    let flips: [Flip; 5] = [
        (8, |e| matches!(e, SnapshotError::Version { .. })),
        (16, |e| matches!(e, SnapshotError::Damaged { part: "header", .. })),
        (100, |e| matches!(e, SnapshotError::Damaged { part: "metadata", .. })),
        (len - (3 << 20), |e| matches!(e, SnapshotError::Damaged { part: "memory", .. })),
        (len - 1, |e| matches!(e, SnapshotError::Damaged { part: "memory", .. })),
    ];
    for (at, expected) in flips {
        std::fs::copy(&whole, &path).unwrap();
        let mut file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let mut byte = [0];
        file.seek(SeekFrom::Start(at)).unwrap();
        file.read_exact(&mut byte).unwrap();
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(&[byte[0] ^ 0x40]).unwrap();
        let error = restore();
        assert!(expected(&error), "byte {at}: {error}");
    }
    std::fs::copy(&whole, &path).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(len - 4096).unwrap();
    assert!(matches!(restore(), SnapshotError::Damaged { part: "memory", .. }), "cut off");
}
