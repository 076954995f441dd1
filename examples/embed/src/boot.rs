//! Puts a kernel and its initramfs into RAM, and the vCPU at the kernel's 64-bit entry point
//! (Documentation/arch/x86/boot.rst).

use std::fs::File;

use kvm_bindings::{kvm_regs, kvm_segment};
use kvm_ioctls::VcpuFd;
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params};
use linux_loader::loader::{Elf, KernelLoader};
use vm_memory::{ByteValued, Bytes, GuestAddress, GuestMemoryMmap};

use crate::Result;

const ZERO_PAGE: u64 = 0x7000;
const STACK: u64 = 0x8ff0;
const PML4: u64 = 0x9000;
const CMDLINE: u64 = 0x2_0000;
const INITRAMFS: u64 = 0x280_0000;

/// Loads all that the kernel needs; returns its entry point.
pub(crate) fn load(
    memory: &GuestMemoryMmap,
    (kernel, initramfs): (&str, &str),
    cmdline: &str,
    len: u64,
) -> Result<u64> {
    let kernel = Elf::load(memory, None, &mut File::open(kernel)?, None)?;
    let initramfs = std::fs::read(initramfs)?;
    memory.write_slice(&initramfs, GuestAddress(INITRAMFS))?;
    memory.write_slice(format!("{cmdline}\0").as_bytes(), GuestAddress(CMDLINE))?;
    let mut params = boot_params::default();
    params.hdr.boot_flag = 0xaa55;
    params.hdr.header = 0x5372_6448;
    params.hdr.type_of_loader = 0xff;
    params.hdr.kernel_alignment = 0x100_0000;
    params.hdr.cmd_line_ptr = u32::try_from(CMDLINE)?;
    params.hdr.cmdline_size = u32::try_from(cmdline.len())?;
    params.hdr.ramdisk_image = u32::try_from(INITRAMFS)?;
    params.hdr.ramdisk_size = u32::try_from(initramfs.len())?;
    // Nothing from 0xa0000 to 0xfffff: the page tables of hidden memory lie there.
    for (addr, size) in [(0, 0x9_fc00), (0x10_0000, len - 0x10_0000)] {
        let slot = usize::from(params.e820_entries);
        params.e820_table[slot] = boot_e820_entry { addr, size, r#type: 1 };
        params.e820_entries += 1;
    }
    memory.write_slice(params.as_slice(), GuestAddress(ZERO_PAGE))?;
    // The first GiB, mapped at itself in pages of 2 MiB.
    memory.write_obj(PML4 + 0x1000 | 3, GuestAddress(PML4))?;
    memory.write_obj(PML4 + 0x2000 | 3, GuestAddress(PML4 + 0x1000))?;
    for page in 0..512u64 {
        memory.write_obj(page << 21 | 0x83, GuestAddress(PML4 + 0x2000 + page * 8))?;
    }
    Ok(kernel.kernel_load.0)
}

/// Puts the vCPU at `entry`, in 64-bit mode.
pub(crate) fn set_registers(vcpu: &VcpuFd, entry: u64) -> Result<()> {
    let segment = |selector, type_, db, l| kvm_segment {
        limit: u32::MAX,
        selector,
        type_,
        present: 1,
        db,
        s: 1,
        l,
        g: 1,
        ..kvm_segment::default()
    };
    let mut sregs = vcpu.get_sregs()?;
    (sregs.cr0, sregs.cr3, sregs.cr4) = (sregs.cr0 | 0x8000_0001, PML4, sregs.cr4 | 0x20);
    sregs.efer |= 0x500;
    sregs.cs = segment(0x10, 0xb, 0, 1);
    let data = segment(0x18, 0x3, 1, 0);
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    vcpu.set_sregs(&sregs)?;
    let (rsp, rsi) = (STACK, ZERO_PAGE);
    Ok(vcpu.set_regs(&kvm_regs { rip: entry, rsp, rsi, rflags: 2, ..kvm_regs::default() })?)
}
