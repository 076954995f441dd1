//! Jmps in the functions of a loaded module, of Linux 6.12.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use exoprobe_probes::{ProbeState, Selection, StatusFlag};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, TestKernel, cases};

use crate::support::returned::events_of;

pub(crate) const CASES: &[Case] = cases![
    hits_in_a_module_never_leave_the_guest,
    a_module_comes_and_goes_under_load_with_its_probes_optimized needs [Smp],
    a_module_that_is_loaded_after_a_reboot_has_jmps_again,
];

const KERNEL: TestKernel = TestKernel::Linux6_12;
const TTY: &str = "/dev/ttynull";
/// ttynull has these functions, and each is entered once by an open and a close of the terminal.
const PROBES: [&str; 4] = [
    "p:open ttynull:ttynull_open tty=%di",
    "r:opened ttynull:ttynull_open got=$retval",
    "p:close ttynull:ttynull_close",
    "r:closed ttynull:ttynull_close",
];
const EVENTS: [&str; 4] = ["open", "opened", "close", "closed"];

fn states(guest: &TestGuest) -> [ProbeState; 4] {
    EVENTS.map(|event| guest.status(event).state)
}

fn hits(guest: &TestGuest) -> [u64; 4] {
    EVENTS.map(|event| guest.hits(event))
}

/// Loads the module and has the optimizer pass until all of its probes have jmps.
fn load(guest: &TestGuest) {
    assert_eq!(guest.work("insmod ttynull"), 1);
    guest.wait_until("all are optimized", |guest| {
        guest.engine.patrol();
        guest.engine.optimize();
        states(guest) == [ProbeState::Optimized; 4]
    });
}

/// As the service does all the time, while `act` runs.
fn with_patrol<T>(guest: &TestGuest, act: impl FnOnce() -> T) -> T {
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                guest.engine.patrol();
                guest.engine.optimize();
                guest.engine.drain();
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        ends.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Unloads it, as soon as the last terminal that was closed has let go of it.
fn unload(guest: &TestGuest) {
    const BUSY: &str = "error rmmod: delete_module: errno 11 (0 done)";
    const COMMAND: &str = "rmmod ttynull";
    guest.wait_until("the module is unloaded", |guest| {
        let answer = guest.answer_line(guest.send(COMMAND), COMMAND);
        assert!(answer == BUSY || answer == "done rmmod 1", "{answer}");
        answer != BUSY
    });
}

fn hits_in_a_module_never_leave_the_guest() {
    let guest = KERNEL.restored(1);
    PROBES.iter().for_each(|line| guest.probe(line));
    load(&guest);
    assert!(
        guest.list_text().contains("ttynull_open+0x0  ttynull [OPTIMIZED]"),
        "{}",
        guest.list_text()
    );
    let before = guest.vm.exit_counts().breakpoint;
    assert_eq!(guest.work(&format!("open {TTY} 500")), 500);
    assert_eq!(guest.vm.exit_counts().breakpoint - before, 0, "exits by int3s");
    assert_eq!(hits(&guest), [500; 4]);
    let opened = events_of(&guest, "opened");
    assert_eq!(opened.len(), 500);
    assert!(opened.iter().all(|event| event.args["got"] == "0x0"), "{:?}", opened[0]);
    // It waits at the engine's breakpoint until the jmps are out.
    with_patrol(&guest, || unload(&guest));
    for event in EVENTS {
        assert_eq!(guest.status(event).flags, [StatusFlag::Gone], "{event}");
    }
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
    assert!(guest.engine.traceless().is_some(), "no detour is left");
}

fn a_module_comes_and_goes_under_load_with_its_probes_optimized() {
    const ROUNDS: u64 = 6;
    const OPENS: u64 = 200;
    let guest = KERNEL.restored(2);
    PROBES.iter().for_each(|line| guest.probe(line));
    let mut places = Vec::new();
    for round in 1..=ROUNDS {
        load(&guest);
        places.push(guest.status("open").addr);
        with_patrol(&guest, || {
            let from = guest.send(&format!("par 2 open {TTY} {OPENS}"));
            // Jmps go and come while they are called: these are within them.
            for function in ["open", "close", "open", "close"] {
                guest.probe(&format!("p:within ttynull:ttynull_{function}+4"));
                guest.engine.unregister(Selection::kprobe("kprobes", "within")).unwrap();
            }
            assert_eq!(guest.answer(from, "par"), 2 * OPENS);
            unload(&guest);
        });
        assert_eq!(hits(&guest), [2 * OPENS * round; 4], "round {round}");
        assert_eq!(states(&guest), [ProbeState::Gone; 4]);
    }
    println!("it was at {places:x?}");
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn a_module_that_is_loaded_after_a_reboot_has_jmps_again() {
    let guest = KERNEL.restored(1);
    PROBES.iter().for_each(|line| guest.probe(line));
    for boot in 1..=2 {
        if boot == 2 {
            guest.reboot();
            assert_eq!(states(&guest), [ProbeState::Pending; 4]);
        }
        load(&guest);
        let before = guest.vm.exit_counts().breakpoint;
        assert_eq!(guest.work(&format!("open {TTY} 50")), 50);
        assert_eq!(guest.vm.exit_counts().breakpoint, before);
        assert_eq!(hits(&guest), [50 * boot; 4]);
    }
    guest.assert_unharmed();
}
