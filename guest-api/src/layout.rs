//! Addresses that the engine, the guest's kernel and the VMM must agree on.

use crate::addr::{Gpa, Gva};

/// Page tables of hidden memory, two pages: RAM in the hole of the video memory (0xa0000 to
/// 0xbffff), for which this machine has no device. The e820 map omits it, and Linux takes nothing
/// of it (trim_bios_range(), reserve_bios_regions()), but has the whole first MiB in its direct map
/// (init_mem_mapping(): "the ISA range is always mapped regardless of memory holes"). Linux
/// searches for tables of firmware from 0xc0000 on and below 0xa0000.
pub const HIDDEN_TABLES: Gpa = Gpa(0xa_0000);
/// End of RAM below 4 GiB: the APICs and KVM's own pages are above.
pub const MMIO_GAP_START: u64 = 3 << 30;
/// Start of RAM above the gap.
pub const MMIO_GAP_END: u64 = 4 << 30;
/// Bytes of the hidden region without its rings: the range of one page-directory entry.
pub const HIDDEN_SIZE: u64 = 2 << 20;
/// First GiB of the kernel-image mapping: the kernel's text lies in it.
pub const KERNEL_IMAGE_BASE: Gva = Gva(0xffff_ffff_8000_0000);
/// Address of hidden memory: entry 508 of the page directory of the last GiB (level2_fixmap_pgt),
/// the first above the fixmap. Linux grows its fixmap from FIXADDR_TOP (0xffffffffff7ff000)
/// downwards: it may take the entries below at any moment (for example 505 in
/// early_ioremap_init()), and their number depends on its configuration. Entries 508 to 511 are the
/// "6 MB reserved space + a 2MB hole" of head_64.S: from 4.19 to 6.12 no kernel writes them, and
/// the directory is in its image, in all its page tables from startup_64 on. rel32 reaches from
/// there to all kernel text and modules.
pub const HIDDEN_GVA: Gva = Gva(0xffff_ffff_ff80_0000);
/// Bytes of rings that follow hidden memory: two more page-directory entries. They end below the
/// last 2 MiB, where a pointer that is an error's number must not be mapped (mm.rst, "unused hole";
/// err.h).
pub const RINGS_SIZE: u64 = 4 << 20;
/// Bytes of records for each of several vCPUs, and for all of them at most.
const RING_OF_VCPU: u64 = 4 << 20;
const RINGS_OF_ALL: u64 = 16 << 20;

/// Bytes of the larger rings: besides the records, one page-directory entry for what is before and
/// after those of each ring.
pub(crate) const fn more_rings_len(vcpus: u8) -> u64 {
    let all = vcpus as u64 * RING_OF_VCPU;
    match vcpus {
        0 | 1 => 0,
        _ if all < RINGS_OF_ALL => all + (2 << 20),
        _ => RINGS_OF_ALL + (2 << 20),
    }
}
/// Bytes of code in the extension of hidden memory, for more optimized probes: 11 page-directory
/// entries.
pub const MORE_CODE_SIZE: u64 = 22 << 20;
/// Bytes of data in the extension: one more entry.
pub const MORE_DATA_SIZE: u64 = 2 << 20;
/// Bytes of the extension.
pub const MORE_SIZE: u64 = MORE_CODE_SIZE + MORE_DATA_SIZE;
/// End of the addresses that the extension of hidden memory may have: the part of the image's
/// mapping that every kernel has. Without KASLR it is all of it (KERNEL_IMAGE_SIZE, 512 MiB), and
/// modules follow; with KASLR it is its lower half. Linux clears the entries around its image once,
/// before C code (cleanup_highmap()), and writes none of them afterwards; the directory
/// (level2_kernel_pgt) is in its image.
pub const MORE_END: Gva = Gva(0xffff_ffff_a000_0000);
/// First address of the kernel's half with 48-bit addresses: 64-bit Linux runs above it once it has
/// left its initial identity mapping.
pub const KERNEL_HALF: Gva = Gva(0xffff_8000_0000_0000);
