//! Guests with more vCPUs than the host has CPUs.

use exoprobe_tests::harness::Case;
use exoprobe_tests::{Service, TestGuest, TestKernel, cases, host, take_snapshot};
use exoprobe_vmm::{HostSides, Vm};

use crate::support::refused::refused;

pub(crate) const CASES: &[Case] = cases![
    each_of_many_vcpus_has_its_calls_counted_and_recorded
        needs [Kvm, HardwareKvm, Smp, ContendedLocks],
    more_vcpus_than_a_machine_can_have_are_refused needs [Kvm, Repeat],
];

/// More than the eight to which Linux sends interrupts by a bit each.
const MANY: u8 = 9;
/// Calls of getpid on each vCPU.
const CALLS: u64 = 100;

/// A guest that was restored from a snapshot of a boot with so many vCPUs. Where KVM emulates the
/// kernel, their ticks alone take more than two CPUs, and on a loaded machine nothing else is done.
fn restored() -> TestGuest {
    let dir = tempfile::tempdir().unwrap();
    let snapshot = dir.path().join("snapshot");
    let mut config = TestKernel::Linux6_12.config(MANY);
    // Its vCPUs wait for the host's few CPUs. Reports of that, byte by byte, would take minutes; so
    // would vCPUs that balance their load, and spin for each other's locks.
    config.cmdline.push_str(" rcupdate.rcu_cpu_stall_suppress=1 isolcpus=domain,1-8");
    take_snapshot(&config, &snapshot);
    let vm = Vm::restore(host(), &snapshot, &HostSides::default()).unwrap();
    let guest = TestGuest::of_kernel(vm, None);
    guest.power_on();
    guest
}

fn each_of_many_vcpus_has_its_calls_counted_and_recorded() {
    let guest = restored();
    let work = format!("par {MANY} getpid {CALLS}");
    let calls = CALLS * u64::from(MANY);
    guest.probe("p:getpid __x64_sys_getpid %di");
    assert_eq!(guest.work(&work), calls);
    assert_eq!(guest.hits("getpid"), calls, "by breakpoints");
    guest.optimize("getpid");
    let exits = guest.vm.exit_counts().breakpoint;
    assert_eq!(guest.work(&work), calls);
    let status = guest.status("getpid");
    assert_eq!((status.hits, status.recorded, status.lost), (2 * calls, 2 * calls, 0));
    assert_eq!(guest.vm.exit_counts().breakpoint, exits, "by a detour");
    guest.engine.drain();
    // The workload puts each of its threads on a CPU of its own.
    let events = guest.engine.events().read(1, usize::MAX).events;
    for vcpu in 0..MANY {
        let of_vcpu = events.iter().filter(|event| event.vcpu == vcpu).count() as u64;
        assert_eq!(of_vcpu, 2 * CALLS, "vCPU {vcpu}");
    }
    guest.assert_unharmed();
}

fn more_vcpus_than_a_machine_can_have_are_refused() {
    let files = Service::boot_files();
    for (vcpus, reason) in [
        ("0", "0 vCPUs: give 1 to 64"),
        ("65", "65 vCPUs: give 1 to 64"),
        ("1000", "1000 is not in 0..=255"),
    ] {
        let files = files.iter().map(String::as_str);
        let error = refused(&files.chain(["--vcpus", vcpus]).collect::<Vec<_>>());
        assert!(error.contains(reason), "{error}");
    }
}
