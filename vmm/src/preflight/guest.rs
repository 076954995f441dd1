//! A guest of a few pages: long mode, an IDT whose every handler reports its vector by port.

use kvm_bindings::{
    CpuId, KVM_INTERNAL_ERROR_EMULATION, Msrs, kvm_msr_entry, kvm_regs, kvm_segment,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

use super::error::PreflightError;
use crate::layout::{KVM_IDENTITY_MAP, KVM_TSS};
use crate::ram::host_address;
use exoprobe_guest::Gpa;
use exoprobe_guest::GuestRam;
use exoprobe_guest::kvm::report_debug;
use exoprobe_guest::memory::RamRange;
use exoprobe_guest::msr::MSR_LSTAR;
use exoprobe_guest::paging::{PAGE_SIZE, PTE_PRESENT, PTE_USER, PTE_WRITE};

/// Where the probed code starts (and its RIP).
pub(super) const CODE: u64 = 0x8000;
const PML4: u64 = 0x1000;
const PDPT: u64 = 0x2000;
const DIRECTORY: u64 = 0x3000;
const TABLE: u64 = 0x4000;
const GDT: u64 = 0x5000;
const TSS: u64 = 0x5800;
const IDT: u64 = 0x6000;
const HANDLERS: u64 = 0x7000;
const SYSTEM_CALL: u64 = 0x9000;
const KERNEL_STACK: u64 = 0xb000;
const USER_STACK: u64 = 0xd000;
const MEMORY: u64 = 0x1_0000;

const PORT_VECTOR: u16 = 0xe0;
const PORT_SYSTEM_CALL: u16 = 0xe1;
const VECTORS: u64 = 32;
const HANDLER_LEN: u64 = 8;

const KERNEL_CS: u16 = 0x08;
const KERNEL_DS: u16 = 0x10;
const USER_DS: u16 = 0x1b;
const USER_CS: u16 = 0x23;
const TSS_SELECTOR: u16 = 0x28;
const MSR_STAR: u32 = 0xc000_0081;
const MSR_SFMASK: u32 = 0xc000_0084;
/// Maximum number of exits of a probe guest. After that many it counts as without an answer.
const MAX_EXITS: u32 = 8;

/// The end of a run of a probe guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Observed {
    /// KVM_EXIT_DEBUG.
    Debug { exception: u8 },
    /// KVM could not emulate an instruction.
    EmulationFailure,
    /// The guest's handler for a vector ran; `rip` is the address in its frame.
    Vector { number: u8, rip: u64 },
    /// The system-call entry ran in kernel mode.
    SystemCall,
    /// HLT.
    Halted,
    /// Some other exit.
    Other { reason: u32 },
}

/// A KVM that is not examined yet.
#[derive(Clone, Copy)]
pub(super) struct BareHost<'a> {
    pub(super) kvm: &'a Kvm,
    /// Its answer to KVM_GET_SUPPORTED_CPUID.
    pub(super) supported_cpuid: &'a CpuId,
}

/// One vCPU with the machine around it.
pub(super) struct ProbeGuest {
    pub(super) vcpu: VcpuFd,
    pub(super) vm: VmFd,
    /// Last: fields go in this order, and the VM maps it.
    pub(super) ram: GuestRam,
}

impl ProbeGuest {
    /// Runs `code` in kernel mode.
    pub(super) fn kernel(host: BareHost<'_>, code: &[u8]) -> Result<Self, PreflightError> {
        Self::new(host, code, false)
    }

    /// Runs `code` in user mode.
    pub(super) fn user(host: BareHost<'_>, code: &[u8]) -> Result<Self, PreflightError> {
        Self::new(host, code, true)
    }

    fn new(host: BareHost<'_>, code: &[u8], user: bool) -> Result<Self, PreflightError> {
        let ram = GuestRam::anonymous(&[RamRange { start: Gpa(0), len: MEMORY }])?;
        write_memory(&ram, code);
        let vm = host.kvm.create_vm()?;
        let tss = usize::try_from(KVM_TSS.0).expect("below 4 GiB");
        vm.set_tss_address(tss)?;
        vm.set_identity_map_address(KVM_IDENTITY_MAP.0)?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: MEMORY,
            userspace_addr: host_address(&ram, Gpa(0)),
        };
        // SAFETY: the mapping is MEMORY bytes long and lives in `ram`, which outlives `vm` in Self.
        unsafe { vm.set_user_memory_region(region)? };
        let vcpu = vm.create_vcpu(0)?;
        vcpu.set_cpuid2(host.supported_cpuid)?;
        set_registers(&vcpu, user)?;
        report_debug(&vcpu, false)?;
        Ok(Self { vcpu, ram, vm })
    }

    /// Runs the guest until an event is observed.
    pub(super) fn run(&mut self) -> Result<Observed, PreflightError> {
        observe(&mut self.vcpu, &self.ram)
    }
}

/// Runs a vCPU until an event is observed.
pub(super) fn observe(vcpu: &mut VcpuFd, ram: &GuestRam) -> Result<Observed, PreflightError> {
    for _ in 0..MAX_EXITS {
        let observed = match vcpu.run() {
            Ok(VcpuExit::Debug(arch)) => {
                let exception = u8::try_from(arch.exception).unwrap_or(u8::MAX);
                Observed::Debug { exception }
            }
            Ok(VcpuExit::IoOut(PORT_SYSTEM_CALL, _)) => Observed::SystemCall,
            Ok(VcpuExit::IoOut(PORT_VECTOR, data)) => {
                let number = data[0];
                vector(vcpu, ram, number)?
            }
            Ok(VcpuExit::Hlt) => Observed::Halted,
            Ok(VcpuExit::InternalError) => internal_error(vcpu),
            Ok(_) => Observed::Other { reason: vcpu.get_kvm_run().exit_reason },
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => continue,
            Err(error) => return Err(error.into()),
        };
        return Ok(observed);
    }
    Ok(Observed::Other { reason: u32::MAX })
}

fn internal_error(vcpu: &mut VcpuFd) -> Observed {
    let run = vcpu.get_kvm_run();
    // SAFETY: the exit reason is KVM_EXIT_INTERNAL_ERROR, whose union member this is.
    let suberror = unsafe { run.__bindgen_anon_1.internal.suberror };
    if suberror == KVM_INTERNAL_ERROR_EMULATION {
        Observed::EmulationFailure
    } else {
        Observed::Other { reason: run.exit_reason }
    }
}

/// RSP points to the error code (for vectors that have one) and RIP.
fn vector(vcpu: &VcpuFd, ram: &GuestRam, number: u8) -> Result<Observed, PreflightError> {
    let regs = vcpu.get_regs()?;
    let error_code = u64::from(matches!(number, 8 | 10..=14 | 17 | 21));
    let mut rip = [0; 8];
    let at = Gpa(regs.rsp.wrapping_add(8 * error_code));
    if ram.read(at, &mut rip).is_err() {
        return Ok(Observed::Other { reason: u32::MAX });
    }
    Ok(Observed::Vector { number, rip: u64::from_le_bytes(rip) })
}

fn write_memory(ram: &GuestRam, code: &[u8]) {
    let put = |at: u64, data: &[u8]| ram.write(Gpa(at), data).expect("inside the probe's memory");
    let word = |at: u64, value: u64| put(at, &value.to_le_bytes());
    let table = PTE_PRESENT | PTE_WRITE | PTE_USER;
    word(PML4, PDPT | table);
    word(PDPT, DIRECTORY | table);
    word(DIRECTORY, TABLE | table);
    for page in 0..MEMORY / PAGE_SIZE {
        let at = page * PAGE_SIZE;
        let user = if at == CODE || at == USER_STACK - PAGE_SIZE { PTE_USER } else { 0 };
        word(TABLE + page * 8, at | PTE_PRESENT | PTE_WRITE | user);
    }
    let tss_low = 0x0000_8900_0000_0067 | (TSS & 0xff_ffff) << 16;
    let flat = [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];
    let user = [0x00cf_f300_0000_ffff, 0x00af_fb00_0000_ffff];
    for (slot, descriptor) in flat.into_iter().chain(user).chain([tss_low, 0]).enumerate() {
        word(GDT + 8 * slot as u64, descriptor);
    }
    word(TSS + 4, KERNEL_STACK);
    for vector in 0..VECTORS {
        let handler = HANDLERS + vector * HANDLER_LEN;
        let number = u8::try_from(vector).expect("below 32");
        put(handler, &[0xb0, number, 0xe6, PORT_VECTOR.to_le_bytes()[0], 0xf4]);
        word(IDT + vector * 16, handler | u64::from(KERNEL_CS) << 16 | 0x8e00 << 32);
    }
    put(SYSTEM_CALL, &[0xe6, PORT_SYSTEM_CALL.to_le_bytes()[0], 0xf4]);
    put(CODE, code);
}

fn segment(selector: u16, type_: u8, dpl: u8) -> kvm_segment {
    let code = type_ == 0xb;
    kvm_segment {
        limit: 0xffff_ffff,
        selector,
        type_,
        present: 1,
        dpl,
        db: u8::from(!code),
        s: 1,
        l: u8::from(code),
        g: 1,
        ..kvm_segment::default()
    }
}

fn set_registers(vcpu: &VcpuFd, user: bool) -> Result<(), kvm_ioctls::Error> {
    let mut sregs = vcpu.get_sregs()?;
    let (code, data, dpl) = if user { (USER_CS, USER_DS, 3) } else { (KERNEL_CS, KERNEL_DS, 0) };
    sregs.cs = segment(code, 0xb, dpl);
    let data = segment(data, 0x3, dpl);
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.tr = kvm_segment {
        base: TSS,
        limit: 0x67,
        selector: TSS_SELECTOR,
        type_: 0xb,
        present: 1,
        ..kvm_segment::default()
    };
    (sregs.gdt.base, sregs.gdt.limit) = (GDT, 7 * 8 - 1);
    (sregs.idt.base, sregs.idt.limit) = (IDT, 32 * 16 - 1);
    sregs.cr3 = PML4;
    sregs.cr4 = 1 << 5;
    // PG, WP, NE, ET, MP, PE.
    sregs.cr0 = 0x8001_0033;
    // LMA, LME, SCE.
    sregs.efer = 0x501;
    vcpu.set_sregs(&sregs)?;
    let stack = if user { USER_STACK } else { KERNEL_STACK };
    vcpu.set_regs(&kvm_regs { rip: CODE, rsp: stack, rflags: 2, ..kvm_regs::default() })?;
    let star = u64::from(KERNEL_CS) << 32 | u64::from(KERNEL_DS | 3) << 48;
    let msr = |index, data| kvm_msr_entry { index, data, ..kvm_msr_entry::default() };
    let msrs = [msr(MSR_STAR, star), msr(MSR_LSTAR, SYSTEM_CALL), msr(MSR_SFMASK, 0x200)];
    vcpu.set_msrs(&Msrs::from_entries(&msrs).expect("three entries")).map(drop)
}
