//! Faults and interrupts around instructions that run in hidden memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use exoprobe_guest::{BreakpointAction, ExitHook, Gva, HitContext, fault_fixup};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, address, cases, kernel_symbols};

use crate::support::planted::Stopped;
use crate::support::tables::table_of;

pub(crate) const CASES: &[Case] = cases![
    a_fault_in_a_slot_is_fixed_up_as_one_of_the_original(vcpus),
    no_interrupt_comes_between_an_sti_of_a_hook_and_the_next_instruction,
];

/// strncpy_from_user(to, from, count): reads user memory by instructions in the exception table.
const READER: &str = "strncpy_from_user";
/// No user memory is there: mmap_min_addr.
const BAD_POINTER: u64 = 0x10;
/// The functions that a device's and the timer's interrupts call.
const INTERRUPTS: [&str; 2] = ["common_interrupt", "sysvec_apic_timer_interrupt"];
const GETPID: &str = "__x64_sys_getpid";
/// Long enough for the guest's tick to come.
const A_FEW_TICKS: Duration = Duration::from_millis(40);

/// Sends each of some instructions to its slot.
struct Diversion {
    /// Slots by instruction.
    slots: BTreeMap<u64, u64>,
    entry: u64,
    /// Has the next call read at a bad address.
    spoil: AtomicBool,
    spoilt: AtomicU64,
    /// Hits after the function's entry.
    reads: AtomicU64,
}

impl ExitHook for Diversion {
    fn breakpoint(&self, context: &mut HitContext<'_>) -> BreakpointAction {
        let rip = context.regs.rip;
        let Some(slot) = self.slots.get(&rip) else { return BreakpointAction::PassToGuest };
        if rip != self.entry {
            self.reads.fetch_add(1, Ordering::SeqCst);
        } else if self.spoil.swap(false, Ordering::SeqCst) {
            self.spoilt.fetch_add(1, Ordering::SeqCst);
            context.regs.rsi = BAD_POINTER;
        }
        context.regs.rip = *slot;
        BreakpointAction::Resume
    }

    exoprobe_tests::only_breakpoints!();
}

/// The function's entry and its instructions in the exception table.
fn instructions(guest: &TestGuest) -> Vec<Gva> {
    let entry = address(READER);
    let end = kernel_symbols().function_at(entry).unwrap().end;
    let table = table_of(guest, "__start___ex_table", "__stop___ex_table", 12);
    let inside = table.into_iter().filter(|at| (entry..end).contains(at));
    std::iter::once(entry).chain(inside).collect()
}

fn a_fault_in_a_slot_is_fixed_up_as_one_of_the_original(vcpus: u8) {
    let stopped = Stopped::restored(vcpus);
    let (guest, vm, idt) = (&stopped.guest, &stopped.guest.vm, stopped.sregs.idt);
    for _ in 0..2 {
        let base = Gva(idt.base);
        fault_fixup::install(vm.ram(), vm.hidden(), stopped.mode, base, idt.limit).unwrap();
    }
    let all = instructions(guest);
    assert!(all.len() > 1, "{READER} has no entry in the exception table");
    let diversion = Arc::new(Diversion {
        slots: stopped.divert(&all),
        entry: all[0].0,
        spoil: AtomicBool::new(false),
        spoilt: AtomicU64::new(0),
        reads: AtomicU64::new(0),
    });
    vm.start(Arc::clone(&diversion) as Arc<dyn ExitHook>).unwrap();

    assert_eq!(guest.work("mmap 20"), 20);
    assert_eq!(guest.work("open /dev/null 5"), 5);
    assert!(diversion.reads.load(Ordering::SeqCst) >= 5, "the slots ran");
    for round in 1..=3 {
        let reads = diversion.reads.load(Ordering::SeqCst);
        diversion.spoil.store(true, Ordering::SeqCst);
        let answer = guest.answer_line(guest.send("open /dev/null 1"), "open");
        assert!(answer.starts_with("error open: ") && answer.contains("14"), "EFAULT: {answer}");
        assert_eq!(diversion.spoilt.load(Ordering::SeqCst), round);
        assert!(diversion.reads.load(Ordering::SeqCst) > reads);
    }
    assert_eq!(guest.work("open /dev/null 5"), 5);
    assert_eq!(guest.work("fork 3"), 3);
    guest.assert_unharmed();
}

/// Stops at getpid until an interrupt waits, then sends the vCPU to a trampoline: does that come
/// first, or the interrupt?
struct Shadow {
    slots: BTreeMap<u64, u64>,
    getpid: u64,
    trampoline: u64,
    shadow: AtomicBool,
    interrupts: AtomicU64,
    /// Interrupts seen when the trampoline was sent for.
    before: AtomicU64,
    /// Trampolines that an interrupt came before.
    late: AtomicU64,
    calls: AtomicU64,
}

impl ExitHook for Shadow {
    fn breakpoint(&self, context: &mut HitContext<'_>) -> BreakpointAction {
        let rip = context.regs.rip;
        if rip == self.getpid {
            std::thread::sleep(A_FEW_TICKS);
            self.before.store(self.interrupts.load(Ordering::SeqCst), Ordering::SeqCst);
            context.sti_shadow = self.shadow.load(Ordering::SeqCst);
            context.regs.rip = self.trampoline;
        } else if rip == self.trampoline {
            let new = self.interrupts.load(Ordering::SeqCst) - self.before.load(Ordering::SeqCst);
            self.late.fetch_add(u64::from(new > 0), Ordering::SeqCst);
            self.calls.fetch_add(1, Ordering::SeqCst);
            context.regs.rip = self.slots[&self.getpid];
        } else if let Some(slot) = self.slots.get(&rip) {
            self.interrupts.fetch_add(1, Ordering::SeqCst);
            context.regs.rip = *slot;
        } else {
            return BreakpointAction::PassToGuest;
        }
        BreakpointAction::Resume
    }

    exoprobe_tests::only_breakpoints!();
}

fn no_interrupt_comes_between_an_sti_of_a_hook_and_the_next_instruction() {
    let stopped = Stopped::restored(1);
    let guest = &stopped.guest;
    let mut all = vec![address(GETPID)];
    all.extend(INTERRUPTS.map(address));
    let hook = Arc::new(Shadow {
        slots: stopped.divert(&all),
        getpid: all[0].0,
        trampoline: guest.vm.hidden().trampoline_window().unwrap().gva.0,
        shadow: AtomicBool::new(false),
        interrupts: AtomicU64::new(0),
        before: AtomicU64::new(0),
        late: AtomicU64::new(0),
        calls: AtomicU64::new(0),
    });
    guest.vm.start(Arc::clone(&hook) as Arc<dyn ExitHook>).unwrap();
    assert_eq!(guest.work("getpid 10"), 10);
    let without = hook.late.swap(0, Ordering::SeqCst);
    assert!(without > 0, "an interrupt waits after {A_FEW_TICKS:?}");
    hook.shadow.store(true, Ordering::SeqCst);
    assert_eq!(guest.work("getpid 10"), 10);
    assert_eq!(hook.calls.load(Ordering::SeqCst), 20);
    assert_eq!(hook.late.load(Ordering::SeqCst), 0, "of {without} without");
}
