//! A kernel that nobody here configured, with the command line a user would give it.

use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, cases, guest_file};
use exoprobe_vmm::layout::KERNEL_IMAGE_BASE;
use exoprobe_vmm::{Gva, VmConfig, paging};

pub(crate) const CASES: &[Case] = cases![
    a_distributions_kernel_boots_with_kaslr_to_the_prompt needs [HardwareKvm, StockKernel],
];

/// Where the kernel's text lies without KASLR (CONFIG_PHYSICAL_START above the image's mappings).
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
    // It leaves the places free that ours are to have.
    let (hidden, ram, mode) = (guest.vm.hidden(), guest.vm.ram(), guest.paging_mode());
    hidden.map(ram, mode).expect("a place for hidden memory");
    hidden.map_rings(ram, mode).expect("a place for rings");
    guest.assert_unharmed();
}

/// The first mapping of the kernel image.
fn kernel_base(guest: &TestGuest) -> Gva {
    let mode = guest.paging_mode();
    let places = (0..512).map(|step| KERNEL_IMAGE_BASE.wrapping_add(step * STEP));
    let mapped = |at: &Gva| paging::translate(guest.vm.ram(), mode, *at).is_ok();
    places.into_iter().find(mapped).expect("the kernel is mapped")
}
