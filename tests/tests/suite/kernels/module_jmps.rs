//! Jmps in the functions of a loaded module, of Linux 6.12.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use exoprobe_guest::{Gpa, Gva, paging};
use exoprobe_probes::{ProbeState, Selection, StatusFlag};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, TestKernel, cases, host};
use exoprobe_vmm::{HostSides, Vm};

use crate::support::returned::{SCRATCH, events_of};

pub(crate) const CASES: &[Case] = cases![
    hits_in_a_module_never_leave_the_guest needs [Kvm, QuickKernel],
    a_module_comes_and_goes_under_load_with_its_probes_optimized needs [Smp, QuickKernel],
    a_module_that_is_loaded_after_a_reboot_has_jmps_again needs [Kvm, QuickKernel],
    a_module_that_a_snapshot_has_gets_jmps_in_the_restored_guest,
    what_is_in_a_modules_tables_keeps_its_int3 needs [Kvm, Repeat],
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
    optimize(guest);
}

fn optimize(guest: &TestGuest) {
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

fn a_module_that_a_snapshot_has_gets_jmps_in_the_restored_guest() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("with-module");
    let guest = KERNEL.restored(1);
    PROBES.iter().for_each(|line| guest.probe(line));
    load(&guest);
    guest.engine.unregister(Selection::all()).unwrap();
    guest.vm.snapshot(&path).unwrap();
    drop(guest);
    let vm = Vm::restore(host(), &path, &HostSides::default()).unwrap();
    let twin = TestGuest::of_kernel(vm, None);
    twin.power_on();
    PROBES.iter().for_each(|line| twin.probe(line));
    optimize(&twin);
    let before = twin.vm.exit_counts().breakpoint;
    assert_eq!(twin.work(&format!("open {TTY} 50")), 50);
    assert_eq!((hits(&twin), twin.vm.exit_counts().breakpoint), ([50; 4], before));
    with_patrol(&twin, || unload(&twin));
    assert_eq!(states(&twin), [ProbeState::Gone; 4]);
    twin.assert_unharmed();
}

/// The module's struct, of which the test changes members.
struct Struct<'a> {
    guest: &'a TestGuest,
    at: Gva,
}

impl<'a> Struct<'a> {
    /// The one of the module that was loaded last.
    fn last(guest: &'a TestGuest) -> Self {
        let head = guest.engine.symbols().unwrap().lookup("modules").unwrap().address;
        let first = u64::from_le_bytes(guest.bytes(head, 8).try_into().unwrap());
        Self { guest, at: Gva(first - Self::offset(guest, "list")) }
    }

    fn offset(guest: &TestGuest, member: &str) -> u64 {
        let types = guest.engine.types().unwrap();
        let module = types.find("struct module").expect("it takes modules");
        types.field(module, member).expect("each kernel has it").offset()
    }

    /// Writes to the first bytes of a member.
    fn set(&self, member: &str, bytes: &[u8]) {
        let at = self.at.wrapping_add(Self::offset(self.guest, member));
        self.guest.vm.ram().write(place(self.guest, at), bytes).unwrap();
    }
}

fn place(guest: &TestGuest, at: Gva) -> Gpa {
    paging::translate(guest.vm.ram(), guest.paging_mode(), at).expect("it is mapped").gpa
}

/// ttynull has no such tables: the test plants some of one entry. Its kernel reads them when an
/// instruction faults, a key is switched or the module goes, which do not happen here.
fn what_is_in_a_modules_tables_keeps_its_int3() {
    let guest = KERNEL.restored(1);
    PROBES.iter().for_each(|line| guest.probe(line));
    load(&guest);
    let module = Struct::last(&guest);
    let open = guest.status("open").addr.unwrap();
    let table = guest.engine.symbols().unwrap().lookup(SCRATCH).unwrap().address;
    let (inside, outside) = (open.wrapping_add(4), open.wrapping_add(0x10));
    let [extable, keys, calls] = [
        ["extable", "num_exentries"],
        ["jump_entries", "num_jump_entries"],
        ["static_call_sites", "num_static_call_sites"],
    ];
    for ([at, count], first, second, rule) in [
        (extable, inside, outside, "exception-table: "),
        (extable, outside, inside, "jump-into: "),
        (keys, inside, outside, "rewritten: "),
        (keys, outside, inside, "jump-into: "),
        (calls, inside, outside, "rewritten: "),
    ] {
        let distance = |of: u64, to: Gva| to.0.wrapping_sub(table.0 + of).to_le_bytes();
        let entry = [&distance(0, first)[..4], &distance(4, second)[..4], &[0; 8]].concat();
        guest.vm.ram().write(place(&guest, table), &entry).unwrap();
        module.set(at, &table.0.to_le_bytes());
        module.set(count, &1_u32.to_le_bytes());
        guest.wait_until("the reason is reported", |guest| {
            guest.engine.patrol();
            guest.engine.optimize();
            let status = guest.status("open");
            let reason = status.unoptimized_reason.unwrap_or_default();
            status.state == ProbeState::Armed && reason.starts_with(rule)
        });
        assert_eq!(guest.status("close").state, ProbeState::Optimized, "another function");
        let before = guest.hits("open");
        assert_eq!(guest.work(&format!("open {TTY} 10")), 10);
        assert_eq!(guest.hits("open"), before + 10);
        module.set(count, &[0; 4]);
        module.set(at, &[0; 8]);
        optimize(&guest);
    }
    with_patrol(&guest, || unload(&guest));
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}
