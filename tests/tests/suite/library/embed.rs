//! The library's examples: the engine in another VMM (`examples/embed`, which uses nothing of
//! exoprobe-vmm), and in exoprobe's own (`examples/count_getpid.rs`).

use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, cases, finish, guest_file, program};

pub(crate) const CASES: &[Case] = cases![
    another_vmm_counts_each_call_of_its_guest,
    the_library_counts_each_call_in_one_file needs [Kvm, Repeat],
];

fn another_vmm_counts_each_call_of_its_guest() {
    counts_all("embed");
}

fn the_library_counts_each_call_in_one_file() {
    counts_all("count_getpid");
}

fn counts_all(name: &str) {
    let files = ["vmlinux", "initramfs.cpio", "System.map"].map(guest_file);
    let output = finish(program(name).args(files), PATIENCE);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "getpid: 1000 of 1000\n", "{error}");
}
