//! Symbols from the guest's memory, without a file.

use exoprobe_introspect::SymbolTable;
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, assert_same_symbols, cases, guest_file, host};
use exoprobe_vmm::{HostSides, Vm};

pub(crate) const CASES: &[Case] = cases![
    symbols_from_memory_are_those_of_the_build needs [Kvm, Repeat],
    probes_by_name_need_no_file(vcpus),
    probes_set_before_power_on_find_their_symbols(vcpus) needs [Kvm, QuickKernel],
];

fn restored(vcpus: u8) -> TestGuest {
    let vm = Vm::restore(host(), &TestGuest::snapshot(vcpus), &HostSides::default())
        .expect("the snapshot is whole");
    let guest = TestGuest::of_kernel(vm, None);
    guest.power_on();
    guest
}

fn symbols_from_memory_are_those_of_the_build() {
    let guest = restored(1);
    let found = guest.engine.symbols().unwrap();
    let map = SymbolTable::load(&guest_file("System.map")).unwrap();
    assert_same_symbols(&found, &map);
}

fn probes_by_name_need_no_file(vcpus: u8) {
    let guest = restored(vcpus);
    guest.assert_counts_by_name(100);
    guest.assert_unharmed();
}

fn probes_set_before_power_on_find_their_symbols(vcpus: u8) {
    let vm = Vm::create(host(), &TestGuest::config("bzImage", vcpus)).expect("it can be made");
    let guest = TestGuest::of_kernel(vm, None);
    guest.probe("p:start start_kernel");
    guest.probe("p:getpid __x64_sys_getpid");
    let waits = guest.engine.show("kprobes", "start").unwrap();
    assert_eq!((waits.addr, waits.hits), (None, 0));
    guest.power_on();
    guest.wait_for_prompt();
    assert_eq!(guest.work("getpid 50"), 50);
    assert_eq!((guest.hits("start"), guest.hits("getpid")), (1, 50));
    guest.assert_unharmed();
}
