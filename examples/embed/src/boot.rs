//! A kernel at its 64-bit entry point (Documentation/arch/x86/boot.rst).

use kvm_bindings::{kvm_regs, kvm_segment};
use kvm_ioctls::{Error, VcpuFd};
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use linux_loader::loader::{Elf, KernelLoader};
use vm_memory::{ByteValued, Bytes, GuestAddress, GuestMemoryMmap};

const ZERO_PAGE: u32 = 0x7000;
const STACK: u64 = 0x8ff0;
const PML4: u64 = 0x9000;
const CMDLINE: u32 = 0x2_0000;
const INITRAMFS: u32 = 0x280_0000;

/// Loads a kernel into `len` bytes of memory; returns its entry point.
pub(crate) fn load(
    memory: &GuestMemoryMmap,
    files: [&str; 2],
    cmdline: &str,
    len: u64,
) -> crate::error::Result<u64> {
    let kernel = Elf::load(memory, None, &mut std::fs::File::open(files[0])?, None)?;
    let initramfs = std::fs::read(files[1])?;
    memory.write_slice(&initramfs, GuestAddress(INITRAMFS.into()))?;
    memory.write_slice(format!("{cmdline}\0").as_bytes(), GuestAddress(CMDLINE.into()))?;
    let hdr = setup_header {
        boot_flag: 0xaa55,
        header: 0x5372_6448,
        type_of_loader: 0xff,
        kernel_alignment: 0x100_0000,
        cmd_line_ptr: CMDLINE,
        cmdline_size: u32::try_from(cmdline.len())?,
        ramdisk_image: INITRAMFS,
        ramdisk_size: u32::try_from(initramfs.len())?,
        ..setup_header::default()
    };
    let mut params = boot_params { hdr, e820_entries: 2, ..boot_params::default() };
    // No RAM from 0xa0000 to 0xfffff: the page tables of hidden memory are there.
    params.e820_table[0] = boot_e820_entry { addr: 0, size: 0x9_fc00, r#type: 1 };
    params.e820_table[1] = boot_e820_entry { addr: 1 << 20, size: len - (1 << 20), r#type: 1 };
    memory.write_slice(params.as_slice(), GuestAddress(ZERO_PAGE.into()))?;
    // The first GiB at itself, in pages of 2 MiB.
    memory.write_obj(PML4 + 0x1003, GuestAddress(PML4))?;
    memory.write_obj(PML4 + 0x2003, GuestAddress(PML4 + 0x1000))?;
    for page in 0..512 {
        memory.write_obj(page << 21 | 0x83, GuestAddress(PML4 + 0x2000 + page * 8))?;
    }
    Ok(kernel.kernel_load.0)
}

/// Puts the vCPU at `rip`, in 64-bit mode.
pub(crate) fn set_registers(vcpu: &VcpuFd, rip: u64) -> Result<(), Error> {
    let flat = kvm_segment { limit: u32::MAX, present: 1, s: 1, g: 1, ..kvm_segment::default() };
    let mut sregs = vcpu.get_sregs()?;
    sregs.cs = kvm_segment { selector: 0x10, type_: 0xb, l: 1, ..flat };
    let data = kvm_segment { selector: 0x18, type_: 0x3, db: 1, ..flat };
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    (sregs.cr0, sregs.cr3, sregs.cr4) = (sregs.cr0 | 0x8000_0001, PML4, sregs.cr4 | 0x20);
    sregs.efer |= 0x500;
    vcpu.set_sregs(&sregs)?;
    let (rsp, rsi) = (STACK, ZERO_PAGE.into());
    vcpu.set_regs(&kvm_regs { rip, rsp, rsi, rflags: 2, ..kvm_regs::default() })
}
