//! From power-on.

use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, TestKernel, cases, host};
use exoprobe_vmm::Vm;

pub(crate) const CASES: &[Case] = cases![
    a_machine_is_as_old_as_it_was_made_and_can_go_at_any_moment,
    a_bzimage_is_unpacked_before_it_runs_where_kvm_emulates_the_guests_kernel,
    a_bzimage_boots_and_is_probed_by_the_symbols_of_its_vmlinux needs [Kvm, QuickKernel],
];

fn a_machine_is_as_old_as_it_was_made_and_can_go_at_any_moment() {
    let host = host();
    let config = TestGuest::config("vmlinux", 1);
    let first = TestGuest::start(Vm::create(host, &config).unwrap());
    // The second is younger by at least what the first shows now.
    let age = first.vm.clock().now().0;
    let second = Vm::create(host, &config).unwrap();
    let younger = second.clock().now().0;
    let older = first.vm.clock().now().0;
    assert!(age > 0 && younger > 0 && older - younger >= age, "{age} {younger} {older}");
    drop(second);
    drop(first);
}

fn a_bzimage_is_unpacked_before_it_runs_where_kvm_emulates_the_guests_kernel() {
    /// The first address of a kernel of either build, unpacked.
    const UNPACKED: u64 = 0x100_0000;
    /// `startup_64` of the decompressor.
    const PACKED: u64 = 0x10_0200;
    let host = host();
    let tiny = TestGuest::config("bzImage", 1);
    for config in [tiny, TestKernel::Linux6_12.config(1)] {
        let vm = Vm::create(host, &config).unwrap();
        let rip = vm.registers(0).unwrap().regs.rip;
        let right = match host.profile().software {
            Some(_) => rip >= UNPACKED,
            None => rip == PACKED,
        };
        assert!(right, "{}: {rip:#x}", config.kernel.display());
    }
}

fn a_bzimage_boots_and_is_probed_by_the_symbols_of_its_vmlinux() {
    let host = host();
    let guest = TestGuest::start(Vm::create(host, &TestGuest::config("bzImage", 1)).unwrap());
    // Input that comes before the guest has opened its port waits for it, whole.
    let _ = guest.send("ping");
    guest.wait_for_prompt();
    assert_eq!(guest.answer(0, "ping"), 1);
    guest.probe("p:getpid __x64_sys_getpid");
    assert_eq!(guest.work("getpid 100"), 100);
    assert_eq!(guest.hits("getpid"), 100);
    guest.assert_unharmed();
}
