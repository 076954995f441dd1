//! The engine in another VMM: `examples/embed`, which uses nothing of exoprobe-vmm.

use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, cases, finish, guest_file, program};

pub(crate) const CASES: &[Case] = cases![another_vmm_counts_each_call_of_its_guest];

fn another_vmm_counts_each_call_of_its_guest() {
    let files = ["vmlinux", "initramfs.cpio", "System.map"].map(guest_file);
    let output = finish(program("embed").args(files), PATIENCE);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "getpid: 1000 of 1000\n", "{error}");
}
