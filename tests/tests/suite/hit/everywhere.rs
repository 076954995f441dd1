//! Probes where the kernel's own kprobes must refuse: what they themselves run through. From
//! outside nothing of the guest runs for a breakpoint.

use exoprobe_guest::Gva;
use exoprobe_probes::{BlacklistEntry, ProbeDefinition, ProbeError, Reserved, Selection};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, cases, definition, kernel_symbols};

pub(crate) const CASES: &[Case] = cases![
    traps_scheduler_and_timer_are_probed_and_count(vcpus) needs [Kvm, QuickKernel],
    every_instruction_of_the_kernels_entries_that_is_taken_counts(vcpus) needs [Kvm, QuickKernel],
    the_handler_of_the_guests_own_breakpoints_is_probed(vcpus) needs [Kvm, OwnBreakpoint],
    all_that_is_blacklisted_is_refused_for_the_reason_that_is_listed(vcpus),
];

/// Every instruction of these is probed: the handlers of traps, the scheduler, the timer.
const HANDLERS: [&str; 22] = [
    "exc_page_fault",
    "exc_int3",
    "exc_nmi",
    "default_do_nmi",
    "exc_general_protection",
    "poke_int3_handler",
    "__schedule",
    "schedule",
    "preempt_schedule_irq",
    "__switch_to_asm",
    "__switch_to",
    "finish_task_switch.isra.0",
    "ret_from_fork",
    "schedule_tail",
    "irqentry_enter",
    "irqentry_exit",
    "irqentry_enter_from_user_mode",
    "irqentry_exit_to_user_mode",
    "exit_to_user_mode_prepare",
    "do_syscall_64",
    "sysvec_apic_timer_interrupt",
    "hrtimer_interrupt",
];
/// Bytes from the system-call entry to its call of `do_syscall_64`.
const CALL_OFFSET: u64 = 0x6a;
/// Of these the entry alone.
const ENTRIES: [&str; 9] = [
    "handle_mm_fault",
    "text_poke",
    "text_poke_bp",
    "text_poke_bp_batch",
    "tick_sched_timer",
    "tick_handle_periodic",
    "_raw_spin_lock",
    "_raw_spin_lock_irqsave",
    "queued_spin_lock_slowpath",
];

fn work_of_all_kinds(guest: &TestGuest, vcpus: u8) {
    assert_eq!(guest.work("getpid 20"), 20);
    assert_eq!(guest.work("open /dev/null 5"), 5);
    assert_eq!(guest.work("write 5"), 5);
    assert_eq!(guest.work("fork 2"), 2);
    assert_eq!(guest.work("mmap 10"), 10);
    assert!(guest.work("sleep 20") >= 20);
    assert_eq!(guest.work(&format!("par {} getpid 20", 2 * vcpus)), 40 * u64::from(vcpus));
    assert_eq!(guest.work(&format!("par {} mmap 5", 2 * vcpus)), 10 * u64::from(vcpus));
}

/// Pairs of probes that come one after the other.
type Pairs<'a> = [[&'a str; 2]];

/// Their hits now.
fn hits_of(guest: &TestGuest, pairs: &Pairs<'_>) -> Vec<u64> {
    guest.vm.pause().unwrap();
    let hits = pairs.iter().flatten().map(|event| guest.hits(event)).collect();
    guest.vm.resume().unwrap();
    hits
}

/// As many hits of the one as of the other since `before`, but for what each vCPU was in the middle
/// of.
fn assert_paired(guest: &TestGuest, before: &[u64], pairs: &Pairs<'_>, vcpus: u8) {
    let after = hits_of(guest, pairs);
    let added: Vec<u64> = before.iter().zip(after).map(|(before, after)| after - before).collect();
    for (pair, added) in pairs.iter().zip(added.chunks_exact(2)) {
        assert!(added[0] > 0, "{pair:?} {added:?}");
        assert!(added[0].abs_diff(added[1]) <= 2 * u64::from(vcpus), "{pair:?} {added:?}");
    }
}

fn traps_scheduler_and_timer_are_probed_and_count(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("p:getpid __x64_sys_getpid");
    let taken = guest.probe_each_instruction(HANDLERS);
    for function in ENTRIES {
        if kernel_symbols().lookup_function(function).is_ok() {
            guest.probe(&format!("p:{function}_0 {function}"));
        }
    }
    for function in ["asm_exc_page_fault", "asm_sysvec_apic_timer_interrupt"] {
        guest.probe(&format!("p:{function} {function}"));
    }
    assert!(taken.len() > 1000, "only {} instructions were taken", taken.len());
    let pairs = [
        ["asm_exc_page_fault", "exc_page_fault_0"],
        ["asm_sysvec_apic_timer_interrupt", "sysvec_apic_timer_interrupt_0"],
        ["__switch_to_asm_0", "__switch_to_0"],
        ["__switch_to_0", "finish_task_switch_isra_0_0"],
        ["ret_from_fork_0", "schedule_tail_0"],
    ];
    let before = hits_of(&guest, &pairs);
    work_of_all_kinds(&guest, vcpus);
    assert_eq!(guest.hits("getpid"), 20 + 40 * u64::from(vcpus));
    assert_paired(&guest, &before, &pairs, vcpus);
    assert!(guest.hits("exc_page_fault_0") >= 10 * u64::from(1 + vcpus), "one a mapped page");
    let hit = taken.iter().filter(|(event, _)| guest.hits(event) > 0).count();
    assert!(hit > 500, "only {hit} of {} instructions were hit", taken.len());
    guest.assert_unharmed();
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

/// The parts of the kernel's entry text, by their symbols.
fn entry_functions() -> Vec<String> {
    let symbols = kernel_symbols();
    let edge = |name| symbols.lookup(name).unwrap().address;
    let range = edge("__entry_text_start")..edge("__entry_text_end");
    let inside = symbols.iter().filter(|symbol| range.contains(&symbol.address));
    let own = inside.filter(|s| symbols.function_at(s.address).is_some_and(|f| f.name == s.name));
    own.map(|symbol| symbol.name.to_owned()).collect()
}

fn every_instruction_of_the_kernels_entries_that_is_taken_counts(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let taken = guest.probe_each_instruction(entry_functions());
    guest.probe("p:syscall do_syscall_64");
    assert!(taken.len() > 300, "only {} instructions were taken", taken.len());
    // All of these are one straight line to its call.
    let entry = kernel_symbols().lookup_function("entry_SYSCALL_64").unwrap().address;
    let line = entry..entry.wrapping_add(CALL_OFFSET);
    let line = taken.iter().filter(|(_, at)| line.contains(at));
    let pairs: Vec<[&str; 2]> = line.map(|(event, _)| [event.as_str(), "syscall"]).collect();
    assert!(pairs.len() > 30, "{pairs:?}");
    let before = hits_of(&guest, &pairs);
    work_of_all_kinds(&guest, vcpus);
    assert_paired(&guest, &before, &pairs, vcpus);
    assert!(guest.hits("syscall") > 100);
    guest.assert_unharmed();
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn the_handler_of_the_guests_own_breakpoints_is_probed(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let functions = ["asm_exc_int3", "exc_int3", "poke_int3_handler", "notify_die", "force_sig"];
    let taken = guest.probe_each_instruction(functions);
    assert!(taken.len() > 60, "only {} instructions were taken", taken.len());
    assert_eq!(guest.work("trap 20"), 20);
    assert_eq!(guest.hits("exc_int3_0"), 20);
    assert_eq!(guest.hits("force_sig_0"), 20);
    guest.engine.unregister(Selection::all()).unwrap();
    assert_eq!(guest.work("trap 3"), 3);
    guest.assert_unharmed_but_for("traps:");
}

/// Why a probe at `at` is refused, by its place or, where that is padding, by its instruction.
fn refusal(guest: &TestGuest, kind: char, at: Gva) -> Option<Reserved> {
    let definition: ProbeDefinition = definition(&format!("{kind}:listed {at}"));
    let error = guest.engine.register(definition).expect_err("it is on the list");
    assert_eq!(error.code(), "EOPNOTSUPP", "{at}: {error}");
    match error.error {
        ProbeError::Reserved { reserved, .. } => Some(reserved),
        ProbeError::Refused(_) => None,
        other => panic!("{at}: {other}"),
    }
}

fn all_that_is_blacklisted_is_refused_for_the_reason_that_is_listed(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let list = guest.engine.blacklist().unwrap();
    assert!(list.len() > 20, "{list:?}");
    assert!(list.is_sorted_by_key(|entry| entry.start));
    let symbols = kernel_symbols();
    for BlacklistEntry { start, end, symbol, reason } in &list {
        assert!(start < end, "{symbol}");
        let kind = if *reason == Reserved::NoReturnAddress { 'r' } else { 'p' };
        let inside = symbols.iter().filter(|s| (*start..*end).contains(&s.address));
        let functions = inside.filter(|s| symbols.lookup_function(s.name).is_ok());
        let mut starts: Vec<Gva> = functions.map(|s| s.address).collect();
        // A range that is no function may have none in it.
        if starts.is_empty() || !symbol.starts_with('(') {
            starts.push(*start);
        }
        for at in starts {
            let found = refusal(&guest, kind, at);
            let other = list.iter().any(|e| e.start == at && Some(e.reason) == found);
            let right = found.is_none_or(|found| found == *reason) || other;
            assert!(right, "{symbol} {reason:?} at {at}: {found:?}");
        }
    }
    for function in ["exc_int3", "__schedule", "do_syscall_64", "text_poke_bp"] {
        let at = symbols.lookup_function(function).unwrap().address;
        assert!(!list.iter().any(|entry| (entry.start..entry.end).contains(&at)), "{function}");
    }
    assert!(guest.engine.list().is_empty());
    guest.assert_unharmed();
}
