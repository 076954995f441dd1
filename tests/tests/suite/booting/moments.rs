//! At each moment of a boot: questions change nothing, and hidden memory is where the kernel never
//! writes.

use exoprobe_probes::Selection;
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, TestKernel, cases, host};
use exoprobe_vmm::Vm;

use crate::support::questions::{QUIET, ask, assert_not_mapped};

pub(crate) const CASES: &[Case] = cases![
    questions_at_each_moment_of_a_boot_change_nothing needs [Kvm, QuickKernel],
    questions_at_each_moment_of_a_boot_of_linux_6_12_change_nothing needs [Kvm, QuickKernel],
    probes_registered_at_each_moment_of_a_boot_count needs [Kvm, QuickKernel],
    probes_registered_at_each_moment_of_a_boot_of_linux_6_12_count needs [Kvm, QuickKernel],
];

fn of(kernel: TestKernel) -> TestGuest {
    let vm = Vm::create(host(), &kernel.config(1)).expect("it can be made");
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
