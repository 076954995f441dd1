//! Text that the guest rewrites.

use std::sync::atomic::{AtomicBool, Ordering};

use exoprobe_guest::Gpa;
use exoprobe_guest::layout::KERNEL_IMAGE_BASE;
use exoprobe_probes::{Selection, StatusFlag};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, cases};

pub(crate) const CASES: &[Case] = cases![
    text_that_is_rewritten_is_the_guests_until_it_is_back(vcpus),
    a_guest_writes_its_text_while_probes_come_and_go,
];

const NOP: u8 = 0x90;
const INT3: u8 = 0xcc;

fn text_that_is_rewritten_is_the_guests_until_it_is_back(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("p:entry __x64_sys_getpid");
    guest.probe("p:next __x64_sys_getpid+1");
    assert_eq!(guest.work("getpid 10"), 10);
    let entry = guest.status("entry");
    let at = entry.addr.expect("it is placed");
    let gpa = Gpa(at.0 - KERNEL_IMAGE_BASE.0);
    assert_eq!(entry.instruction.as_deref(), Some("push rbp"), "one byte, which pushes");
    let byte = |byte: u8| guest.vm.ram().store_byte(gpa, byte).unwrap();

    guest.vm.pause().unwrap();
    byte(NOP);
    guest.engine.patrol();
    assert_eq!(guest.status("entry").flags, [StatusFlag::Clobbered]);
    assert_eq!(guest.status("next").flags, []);
    assert_eq!(guest.vm.ram().load_byte(gpa), Ok(NOP));
    byte(0x55);
    guest.engine.patrol();
    assert_eq!(guest.status("entry").flags, []);
    assert_eq!(guest.vm.ram().load_byte(gpa), Ok(INT3));
    guest.vm.resume().unwrap();
    assert_eq!(guest.work("getpid 10"), 10);
    assert_eq!((guest.hits("entry"), guest.hits("next")), (20, 20));

    // The guest itself puts its instruction back, over the breakpoint.
    byte(0x55);
    assert_eq!(guest.work("getpid 10"), 10);
    assert_eq!((guest.hits("entry"), guest.hits("next")), (20, 30));
    guest.engine.patrol();
    assert_eq!(guest.work("getpid 10"), 10);
    assert_eq!((guest.hits("entry"), guest.hits("next")), (30, 40));
    guest.assert_unharmed();
    guest.engine.unregister(Selection::all()).unwrap();
    assert_eq!(guest.vm.ram().load_byte(gpa), Ok(0x55));
    guest.assert_unharmed();
}

/// Each of the guest's writes needs the lock that registration takes. On a host of one CPU, as in
/// the lab, it is taken whenever the guest runs.
fn a_guest_writes_its_text_while_probes_come_and_go() {
    const ROUNDS: u32 = 200_000;
    let guest = TestGuest::restored(1);
    guest.probe("p:steady __x64_sys_getpid");
    let before = guest.kernel_text();
    let ended = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let is_over = || ended.load(Ordering::Relaxed);
            let rounds = (0..ROUNDS).take_while(|_| !is_over()).map(|_| {
                guest.probe("p:other __x64_sys_getpid");
                guest.engine.unregister(Selection::kprobe("kprobes", "other")).unwrap();
            });
            rounds.count()
        });
        for _ in 0..4 {
            assert_eq!(guest.work("put /proc/sys/kernel/timer_migration 0"), 1);
            assert!(guest.work("sleep 50") >= 50);
            assert!(guest.kernel_text() != before, "it has turned branches");
            assert_eq!(guest.work("put /proc/sys/kernel/timer_migration 1"), 1);
            assert!(guest.work("sleep 50") >= 50);
        }
        ended.store(true, Ordering::Relaxed);
        changes.join().unwrap()
    });
    assert!(rounds < ROUNDS as usize, "the guest went on only when no probes came and went");
    println!("{rounds} times");
    assert_eq!(guest.work("getpid 10"), 10);
    assert_eq!(guest.hits("steady"), 10);
    assert!(guest.kernel_text() == before);
    guest.assert_unharmed();
}
