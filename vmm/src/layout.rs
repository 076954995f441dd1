//! Guest-physical addresses and ports this machine uses, each with its reason.

use exoprobe_guest::Gpa;

/// Boot-time GDT. Anywhere in the first page frame that Linux does not read before it loads its
/// own.
pub const BOOT_GDT: Gpa = Gpa(0x500);
/// `struct boot_params` (the "zero page" of Documentation/arch/x86/zero-page.rst): low memory, one
/// page.
pub const ZERO_PAGE: Gpa = Gpa(0x7000);
/// Initial stack pointer; the 64-bit entry uses no more than a few words of it.
pub const BOOT_STACK_TOP: Gpa = Gpa(0x8ff0);
/// Boot page tables: PML4, one PDPT, four PDs (identity map of the first 4 GiB in 2 MiB pages).
pub const BOOT_PML4: Gpa = Gpa(0x9000);
/// Kernel command line, ended by a NUL.
pub const CMDLINE: Gpa = Gpa(0x2_0000);
/// Longest command line, NUL included: COMMAND_LINE_SIZE of x86 Linux.
pub const CMDLINE_MAX: usize = 2048;
/// Pointer to the MP table: Linux scans the last KiB of the 640 KiB base memory for it (MP spec
/// 1.4, 4).
pub const MP_POINTER: Gpa = Gpa(0x9_fc00);
/// The MP table: the last page of the BIOS area, after the ACPI tables.
pub const MP_TABLE: Gpa = Gpa(0xf_f000);
/// End of the MP table.
pub const MP_TABLE_END: Gpa = HIGH_RAM_START;
/// End of conventional RAM; the pointer above it is kept out of the e820 map's RAM.
pub const LOW_RAM_END: Gpa = Gpa(0x9_fc00);
/// Start of extended RAM: where kernels load.
pub const HIGH_RAM_START: Gpa = Gpa(0x10_0000);
/// ACPI tables: Linux looks for the first in the BIOS area (ACPI 6.5, 5.2.5.1).
pub const ACPI_TABLES: Gpa = Gpa(0xe_0000);
/// Their end.
pub const ACPI_TABLES_END: Gpa = MP_TABLE;
/// KVM's task-state segment pages (3 of them, KVM_SET_TSS_ADDR): just below the BIOS area.
pub const KVM_TSS: Gpa = Gpa(0xfffb_d000);
/// KVM's identity-map page (KVM_SET_IDENTITY_MAP_ADDR).
pub const KVM_IDENTITY_MAP: Gpa = Gpa(0xfffb_c000);
/// Local APIC, where the architecture puts it.
pub const LOCAL_APIC: u32 = 0xfee0_0000;
/// I/O APIC, where KVM's in-kernel irqchip puts it.
pub const IO_APIC: u32 = 0xfec0_0000;

/// Where the memory of PCI functions is: each has 64 KiB, by its slot, in the gap below 4 GiB.
pub const PCI_BARS: Gpa = Gpa(0xd000_0000);
/// End of the guest-physical addresses that the guest may give to PCI functions.
pub const PCI_BARS_END: Gpa = Gpa(0xe000_0000);

/// First serial port (ttyS0), the console: base port and ISA interrupt.
pub const SERIAL0: (u16, u32) = (0x3f8, 4);
/// Second serial port (ttyS1), commands to the workload: base port and ISA interrupt.
pub const SERIAL1: (u16, u32) = (0x2f8, 3);
/// Registers of a 16550.
pub const SERIAL_LEN: u16 = 8;
/// i8042 data port; its command port is 4 above.
pub const I8042_DATA: u16 = 0x60;
/// i8042 command port: [`I8042_RESET`] pulses the CPU's reset line.
pub const I8042_COMMAND: u16 = 0x64;
/// The command.
pub const I8042_RESET: u8 = 0xfe;

/// ACPI's registers of events: status and enable, 16 bits each.
pub const PM1_EVENT: u16 = 0x600;
/// ACPI's control register, which follows them.
pub const PM1_CONTROL: u16 = PM1_EVENT + 4;
/// Interrupt of ACPI's events, where it is on PCs.
pub const SCI: u32 = 9;
/// The type of sleep "off" (S5), in ACPI's control register.
pub const SLEEP_TYPE_OFF: u8 = 5;
