//! RAM: above 4 GiB, and of huge pages.

use std::fs::File;

use exoprobe_guest::Gpa;
use exoprobe_guest::paging::ReadPhys;
use exoprobe_probes::Selection;
use exoprobe_tests::harness::Case;
use exoprobe_tests::{HostPages, Service, TestGuest, TestKernel, cases, host};
use exoprobe_vmm::{DiskConfig, DiskMode, HostSides, Vm, VmConfig, with_kernel_words};

use crate::support::refused::refused;

pub(crate) const CASES: &[Case] = cases![
    ram_and_disks_work_above_4_gib needs [Kvm, QuickKernel],
    huge_pages_are_all_there_from_the_start_and_over_a_reboot needs [Kvm, HugePages],
    memory_that_the_host_does_not_have_is_refused needs [Kvm, Repeat],
];

/// RAM below the gap, of which the guest takes the first part.
const LOW_MIB: u64 = 3 << 10;
const LOW_USED_MIB: u64 = 64;
/// RAM above 4 GiB: Linux allocates it first.
const HIGH_MIB: u64 = 32;
/// Of the workload's commands `diskread` and `diskwrite`.
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;

fn ram_and_disks_work_above_4_gib() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    File::create(&path).unwrap().set_len(BLOCKS * BLOCK).unwrap();
    let config = TestKernel::Linux6_12.config(1);
    // To describe 3 GiB of pages takes an emulated kernel a minute. No device needs buffers below
    // 4 GiB.
    let unused = format!("memmap={}M${LOW_USED_MIB}M swiotlb=noforce", LOW_MIB - LOW_USED_MIB);
    let config = VmConfig {
        memory_mib: LOW_MIB + HIGH_MIB,
        cmdline: with_kernel_words(&config.cmdline, &unused),
        disks: vec![DiskConfig { path: path.clone(), mode: DiskMode::ReadWrite }],
        ..config
    };
    let guest = TestGuest::boot_by_its_symbols(&config);
    guest.probe("p:getpid __x64_sys_getpid %di");
    assert_eq!(guest.work("getpid 100"), 100);
    assert_eq!(guest.hits("getpid"), 100);
    assert_eq!(guest.work(&format!("diskwrite /dev/vda {BLOCKS}")), BLOCKS);
    let expected = (0..BLOCKS).flat_map(|number| number.to_le_bytes().repeat(512));
    assert!(std::fs::read(&path).unwrap() == expected.collect::<Vec<_>>());
    assert_eq!(guest.work(&format!("diskread /dev/vda {BLOCKS}")), BLOCKS);
    let high = (4 << 30)..((4 << 30) + (HIGH_MIB << 20));
    let used = high.step_by(4096).filter(|at| guest.vm.ram().read_u64(Gpa(*at)) != Some(0));
    assert!(used.count() > 1000, "Linux has used the memory above 4 GiB");
    guest.assert_unharmed();
}

fn huge_pages_are_all_there_from_the_start_and_over_a_reboot() {
    /// RAM below 1 MiB, which Linux leaves alone.
    const MARK: Gpa = Gpa(0x5_0000);
    let dir = tempfile::tempdir().unwrap();
    let config = VmConfig { hugepages: true, ..TestGuest::config("vmlinux", 1) };
    let pages = config.memory_mib / 2;
    let host_pages = HostPages::add(pages);
    let before = host_pages.free();
    let guest = TestGuest::start(Vm::create(host(), &config).unwrap());
    assert_eq!(host_pages.free(), before - pages, "before the guest has touched most of them");
    let missing = host_pages.free() + pages;
    let larger = VmConfig { memory_mib: 2 * missing, ..config };
    let error = Vm::create(host(), &larger).map(drop).unwrap_err().to_string();
    assert!(error.contains(&format!("needs {missing} huge pages of 2 MiB")), "{error}");
    // In the middle of a boot.
    guest.vm.ram().store_u64(MARK, 7).unwrap();
    guest.reboot();
    assert_eq!(guest.vm.ram().read_u64(MARK), Some(0), "a reboot clears RAM");
    assert_eq!(host_pages.free(), before - pages, "the pages were kept");
    guest.probe("p:getpid __x64_sys_getpid %di");
    assert_eq!(guest.work("getpid 100"), 100);
    assert_eq!(guest.hits("getpid"), 100);
    guest.engine.unregister(Selection::all()).unwrap();
    let snapshot = dir.path().join("snapshot");
    guest.vm.snapshot(&snapshot).unwrap();
    drop(guest);
    assert_eq!(host_pages.free(), before, "they are given back");
    let twin = TestGuest::start(Vm::restore(host(), &snapshot, &HostSides::default()).unwrap());
    assert_eq!(twin.work("ping"), 1);
    assert_eq!(host_pages.free(), before, "a restored guest has no huge pages");
}

fn memory_that_the_host_does_not_have_is_refused() {
    let files = Service::boot_files();
    let all = |more: &[&str]| {
        let files = files.iter().map(String::as_str);
        refused(&files.chain(more.iter().copied()).collect::<Vec<_>>())
    };
    for (options, reason) in [
        (&["--memory", "33", "--hugepages"][..], "with --hugepages, give a multiple of 2"),
        (&["--memory", "524288", "--hugepages"], "--hugepages: "),
        (&["--memory", "1048577"], "give 24 to 1048576"),
    ] {
        let error = all(options);
        assert!(error.contains(reason), "{options:?}: {error}");
    }
    let error = refused(&["--restore", "/nonexistent", "--hugepages"]);
    assert!(error.contains("cannot be used with"), "{error}");
}
