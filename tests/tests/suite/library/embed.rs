//! The library's examples: the engine in another VMM (`examples/embed`, which uses nothing of
//! exoprobe-vmm), and in exoprobe's own (`examples/count_getpid.rs`).

use std::process::Command;

use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, cases, finish, guest_file, more_of_cmdline, program};

pub(crate) const CASES: &[Case] = cases![
    another_vmm_counts_each_call_of_its_guest needs [Kvm, QuickKernel],
    the_library_counts_each_call_in_one_file needs [Kvm, QuickKernel],
];

const FILES: [&str; 3] = ["vmlinux", "initramfs.cpio", "System.map"];

fn another_vmm_counts_each_call_of_its_guest() {
    counts_all(program("embed").args(FILES.map(guest_file)).arg(more_of_cmdline()));
}

fn the_library_counts_each_call_in_one_file() {
    counts_all(program("count_getpid").args(FILES.map(guest_file)));
}

fn counts_all(example: &mut Command) {
    let output = finish(example, PATIENCE);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "getpid: 1000 of 1000\n", "{error}");
}
