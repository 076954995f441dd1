//! A distribution's kernel, with the command line a user would give it.

use std::fs::File;
use std::path::Path;

use exoprobe_guest::layout::KERNEL_IMAGE_BASE;
use exoprobe_guest::{Gva, paging};
use exoprobe_probes::{Action, Selection};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{
    ENTRY, OPENS, TestGuest, assert_callers, assert_opened, cases, guest_file, host,
};
use exoprobe_vmm::{DiskConfig, DiskMode, Vm, VmConfig};
use memchr::memmem;

use super::{self_tracing, stock_tools};
use crate::support::frames::{held, parts, register};
use crate::support::questions::{ask, assert_not_mapped};
use crate::support::returned::{By, events_of, follow};

pub(crate) const CASES: &[Case] = cases![
    a_distributions_kernel_traces_itself_at_our_places needs [HardwareKvm, Smp, StockKernel],
    a_distributions_kernel_is_probed_by_its_own_symbols_wherever_kaslr_put_it needs [HardwareKvm, StockKernel],
    a_distributions_kernel_boots_with_probes_from_before_power_on_and_questions_at_each_moment needs [HardwareKvm, StockKernel],
    a_distributions_kernel_is_not_changed_by_questions_at_each_moment_of_its_boot needs [HardwareKvm, StockKernel],
];

/// Where the kernel's text lies without KASLR (CONFIG_PHYSICAL_START above the image's mappings).
const WITHOUT_KASLR: Gva = Gva(0xffff_ffff_8100_0000);
const STEP: u64 = 2 << 20;

/// Modules of its devices, and those that tools probe, in the order in which they need each other.
/// Some kernels have several of them built in.
const MODULES: [&str; 11] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
    "virtio-rng",
    "crc32c_generic",
    "libcrc32c",
    "xfs",
    "md-mod",
];

/// A machine with the distribution's kernel, for which no symbols are given.
fn guest() -> TestGuest {
    of_config(&config())
}

fn config() -> VmConfig {
    VmConfig {
        kernel: guest_file("stock/bzImage"),
        cmdline: "console=ttyS0".to_owned(),
        memory_mib: 256,
        hugepages: false,
        ..TestGuest::config("vmlinux", 1)
    }
}

fn of_config(config: &VmConfig) -> TestGuest {
    TestGuest::of_kernel(Vm::create(host(), config).expect("it can be made"), None)
}

fn a_distributions_kernel_traces_itself_at_our_places() {
    let dir = tempfile::tempdir().unwrap();
    // The guest's own comes and goes on one while the other calls.
    let config = VmConfig { vcpus: 2, ..with_modules(config(), dir.path()) };
    let guest = of_config(&config);
    guest.power_on();
    guest.wait_for_prompt();
    self_tracing::both_count_at_one_place(&guest);
    self_tracing::both_count_beside_its_tracers(&guest);
    self_tracing::both_count_beside_bpf_programs(&guest);
    self_tracing::all_count_at_once(&guest);
    self_tracing::a_live_patch_comes_and_goes(&guest);
    guest.assert_unharmed();
}

/// Functions that its boot runs through once, the first ones before it patches its text. Its
/// early_ioremap_init() takes entry 505 of the last GiB's directory, right below the two that its
/// image has; mark_rodata_ro() walks all page tables for pages that are writable and executable
/// (CONFIG_DEBUG_WX).
const ONCE: [&str; 6] = [
    "x86_64_start_kernel",
    "start_kernel",
    "early_ioremap_init",
    "trap_init",
    "rest_init",
    "mark_rodata_ro",
];

fn a_distributions_kernel_boots_with_probes_from_before_power_on_and_questions_at_each_moment() {
    let guest = guest();
    for function in ONCE {
        guest.probe(&format!("p:{function} {function}"));
    }
    guest.power_on();
    let moments = guest.at_each_moment_of_boot(ask);
    println!("asked at {moments} moments");
    for function in ONCE {
        assert_eq!(guest.hits(function), 1, "{function}: {:?}", guest.status(function));
    }
    let checked = "Checked W+X mappings: passed, no W+X pages found";
    assert!(guest.console().contains(checked), "with hidden memory mapped");
    guest.assert_counts_by_name(100);
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn a_distributions_kernel_is_not_changed_by_questions_at_each_moment_of_its_boot() {
    let guest = guest();
    guest.power_on();
    let moments = guest.at_each_moment_of_boot(|guest| {
        ask(guest);
        assert_not_mapped(guest);
    });
    println!("asked at {moments} moments");
    guest.assert_counts_by_name(100);
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn a_distributions_kernel_is_probed_by_its_own_symbols_wherever_kaslr_put_it() {
    let dir = tempfile::tempdir().unwrap();
    let guest = of_config(&with_disk(config(), dir.path()));
    guest.power_on();
    guest.wait_for_prompt();
    assert_eq!(guest.work("getpid 1000"), 1000);
    assert_eq!(guest.work("open /dev/null 10"), 10);
    guest.assert_unharmed();
    assert!(guest.console().contains("Linux version"), "the console is whole");
    let base = kernel_base(&guest);
    println!("KASLR put the kernel at {base:?}");
    // One of some 500 places is that without KASLR.
    assert!(base >= WITHOUT_KASLR, "{base:?}");
    let symbols = guest.engine.symbols().expect("symbols from its memory");
    let notes = guest.engine.running_kernel().vmcoreinfo.expect("Debian's kernels can be dumped");
    println!("{:?}, moved by {:#x?}", notes.release(), notes.kernel_offset());
    assert_eq!(notes.kernel_offset(), Some(base.0 - WITHOUT_KASLR.0), "it says so itself");
    println!("{} symbols, from its memory", symbols.len());
    assert_eq!(symbols.lookup("_text").unwrap().address, base);
    guest.assert_counts_by_name(1000);
    guest.engine.unregister(Selection::all()).unwrap();
    assert_opened_files(&guest);
    stacks_go_by_orc_tables(&guest);
    load_modules(&guest);
    requests_of_its_disk_are_counted(&guest);
    random_numbers_come_from_the_host(&guest);
    stock_tools::functions_that_are_inlined_are_named(&guest);
    stock_tools::tools_of_modules_run(&guest);
    print_row(&guest, notes.release().expect("it has a name"));
    guest.assert_unharmed();
}

/// The machine with an empty disk, and the modules for it.
fn with_disk(config: VmConfig, dir: &Path) -> VmConfig {
    let disk = dir.join("disk");
    File::create(&disk).unwrap().set_len(1 << 20).unwrap();
    let disks = vec![DiskConfig { path: disk, mode: DiskMode::ReadWrite }];
    VmConfig { disks, ..with_modules(config, dir) }
}

/// The machine with the kernel's modules in its initramfs.
fn with_modules(config: VmConfig, dir: &Path) -> VmConfig {
    let initramfs = dir.join("initramfs.cpio");
    let parts = [config.initramfs.unwrap(), guest_file("stock/modules.cpio")];
    std::fs::write(&initramfs, parts.map(|part| std::fs::read(part).unwrap()).concat()).unwrap();
    VmConfig { initramfs: Some(initramfs), ..config }
}

/// Prints the kernel's row of the table of docs/kernels.md.
fn print_row(guest: &TestGuest, release: &str) {
    let (symbols, types) = (guest.engine.symbols().unwrap(), guest.engine.types().unwrap());
    println!("| {release} | {} | {} |", symbols.len(), types.len());
}

/// Its driver finds the device by itself, too.
fn random_numbers_come_from_the_host(guest: &TestGuest) {
    guest.probe("p:asked virtio_rng:virtio_read");
    assert_eq!(guest.work("words /dev/hwrng 100"), 100);
    assert!(guest.hits("asked") > 0, "that driver was asked");
    guest.engine.unregister(Selection::all()).unwrap();
}

/// Loads those of [`MODULES`] that the archive has; the others are built in.
fn load_modules(guest: &TestGuest) {
    let archive = std::fs::read(guest_file("stock/modules.cpio")).unwrap();
    let has = |module: &&&str| {
        let name = format!("modules/{module}.ko\0");
        memmem::find(&archive, name.as_bytes()).is_some()
    };
    for module in MODULES.iter().filter(has) {
        assert_eq!(guest.work(&format!("insmod {module}")), 1, "{module}");
    }
}

/// Its own drivers find the disk without a word on its command line.
fn requests_of_its_disk_are_counted(guest: &TestGuest) {
    guest.probe("p:requests blk_mq_start_request");
    guest.probe("p:driver virtio_blk:virtio_queue_rq");
    guest.probe("r:done virtio_blk:virtblk_done");
    assert_eq!(guest.work("diskwrite /dev/vda 64"), 64);
    assert_eq!(guest.work("diskread /dev/vda 64"), 64);
    // And one to flush it. Some kernels give the driver several at once (queue_rqs), others one.
    assert_eq!(guest.hits("requests"), 129);
    assert!(guest.hits("driver") > 0, "the module's function");
    assert!(guest.hits("done") > 0, "its interrupts come");
    guest.engine.unregister(Selection::all()).unwrap();
}

/// Checks file names, by the kernel's own types, with the tasks that open them.
fn assert_opened_files(guest: &TestGuest) {
    let types = guest.engine.types().expect("types from its memory");
    println!("{} types, from its memory", types.len());
    guest.probe(OPENS);
    assert_eq!(guest.work("open /dev/null 10"), 10);
    assert_opened(&events_of(guest, "opens"), 10);
    guest.engine.unregister(Selection::all()).unwrap();
}

/// It has no frame pointers.
fn stacks_go_by_orc_tables(guest: &TestGuest) {
    follow(guest, "r:outer __x64_sys_openat", By::Trampoline);
    register(guest, "p:traced do_sys_openat2", &[Action::Stack]);
    let banner = guest.engine.running_kernel().banner.expect("it has begun").text;
    assert!(banner.starts_with("Linux version 6."), "{banner}");
    assert_eq!(guest.work("open /dev/null 3"), 3);
    assert_callers(&events_of(guest, "traced"), 3);
    register(guest, "p:hold vfs_open", &[Action::Stop]);
    let from = guest.send("open /dev/null 1");
    let frames = guest.engine.stack(held(guest)).unwrap();
    let (kernel, user) = parts(&frames);
    assert_eq!(kernel[0], "vfs_open", "{frames:?}");
    assert!(kernel.contains(&"do_sys_openat2") && kernel.ends_with(&ENTRY), "{frames:?}");
    assert!(user >= 1, "{frames:?}");
    guest.engine.unregister(Selection::kprobe("kprobes", "hold")).unwrap();
    guest.vm.resume().unwrap();
    assert_eq!(guest.answer(from, "open /dev/null 1"), 1);
    guest.engine.unregister(Selection::all()).unwrap();
}

/// The first mapping of the kernel image.
fn kernel_base(guest: &TestGuest) -> Gva {
    let mode = guest.paging_mode();
    let places = (0..512).map(|step| KERNEL_IMAGE_BASE.wrapping_add(step * STEP));
    let mapped = |at: &Gva| paging::translate(guest.vm.ram(), mode, *at).is_ok();
    places.into_iter().find(mapped).expect("the kernel is mapped")
}
