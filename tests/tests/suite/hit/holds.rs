//! A hook that holds the machine in the middle of a hit.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use exoprobe_guest::{BreakpointAction, ExitHook, Gva, HitContext, KernelEntry};
use exoprobe_probes::{Action, ProbeDefinition, Selection};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, TestGuest, TestKernel, cases, definition, kernel_symbols};
use exoprobe_vmm::{ControlError, StopReason, VmState};

pub(crate) const CASES: &[Case] = cases![
    a_hit_holds_the_machine_until_it_is_resumed(vcpus),
    threads_that_pause_and_resume_are_not_in_the_way_of_holds(vcpus),
    a_machine_that_is_held_can_be_booted_again_and_shut_down(vcpus) needs [Kvm, QuickKernel],
    the_action_stop_holds_at_the_entry_and_at_the_return(vcpus),
];

/// The value that the hook writes to R11, which holds nothing at a function's entry.
const MARK: u64 = 0x1dea_5eed;

/// Stands before the engine's hook: a hit at `at` is held, and goes to the engine when it is
/// released.
struct Holder {
    engine: Arc<dyn ExitHook>,
    at: Gva,
    vcpus: usize,
    /// vCPUs that have come here.
    met: Mutex<BTreeSet<u8>>,
    holds: AtomicU64,
    releases: AtomicU64,
    resets: AtomicU64,
}

impl Holder {
    fn holds(&self) -> u64 {
        self.holds.load(Ordering::SeqCst)
    }

    /// Lets no vCPU be held alone before all have been held at once, or it is clear that no other
    /// comes.
    fn meet(&self, vcpu: u8) {
        self.met.lock().unwrap().insert(vcpu);
        let deadline = Instant::now() + Duration::from_secs(1);
        while self.met.lock().unwrap().len() < self.vcpus && Instant::now() < deadline {
            std::thread::yield_now();
        }
    }

    fn releases(&self) -> u64 {
        self.releases.load(Ordering::SeqCst)
    }
}

impl ExitHook for Holder {
    fn breakpoint(&self, context: &mut HitContext<'_>) -> BreakpointAction {
        if context.rip() != self.at {
            return self.engine.breakpoint(context);
        }
        self.meet(context.vcpu);
        context.regs.r11 = MARK;
        self.holds.fetch_add(1, Ordering::SeqCst);
        BreakpointAction::Hold
    }

    fn release(&self, context: &mut HitContext<'_>) {
        assert_eq!((context.rip(), context.regs.r11), (self.at, MARK), "as it was left");
        assert_eq!(self.engine.breakpoint(context), BreakpointAction::Resume);
        assert_ne!(context.rip(), self.at);
        self.releases.fetch_add(1, Ordering::SeqCst);
    }

    fn kernel_entered(&self, entry: &KernelEntry) -> bool {
        self.engine.kernel_entered(entry)
    }

    fn reset(&self) {
        self.engine.reset();
        self.resets.fetch_add(1, Ordering::SeqCst);
    }
}

/// A restored guest with a probe at getpid, whose hits are held.
fn guest(vcpus: u8) -> (TestGuest, Arc<Holder>) {
    let vm = TestKernel::Tiny.restored_vm(vcpus);
    let guest = TestGuest::new(vm);
    let at = kernel_symbols().lookup_function("__x64_sys_getpid").unwrap().address;
    let (met, holds, releases, resets) = Default::default();
    let (engine, vcpus) = (guest.engine.exit_hook(), usize::from(vcpus));
    let holder = Arc::new(Holder { engine, at, vcpus, met, holds, releases, resets });
    guest.vm.start(Arc::clone(&holder) as Arc<dyn ExitHook>).unwrap();
    guest.probe("p:getpid __x64_sys_getpid");
    (guest, holder)
}

fn wait_for(guest: &TestGuest, what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}: {:?}: {}", guest.vm.state(), guest.console());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The machine is paused at a hit, and stays so whatever is asked of it but to resume.
fn inspect(guest: &TestGuest, holder: &Holder) {
    assert!(matches!(guest.vm.state(), VmState::Paused));
    guest.vm.sync_vcpus().unwrap();
    let (held, exits) = (guest.vm.held(), guest.vm.exit_counts());
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((guest.vm.held(), guest.vm.exit_counts()), (held.clone(), exits), "nothing runs");
    guest.vm.pause().unwrap();
    assert!(!held.is_empty() && held.is_sorted(), "{held:?}");
    for vcpu in &held {
        let regs = guest.vm.registers(*vcpu).unwrap().regs;
        assert_eq!((Gva(regs.rip), regs.r11), (holder.at, MARK));
    }
    assert_eq!(holder.holds() - holder.releases(), held.len() as u64);
    let nowhere = std::path::Path::new("/nonexistent/snapshot");
    assert!(matches!(guest.vm.snapshot(nowhere), Err(ControlError::Held)));
    assert_eq!((guest.vm.held(), guest.vm.exit_counts()), (held, exits));
}

fn a_hit_holds_the_machine_until_it_is_resumed(vcpus: u8) {
    let (guest, holder) = guest(vcpus);
    let (mut together, mut rounds) = (0, 0);
    // A host that has much to do runs one vCPU for long while the other waits.
    while together < usize::from(vcpus) && rounds < 20 {
        together = together.max(hold_all(&guest, &holder));
        rounds += 1;
    }
    let hits = 40 * rounds;
    assert_eq!((guest.hits("getpid"), holder.holds(), holder.releases()), (hits, hits, hits));
    assert_eq!(together, usize::from(vcpus), "vCPUs were held at once");
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

/// Resumes the machine at each hit of 40 calls; gives how many vCPUs were held at once.
fn hold_all(guest: &TestGuest, holder: &Holder) -> usize {
    let from = guest.send("par 2 getpid 20");
    let mut together = 0;
    loop {
        wait_for(guest, "no hit", || !guest.vm.held().is_empty() || !guest.is_silent(from));
        if guest.vm.held().is_empty() {
            break;
        }
        inspect(guest, holder);
        together = together.max(guest.vm.held().len());
        guest.vm.resume().unwrap();
    }
    assert_eq!(guest.answer(from, "par"), 40);
    together
}

fn threads_that_pause_and_resume_are_not_in_the_way_of_holds(vcpus: u8) {
    let (guest, holder) = guest(vcpus);
    let over = AtomicBool::new(false);
    // For when this test fails: then nothing else ends it.
    let deadline = Instant::now() + 2 * PATIENCE;
    let from = std::thread::scope(|scope| {
        for n in 0..4 {
            let (vm, over) = (&guest.vm, &over);
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) && Instant::now() < deadline {
                    if n % 2 == 0 { vm.pause() } else { vm.resume() }.unwrap();
                    std::thread::sleep(Duration::from_micros(100 * n));
                }
            });
        }
        let from = guest.send("par 4 getpid 100");
        wait_for(&guest, "no answer", || !guest.is_silent(from));
        over.store(true, Ordering::SeqCst);
        from
    });
    // The last of them may have paused it.
    guest.vm.resume().unwrap();
    assert_eq!(guest.answer(from, "par"), 400);
    assert_eq!((guest.hits("getpid"), holder.holds(), holder.releases()), (400, 400, 400));
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn a_machine_that_is_held_can_be_booted_again_and_shut_down(vcpus: u8) {
    let held = |guest: &TestGuest| {
        let _ = guest.send("par 2 getpid 20");
        wait_for(guest, "no hit", || !guest.vm.held().is_empty());
    };
    let (first, holder) = guest(vcpus);
    held(&first);
    first.vm.shut_down();
    let record = first.vm.wait_stopped(Duration::ZERO).expect("it has stopped");
    assert_eq!(record.reason, StopReason::ShutDown);
    assert_eq!((first.vm.held(), holder.releases()), (vec![], 0));

    let (second, holder) = guest(vcpus);
    held(&second);
    let exits = second.vm.exit_counts().port;
    second.vm.reboot().unwrap();
    assert_eq!((second.vm.held(), holder.resets.load(Ordering::SeqCst)), (vec![], 1));
    wait_for(&second, "does nothing", || second.vm.exit_counts().port > exits);
    assert!(matches!(second.vm.state(), VmState::Running));
    assert_eq!((second.vm.boots(), holder.releases()), (2, 0), "the hit is of the former boot");
}

/// By data alone: each call is held twice, with the registers of the place, and is one hit of each
/// probe.
fn the_action_stop_holds_at_the_entry_and_at_the_return(vcpus: u8) {
    const CALLS: u64 = 3;
    let guest = TestGuest::restored(vcpus);
    let entry = kernel_symbols().lookup_function("__x64_sys_getpid").unwrap().address;
    for line in ["p:entry __x64_sys_getpid", "r:ret __x64_sys_getpid"] {
        let actions = vec![Action::Record, Action::Stop];
        let definition = ProbeDefinition { actions, ..definition(line) };
        guest.engine.register(definition).unwrap();
    }
    let from = guest.send(&format!("getpid {CALLS}"));
    let mut places = Vec::new();
    loop {
        wait_for(&guest, "no hit", || !guest.vm.held().is_empty() || !guest.is_silent(from));
        let Some(vcpu) = guest.vm.held().first().copied() else { break };
        let regs = guest.vm.registers(vcpu).unwrap().regs;
        places.push((Gva(regs.rip) == entry, regs.rax == 1));
        guest.vm.resume().unwrap();
    }
    assert_eq!(guest.answer(from, "getpid"), CALLS);
    // Process 1 receives its number.
    let (entered, returned): (Vec<_>, Vec<_>) = places.iter().partition(|(entry, _)| *entry);
    assert_eq!((entered.len() as u64, returned.len() as u64), (CALLS, CALLS), "{places:?}");
    assert!(returned.iter().all(|(_, is_pid)| *is_pid), "{places:?}");
    assert_eq!((guest.hits("entry"), guest.hits("ret")), (CALLS, CALLS));
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}
