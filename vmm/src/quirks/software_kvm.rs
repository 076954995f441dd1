//! KVM without VT-x or SVM (kvm-pvm): guest kernel code is emulated by KVM, guest user code runs
//! natively. `host-notes.md` has the measurements behind each of these.

use kvm_bindings::{
    CpuId, KVM_CAP_EXIT_ON_EMULATION_FAILURE, KVM_CAP_X86_USER_SPACE_MSR,
    KVM_MSR_EXIT_REASON_FILTER, KVM_MSR_FILTER_WRITE, kvm_enable_cap, kvm_regs, kvm_run, kvm_sregs,
};
use kvm_ioctls::{MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VmFd};

use crate::addr::Gva;
use crate::hidden::{HiddenError, HiddenMemory};
use crate::memory::{GuestRam, OutsideMemory};
use crate::paging::{self, PagingError, PagingMode};

/// Added to the kernel command line: features that KVM's emulator lacks in kernel mode, and that
/// CPUID cannot hide because KVM forces the host's user-visible bits. Without `erms` and `fsrm` (both or
/// neither) Linux copies by words, which takes the emulator fewer turns. One list: the last
/// `clearcpuid=` of a command line wins. The clock is KVM's, which a snapshot restores: the guest's
/// time-stamp counter is the host's here, so by that a restored guest's time would leap.
pub const CMDLINE: &str = concat!(
    "noxsave mitigations=off clocksource=kvm-clock ",
    "clearcpuid=smap,popcnt,cx16,pcid,rdrand,rdseed,xsave,fsgsbase,invpcid,erms,fsrm"
);

/// IA32_LSTAR: where SYSCALL goes (Intel SDM vol. 3, 5.8.8).
pub const MSR_LSTAR: u32 = 0xc000_0082;

const OPCODE_INT3: u8 = 0xcc;
/// FWAIT, which KVM's emulator does not know; with no x87 exception pending it does nothing.
const OPCODE_FWAIT: u8 = 0x9b;
const PAGE_FAULT_VECTOR: u64 = 14;
const GATE_LEN: u64 = 16;

/// The software KVM back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftwareKvm {
    /// A user-mode SYSCALL faults at LSTAR instead of entering the kernel.
    pub syscall_faults: bool,
}

/// What an emulation failure means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmulationFailure {
    /// The guest's kernel ran an int3.
    Breakpoint,
    /// An instruction that may be passed over; it has so many bytes.
    Skip(u8),
    /// Nothing known helps.
    Fatal,
}

/// Why the system-call assist could not be placed.
#[derive(Debug, thiserror::Error)]
pub enum AssistError {
    /// Hidden memory has no place yet.
    #[error(transparent)]
    Hidden(#[from] HiddenError),
    /// The guest's IDT is not where its IDTR says.
    #[error("cannot read the guest's interrupt descriptor table: {0}")]
    Idt(#[from] PagingError),
    /// As above, but the physical page is missing.
    #[error("the guest's interrupt descriptor table is outside its memory: {0}")]
    IdtMemory(#[from] OutsideMemory),
    /// A branch would be longer than 2 GiB.
    #[error("{0} is out of reach of hidden memory")]
    Reach(Gva),
}

impl SoftwareKvm {
    /// What this kind of host is called, for `exoprobe doctor`.
    #[must_use]
    pub fn name(self) -> &'static str {
        "software-only KVM (no VT-x or SVM)"
    }

    /// What follows from it for a user, a sentence each.
    #[must_use]
    pub fn consequences(self) -> Vec<String> {
        let mut all = vec![
            "KVM emulates guest kernel code: it is slow, and booting takes long. Guest user code runs \
             natively."
                .to_owned(),
            format!("Guests are started with `{CMDLINE}`."),
        ];
        if self.syscall_faults {
            let text = "System calls fault here: a stub in hidden memory, before the guest's page-fault \
                        handler, makes system calls of them.";
            all.push(text.to_owned());
        }
        let times =
            "Times measured here say nothing about hardware KVM; ratios within one run may.";
        all.push(times.to_owned());
        all
    }

    /// Makes KVM report what it cannot emulate, and writes to LSTAR. A guest that is `settled` has the
    /// assist already; then the filter, whose setting takes KVM 15 ms, is left out.
    ///
    /// # Errors
    /// What KVM said.
    pub fn prepare_vm(self, vm: &VmFd, settled: bool) -> Result<(), kvm_ioctls::Error> {
        enable(vm, KVM_CAP_EXIT_ON_EMULATION_FAILURE, 1)?;
        if settled || !self.syscall_faults {
            return Ok(());
        }
        enable(vm, KVM_CAP_X86_USER_SPACE_MSR, u64::from(KVM_MSR_EXIT_REASON_FILTER))?;
        let lstar = MsrFilterRange {
            flags: MsrFilterRangeFlags::from_bits_truncate(KVM_MSR_FILTER_WRITE),
            base: MSR_LSTAR,
            msr_count: 1,
            bitmap: &[0],
        };
        vm.set_msr_filter(MsrFilterDefaultAction::ALLOW, &[lstar])
    }

    /// Hides features that need what the emulator lacks, and hypercalls (they never complete).
    pub fn adjust_cpuid(self, cpuid: &mut CpuId) {
        // KVM_CPUID_FEATURES EAX: unhalt 7, TLB flush 9, send-IPI 11, sched-yield 13.
        const HYPERCALL_FEATURES: u32 = (1 << 7) | (1 << 9) | (1 << 11) | (1 << 13);
        // Leaf 1 ECX: FMA 12, CX16 13, XSAVE 26, OSXSAVE 27, AVX 28, F16C 29.
        const LEAF1_ECX: u32 = (1 << 12) | (1 << 13) | (0xf << 26);
        // Leaf 7 EBX: AVX2 5, and 31:16 but for RDSEED 18, ADX 19, SMAP 20 (off by command line).
        const LEAF7_EBX: u32 = (1 << 5) | (0xffff_0000 & !(0b111 << 18));
        for entry in cpuid.as_mut_slice() {
            match entry.function {
                0x4000_0001 => entry.eax &= !HYPERCALL_FEATURES,
                1 => entry.ecx &= !LEAF1_ECX,
                7 => {
                    entry.ebx &= !LEAF7_EBX;
                    (entry.ecx, entry.edx) = (0, 0);
                }
                0xd => (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0),
                _ => {}
            }
        }
    }

    /// Reads the instruction bytes that KVM reports with an emulation failure.
    #[must_use]
    pub fn classify(self, run: &kvm_run) -> EmulationFailure {
        // SAFETY: the caller saw exit reason KVM_EXIT_INTERNAL_ERROR, for which this is the
        // union's live member; all bit patterns are valid for its integers.
        let failure = unsafe { run.__bindgen_anon_1.internal };
        if failure.suberror != kvm_bindings::KVM_INTERNAL_ERROR_EMULATION || failure.ndata < 2 {
            return EmulationFailure::Fatal;
        }
        // data[1]: byte 0 counts the instruction bytes, which follow.
        match failure.data[1].to_le_bytes()[1] {
            OPCODE_INT3 => EmulationFailure::Breakpoint,
            OPCODE_FWAIT => EmulationFailure::Skip(1),
            _ => EmulationFailure::Fatal,
        }
    }

    /// Puts a stub in front of the guest's page-fault handler that turns the false user-mode #PF at
    /// LSTAR into the system call it was: the gate points to hidden memory, no code is changed.
    ///
    /// # Errors
    /// [`AssistError`]; the guest is unchanged then.
    pub fn install_assist(
        self,
        ram: &GuestRam,
        hidden: &HiddenMemory,
        sregs: &kvm_sregs,
        lstar: Gva,
    ) -> Result<(), AssistError> {
        let mode = PagingMode::from_registers(sregs.cr0, sregs.cr3, sregs.cr4, sregs.efer)?;
        hidden.map(ram, mode)?;
        let stub = hidden.stub_window().expect("hidden memory was mapped above");
        let gate_gva = Gva(sregs.idt.base).wrapping_add(PAGE_FAULT_VECTOR * GATE_LEN);
        let gate_gpa = paging::translate(ram, mode, gate_gva)?.gpa;
        let mut gate = [0; 16];
        ram.read(gate_gpa, &mut gate)?;
        let handler = gate_target(gate);
        if handler == stub.gva {
            return Ok(());
        }
        let code = assist_stub(stub.gva, lstar, handler)?;
        hidden.write(stub.offset, &code);
        set_gate_target(&mut gate, stub.gva);
        Ok(ram.write(gate_gpa, &gate)?)
    }
}

/// Passes over an instruction of `len` bytes.
pub fn skip(regs: &mut kvm_regs, len: u8) {
    regs.rip = regs.rip.wrapping_add(u64::from(len));
}

fn enable(vm: &VmFd, cap: u32, arg: u64) -> Result<(), kvm_ioctls::Error> {
    let mut request = kvm_enable_cap { cap, ..kvm_enable_cap::default() };
    request.args[0] = arg;
    vm.enable_cap(&request)
}

/// Target of a 64-bit interrupt gate (Intel SDM vol. 3, figure 6-8).
fn gate_target(gate: [u8; 16]) -> Gva {
    let low = u64::from(u16::from_le_bytes([gate[0], gate[1]]));
    let middle = u64::from(u16::from_le_bytes([gate[6], gate[7]]));
    let high = u64::from(u32::from_le_bytes([gate[8], gate[9], gate[10], gate[11]]));
    Gva(low | middle << 16 | high << 32)
}

fn set_gate_target(gate: &mut [u8; 16], target: Gva) {
    let bytes = target.0.to_le_bytes();
    gate[0..2].copy_from_slice(&bytes[0..2]);
    gate[6..8].copy_from_slice(&bytes[2..4]);
    gate[8..12].copy_from_slice(&bytes[4..8]);
}

/// Six instructions a fault on the usual way through:
///
/// ```text
///     cmp  qword [rsp+8], LSTAR    faulting RIP is the system-call entry?
///     jne  original
///     test byte [rsp+0x10], 3      from user mode?
///     jz   original
///     mov  rsp, [rsp+0x20]         as SYSCALL leaves it; RCX, R11, RFLAGS are right already
///     jmp  LSTAR
/// original:
///     jmp  handler
/// ```
fn assist_stub(at: Gva, lstar: Gva, handler: Gva) -> Result<Vec<u8>, AssistError> {
    let imm32 = i32::try_from(lstar.0.cast_signed()).map_err(|_| AssistError::Reach(lstar))?;
    let mut code = vec![0x48, 0x81, 0x7c, 0x24, 0x08];
    code.extend_from_slice(&imm32.to_le_bytes());
    code.extend_from_slice(&[0x75, 17, 0xf6, 0x44, 0x24, 0x10, 0x03, 0x74, 10]);
    code.extend_from_slice(&[0x48, 0x8b, 0x64, 0x24, 0x20]);
    for target in [lstar, handler] {
        let next = at.wrapping_add(code.len() as u64 + 5);
        let distance = target.0.wrapping_sub(next.0).cast_signed();
        let rel32 = i32::try_from(distance).map_err(|_| AssistError::Reach(target))?;
        code.push(0xe9);
        code.extend_from_slice(&rel32.to_le_bytes());
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_keeps_all_but_its_target() {
        let mut gate = [0xff; 16];
        set_gate_target(&mut gate, Gva(0x1122_3344_5566_7788));
        assert_eq!(gate_target(gate), Gva(0x1122_3344_5566_7788));
        assert_eq!(gate[2..6], [0xff; 4]);
        assert_eq!(gate[12..16], [0xff; 4]);
    }

    #[test]
    fn the_stub_branches_where_it_should() {
        let at = Gva(0xffff_ffff_9fe0_1000);
        let lstar = Gva(0xffff_ffff_8100_0100);
        let handler = Gva(0xffff_ffff_8120_0200);
        let code = assist_stub(at, lstar, handler).unwrap();
        assert_eq!(code.len(), 33);
        assert_eq!(code[9..11], [0x75, 17], "jne lands on the last jmp");
        assert_eq!(11 + 17, 28);
        assert_eq!(code[16..18], [0x74, 10], "so does jz");
        let target = |jmp: usize| {
            let rel = i32::from_le_bytes(code[jmp + 1..jmp + 5].try_into().unwrap());
            at.wrapping_add(jmp as u64 + 5).wrapping_add(i64::from(rel).cast_unsigned())
        };
        assert_eq!((target(23), target(28)), (lstar, handler));
        assert!(assist_stub(at, Gva(0x7fff_0000_0000), handler).is_err());
    }
}
