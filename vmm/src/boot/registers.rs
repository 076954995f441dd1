//! Boot-time page tables, GDT and registers, as the 64-bit entry point expects them.

use kvm_bindings::{Msrs, kvm_fpu, kvm_msr_entry, kvm_regs, kvm_segment};
use kvm_ioctls::VcpuFd;

use crate::layout::{BOOT_GDT, BOOT_PML4, BOOT_STACK_TOP, ZERO_PAGE};
use exoprobe_guest::Gpa;
use exoprobe_guest::paging::{
    PAGE_SIZE, PAGE_SIZE_1G, PAGE_SIZE_2M, PTE_LARGE, PTE_PRESENT, PTE_WRITE,
};
use exoprobe_guest::{GuestRam, OutsideMemory};

/// __BOOT_CS and __BOOT_DS of boot.rst.
const BOOT_CS: u16 = 0x10;
const BOOT_DS: u16 = 0x18;
const GDT: [u64; 4] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];
const CR0_PE: u64 = 1;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
const RFLAGS_FIXED: u64 = 2;
/// GiBs covered by the boot identity map.
const IDENTITY_GIB: u64 = 4;
/// IA32_MISC_ENABLE (Intel SDM vol. 4, 2.1); bit 0 is "fast strings", without which Linux drops rep
/// movsb.
const MSR_MISC_ENABLE: u32 = 0x1a0;
const MISC_ENABLE_FAST_STRING: u64 = 1;

/// The start of the first vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BootEntry {
    /// First instruction, in the identity map.
    pub(crate) rip: Gpa,
}

/// Writes the GDT and an identity map of the first 4 GiB in 2 MiB pages.
pub(super) fn write_boot_tables(ram: &GuestRam) -> Result<(), OutsideMemory> {
    for (slot, descriptor) in GDT.iter().enumerate() {
        ram.store_u64(Gpa(BOOT_GDT.0 + 8 * slot as u64), *descriptor)?;
    }
    let table = PTE_PRESENT | PTE_WRITE;
    let pdpt = BOOT_PML4.0 + PAGE_SIZE;
    ram.store_u64(BOOT_PML4, pdpt | table)?;
    for gib in 0..IDENTITY_GIB {
        let directory = pdpt + PAGE_SIZE * (1 + gib);
        ram.store_u64(Gpa(pdpt + gib * 8), directory | table)?;
        for slot in 0..512 {
            let page = gib * PAGE_SIZE_1G + slot * PAGE_SIZE_2M;
            ram.store_u64(Gpa(directory + slot * 8), page | table | PTE_LARGE)?;
        }
    }
    Ok(())
}

fn segment(selector: u16, code: bool) -> kvm_segment {
    kvm_segment {
        limit: 0xffff_ffff,
        selector,
        type_: if code { 0xb } else { 0x3 },
        present: 1,
        db: u8::from(!code),
        s: 1,
        l: u8::from(code),
        g: 1,
        ..kvm_segment::default()
    }
}

/// Puts the first vCPU at the kernel's 64-bit entry point.
///
/// # Errors
/// KVM's.
pub(crate) fn set_boot_registers(vcpu: &VcpuFd, entry: BootEntry) -> Result<(), kvm_ioctls::Error> {
    let mut sregs = vcpu.get_sregs()?;
    sregs.cr0 |= CR0_PE | CR0_PG;
    sregs.cr3 = BOOT_PML4.0;
    sregs.cr4 |= CR4_PAE;
    sregs.efer |= EFER_LME | EFER_LMA;
    sregs.cs = segment(BOOT_CS, true);
    let data = segment(BOOT_DS, false);
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.gdt.base = BOOT_GDT.0;
    sregs.gdt.limit = u16::try_from(size_of_val(&GDT) - 1).expect("four descriptors");
    vcpu.set_sregs(&sregs)?;
    vcpu.set_regs(&kvm_regs {
        rip: entry.rip.0,
        rsp: BOOT_STACK_TOP.0,
        rsi: ZERO_PAGE.0,
        rflags: RFLAGS_FIXED,
        ..kvm_regs::default()
    })?;
    // Power-on state of the x87 and SSE units (Intel SDM vol. 3, table 11-1).
    vcpu.set_fpu(&kvm_fpu { fcw: 0x37f, mxcsr: 0x1f80, ..kvm_fpu::default() })
}

/// Sets the model-specific registers that differ from KVM's reset values, on every vCPU.
///
/// # Errors
/// KVM's.
pub(crate) fn application_msrs(vcpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    let entry = kvm_msr_entry {
        index: MSR_MISC_ENABLE,
        data: MISC_ENABLE_FAST_STRING,
        ..kvm_msr_entry::default()
    };
    let msrs = Msrs::from_entries(&[entry]).expect("one entry");
    vcpu.set_msrs(&msrs).map(drop)
}
