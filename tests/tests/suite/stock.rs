//! A kernel that nobody here configured, with the command line a user would give it.

use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, cases, guest_file};
use exoprobe_vmm::{Gva, VmConfig, paging};

pub(crate) const CASES: &[Case] = cases![
    a_distributions_kernel_boots_with_kaslr_to_the_prompt needs [HardwareKvm, StockKernel],
];

/// Where the kernel image's mappings begin, and where its text lies without KASLR
/// (Documentation/x86/x86_64/mm.rst).
const KERNEL_MAP: Gva = Gva(0xffff_ffff_8000_0000);
const WITHOUT_KASLR: Gva = Gva(0xffff_ffff_8100_0000);
const STEP: u64 = 2 << 20;

fn a_distributions_kernel_boots_with_kaslr_to_the_prompt() {
    let config = VmConfig {
        kernel: guest_file("stock/bzImage"),
        cmdline: "console=ttyS0".to_owned(),
        memory_mib: 256,
        ..TestGuest::config("vmlinux", 1)
    };
    let guest = TestGuest::boot(&config);
    assert_eq!(guest.work("getpid 1000"), 1000);
    assert_eq!(guest.work("open /dev/null 10"), 10);
    guest.assert_unharmed();
    assert!(guest.console().contains("Linux version"), "the console is whole");
    let base = kernel_base(&guest);
    println!("KASLR put the kernel at {base:?}");
    assert!(base > WITHOUT_KASLR, "{base:?}");
}

/// The first mapping of the kernel image.
fn kernel_base(guest: &TestGuest) -> Gva {
    let sregs = guest.vm.registers(0).unwrap().sregs;
    let mode = paging::PagingMode { cr3: sregs.cr3, levels: 4 };
    let places = (0..512).map(|step| KERNEL_MAP.wrapping_add(step * STEP));
    let mapped = |at: &Gva| paging::translate(guest.vm.ram(), mode, *at).is_ok();
    places.into_iter().find(mapped).expect("the kernel is mapped")
}
