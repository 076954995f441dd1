//! The zero page and the command line.

use linux_loader::loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use vm_memory::ByteValued;

use super::image::Initramfs;
use super::kernel::LoadedKernel;
use crate::layout::{CMDLINE, HIGH_RAM_START, LOW_RAM_END, ZERO_PAGE};
use exoprobe_guest::Gpa;
use exoprobe_guest::{GuestRam, OutsideMemory};

const E820_RAM: u32 = 1;
/// "A boot loader without an assigned number" (boot.rst, type_of_loader).
const LOADER_UNDEFINED: u8 = 0xff;
const BOOT_FLAG: u16 = 0xaa55;
const HEADER_MAGIC: u32 = 0x5372_6448;
const KERNEL_ALIGNMENT: u32 = 0x100_0000;

/// Writes the zero page and command line; `rsdp` is the first of the ACPI tables.
pub(super) fn write(
    ram: &GuestRam,
    kernel: &LoadedKernel,
    initramfs: Option<Initramfs>,
    cmdline: &str,
    rsdp: Gpa,
) -> Result<(), OutsideMemory> {
    let mut params = boot_params::default();
    let mut header = kernel.header.unwrap_or(setup_header {
        boot_flag: BOOT_FLAG,
        header: HEADER_MAGIC,
        kernel_alignment: KERNEL_ALIGNMENT,
        ..setup_header::default()
    });
    header.type_of_loader = LOADER_UNDEFINED;
    header.cmd_line_ptr = low(CMDLINE.0);
    header.cmdline_size = low(cmdline.len() as u64);
    if let Some(initramfs) = initramfs {
        header.ramdisk_image = low(initramfs.start.0);
        header.ramdisk_size = low(initramfs.size);
    }
    params.hdr = header;
    params.acpi_rsdp_addr = rsdp.0;
    let map = e820(ram);
    params.e820_entries = u8::try_from(map.len()).expect("three entries");
    for (slot, entry) in map.into_iter().enumerate() {
        params.e820_table[slot] = entry;
    }
    ram.write(ZERO_PAGE, params.as_slice())?;
    ram.write(CMDLINE, cmdline.as_bytes())?;
    ram.write(Gpa(CMDLINE.0 + cmdline.len() as u64), &[0])
}

fn low(value: u64) -> u32 {
    u32::try_from(value).expect("boot data lies below 3 GiB")
}

fn e820(ram: &GuestRam) -> Vec<boot_e820_entry> {
    let entry = |addr, size| boot_e820_entry { addr, size, r#type: E820_RAM };
    let mut map = vec![entry(0, LOW_RAM_END.0)];
    for range in ram.ranges() {
        let start = range.start.0.max(HIGH_RAM_START.0);
        let end = range.start.0 + range.len;
        map.push(entry(start, end.saturating_sub(start)));
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use exoprobe_guest::memory::ram_ranges;

    #[test]
    fn the_map_leaves_out_the_tables_and_the_gap() {
        let ram = GuestRam::anonymous(&ram_ranges(4096)).unwrap();
        let map: Vec<_> = e820(&ram).iter().map(|e| ({ e.addr }, { e.size })).collect();
        let gib = 1u64 << 30;
        assert_eq!(map, [(0, 0x9_fc00), (1 << 20, 3 * gib - (1 << 20)), (4 * gib, gib)]);
    }

    #[test]
    fn the_command_line_is_ended() {
        let ram = GuestRam::anonymous(&ram_ranges(32)).unwrap();
        ram.write(CMDLINE, &[0xff; 64]).unwrap();
        let kernel = LoadedKernel { entry: Gpa(0), end: Gpa(0), header: None };
        write(&ram, &kernel, None, "quiet", Gpa(0xe_0000)).unwrap();
        let mut text = [0; 6];
        ram.read(CMDLINE, &mut text).unwrap();
        assert_eq!(&text, b"quiet\0");
    }
}
