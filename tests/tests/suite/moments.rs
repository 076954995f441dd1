//! At each moment of a boot: questions change nothing, and hidden memory is where the kernel never
//! writes.

use exoprobe_probes::Selection;
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, TestKernel, cases, host};
use exoprobe_vmm::Vm;

pub(crate) const CASES: &[Case] = cases![
    questions_at_each_moment_of_a_boot_change_nothing,
    questions_at_each_moment_of_a_boot_of_linux_6_12_change_nothing,
    probes_registered_at_each_moment_of_a_boot_count,
    probes_registered_at_each_moment_of_a_boot_of_linux_6_12_count,
];

/// IA32_LSTAR: by then software-only KVM maps hidden memory for its own sake.
const MSR_LSTAR: u32 = 0xc000_0082;
/// Called by no one but the workload.
const QUIET: &str = "__x64_sys_getpid";

/// Asks all that can be asked of a guest; what it is not far enough for is an error.
pub(super) fn ask(guest: &TestGuest) {
    let engine = &guest.engine;
    let _ = (engine.symbols(), engine.blacklist(), engine.processes(), engine.stack(0));
    let _ = (engine.modules(), engine.running_kernel(), engine.types());
    let mut bytes = [0; 64];
    if let Ok(at) = engine.address_of(QUIET) {
        let _ = (engine.read_memory(at, &mut bytes), engine.disassemble(at));
    }
    engine.patrol();
    engine.optimize();
}

/// That nothing was mapped for a question's sake.
pub(super) fn assert_not_mapped(guest: &TestGuest) {
    let by_quirk = || {
        let faults = host().profile().software.is_some_and(|software| software.syscall_faults);
        // It is mapped first, and then the register is written: before, no engine answers.
        faults && guest.vm.msr(0, MSR_LSTAR).expect("a vCPU answers") != 0
    };
    assert!(guest.vm.hidden().base().is_none() || by_quirk(), "a question mapped hidden memory");
}

fn of(kernel: TestKernel) -> TestGuest {
    let vm = Vm::create(&host(), &kernel.config(1)).expect("it can be made");
    match kernel {
        TestKernel::Tiny => TestGuest::new(vm),
        TestKernel::Linux6_12 => TestGuest::of_kernel(vm, None),
    }
}

fn questions_at_each_moment_of_a_boot_change_nothing() {
    ask_while_it_boots(TestKernel::Tiny);
}

fn questions_at_each_moment_of_a_boot_of_linux_6_12_change_nothing() {
    ask_while_it_boots(TestKernel::Linux6_12);
}

fn ask_while_it_boots(kernel: TestKernel) {
    let guest = of(kernel);
    guest.power_on();
    let moments = guest.at_each_moment_of_boot(|guest| {
        ask(guest);
        assert_not_mapped(guest);
    });
    println!("asked at {moments} moments");
    assert_not_mapped(&guest);
    guest.assert_counts_by_name(100);
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn probes_registered_at_each_moment_of_a_boot_count() {
    probe_while_it_boots(TestKernel::Tiny);
}

fn probes_registered_at_each_moment_of_a_boot_of_linux_6_12_count() {
    probe_while_it_boots(TestKernel::Linux6_12);
}

fn probe_while_it_boots(kernel: TestKernel) {
    let guest = of(kernel);
    guest.power_on();
    let mut events = Vec::new();
    let moments = guest.at_each_moment_of_boot(|guest| {
        let event = format!("moment_{}", events.len());
        guest.probe(&format!("p:{event} {QUIET}"));
        events.push(event);
    });
    println!("registered at {moments} moments");
    let before: Vec<u64> = events.iter().map(|event| guest.hits(event)).collect();
    assert_eq!(guest.work("getpid 50"), 50);
    for (event, before) in events.iter().zip(before) {
        assert_eq!(guest.hits(event) - before, 50, "{event} of {moments}");
    }
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}
