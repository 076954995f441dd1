//! Guest-physical addresses and ports this machine uses, each with its reason.

use crate::addr::{Gpa, Gva};

/// Boot-time GDT. Anywhere in the first page frame that Linux does not read before it loads its own.
pub const BOOT_GDT: Gpa = Gpa(0x500);
/// `struct boot_params` (the "zero page" of Documentation/arch/x86/zero-page.rst): low memory, one page.
pub const ZERO_PAGE: Gpa = Gpa(0x7000);
/// Initial stack pointer; the 64-bit entry uses no more than a few words of it.
pub const BOOT_STACK_TOP: Gpa = Gpa(0x8ff0);
/// Boot page tables: PML4, one PDPT, four PDs (identity map of the first 4 GiB in 2 MiB pages).
pub const BOOT_PML4: Gpa = Gpa(0x9000);
/// Kernel command line, ended by a NUL.
pub const CMDLINE: Gpa = Gpa(0x2_0000);
/// Longest command line, NUL included: COMMAND_LINE_SIZE of x86 Linux.
pub const CMDLINE_MAX: usize = 2048;
/// MP table: Linux scans the last KiB of the 640 KiB base memory for it (MP spec 1.4, 4).
pub const MP_TABLE: Gpa = Gpa(0x9_fc00);
/// End of conventional RAM; the MP table above it is kept out of the e820 map's RAM.
pub const LOW_RAM_END: Gpa = Gpa(0x9_fc00);
/// Page tables of hidden memory, two pages: RAM in the hole of the video memory (0xa0000 to 0xbffff), which this
/// machine has no device for. The e820 map leaves it out, and Linux takes nothing of it (trim_bios_range(),
/// reserve_bios_regions()), but has the whole first MiB in its direct map (init_mem_mapping(): "the ISA range is
/// always mapped regardless of memory holes"). It looks for tables of firmware from 0xc0000 on and below 0xa0000.
pub const HIDDEN_TABLES: Gpa = Gpa(0xa_0000);
/// Start of extended RAM: where kernels load.
pub const HIGH_RAM_START: Gpa = Gpa(0x10_0000);
/// Where RAM stops below 4 GiB: the APICs and KVM's own pages lie above.
pub const MMIO_GAP_START: u64 = 3 << 30;
/// Where RAM goes on above the gap.
pub const MMIO_GAP_END: u64 = 4 << 30;
/// KVM's task-state segment pages (3 of them, KVM_SET_TSS_ADDR): just below the BIOS area.
pub const KVM_TSS: Gpa = Gpa(0xfffb_d000);
/// KVM's identity-map page (KVM_SET_IDENTITY_MAP_ADDR).
pub const KVM_IDENTITY_MAP: Gpa = Gpa(0xfffb_c000);
/// Local APIC, where the architecture puts it.
pub const LOCAL_APIC: u32 = 0xfee0_0000;
/// I/O APIC, where KVM's in-kernel irqchip puts it.
pub const IO_APIC: u32 = 0xfec0_0000;

/// Bytes of the hidden region without its rings: what one page-directory entry maps.
pub const HIDDEN_SIZE: u64 = 2 << 20;
/// First GiB of the kernel-image mapping: the kernel's text lies in it.
pub const KERNEL_IMAGE_BASE: Gva = Gva(0xffff_ffff_8000_0000);
/// Where hidden memory is mapped: entry 508 of the page directory of the last GiB (level2_fixmap_pgt), the first
/// above the fixmap. Linux grows its fixmap from FIXADDR_TOP (0xffffffffff7ff000) downwards: the entries below may
/// become its own at any moment, 505 in early_ioremap_init() for one, and how many depends on its configuration.
/// Entries 508 to 511 are the "6 MB reserved space + a 2MB hole" of head_64.S: from 4.19 to 6.12 no kernel writes
/// them, and the directory is in its image, in all its page tables from startup_64 on. rel32 reaches from there to
/// all kernel text and modules.
pub const HIDDEN_GVA: Gva = Gva(0xffff_ffff_ff80_0000);
/// Bytes of rings that follow hidden memory: two more page-directory entries. They end below the last 2 MiB, where a
/// pointer that is an error's number must lead nowhere (mm.rst, "unused hole"; err.h).
pub const RINGS_SIZE: u64 = 4 << 20;
/// First address of the kernel's half with 48-bit addresses: 64-bit Linux runs above it once it has
/// left the identity mapping it is started in.
pub const KERNEL_HALF: Gva = Gva(0xffff_8000_0000_0000);

/// First serial port (ttyS0), the console: base port and ISA interrupt.
pub const SERIAL0: (u16, u32) = (0x3f8, 4);
/// Second serial port (ttyS1), commands to the workload: base port and ISA interrupt.
pub const SERIAL1: (u16, u32) = (0x2f8, 3);
/// Registers of a 16550.
pub const SERIAL_LEN: u16 = 8;
/// i8042 data port; its command port is 4 above.
pub const I8042_DATA: u16 = 0x60;
/// i8042 command port: 0xfe pulses the CPU's reset line.
pub const I8042_COMMAND: u16 = 0x64;
