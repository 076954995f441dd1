//! KVM without VT-x or SVM (kvm-pvm): guest kernel code is emulated by KVM, guest user code runs
//! natively. Each item was measured on kvm-pvm.

use iced_x86::code_asm::{CodeAssembler, byte_ptr, qword_ptr, rsp};
use kvm_bindings::{
    CpuId, KVM_CAP_EXIT_ON_EMULATION_FAILURE, kvm_enable_cap, kvm_regs, kvm_run, kvm_sregs,
};

use crate::addr::Gva;
use crate::hidden::{HiddenError, HiddenMemory};
use crate::idt::{self, IdtError};
use crate::memory::{GuestRam, OutsideMemory};
use crate::msr::MSR_LSTAR;
use crate::paging::{PagingError, PagingMode};
use crate::registers::gpr;
use crate::stub::{self, Stub, StubError, Way};

/// Added to the kernel command line: features that KVM's emulator lacks in kernel mode, and that
/// CPUID cannot hide because KVM forces the host's user-visible bits. Without `erms` and `fsrm`
/// (both or neither) Linux copies by words, which takes the emulator fewer turns. All features are
/// in one list: the last `clearcpuid=` of a command line wins. The clock is KVM's, which a snapshot
/// restores: here the guest's time-stamp counter is the host's, and with it a restored guest's time
/// would leap.
const CMDLINE: &str = concat!(
    "noxsave mitigations=off clocksource=kvm-clock ",
    "clearcpuid=smap,popcnt,cx16,pcid,rdrand,rdseed,xsave,fsgsbase,invpcid,erms,fsrm,",
    "ssse3,sse4_1,sse4_2,aes,pclmulqdq,sha_ni,bmi1,bmi2,adx,movbe,rdpid,rdtscp"
);

/// Added if guest programs see the host's CPUID: the kernel passes the word to init as an
/// environment variable, and glibc then uses no registers that the guest kernel does not save.
const NO_AVX_IN_GLIBC: &str = concat!(
    "GLIBC_TUNABLES=glibc.cpu.hwcaps=",
    "-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW,-AVX_Fast_Unaligned_Load"
);

/// Added for more than [`TOGETHER_MOST`] vCPUs: the kernel (Linux 6.5 and later) starts the others
/// one by one. Together they all wait in a loop for the first one, which hardly runs then: KVM does
/// not see that an emulated loop waits.
const ONE_BY_ONE: &str = "cpuhp.parallel=0";
const TOGETHER_MOST: u8 = 8;

const OPCODE_INT3: u8 = 0xcc;
/// FWAIT, which KVM's emulator does not have; with no x87 exception pending it does nothing.
const OPCODE_FWAIT: u8 = 0x9b;
const PAGE_FAULT_VECTOR: u8 = 14;

/// The software KVM back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftwareKvm {
    /// A user-mode SYSCALL faults at LSTAR instead of entering the kernel.
    pub syscall_faults: bool,
    /// CPUID in user mode has OSXSAVE set although the guest's CR4 has not: it is the host's.
    /// Programs then assume that AVX is usable, whose registers the guest kernel does not save.
    pub host_cpuid: bool,
}

/// The meaning of an emulation failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmulationFailure {
    /// The guest's kernel ran an int3.
    Breakpoint,
    /// An instruction that may be skipped; with its length in bytes.
    Skip(u8),
    /// RDRAND or RDSEED: may always report that no random number is available.
    NoRandomNumber(RandomNumber),
    /// No workaround is known.
    Fatal,
}

/// A request for a random number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomNumber {
    /// Length of the instruction in bytes.
    len: u8,
    /// Number of its destination register, in the encoding of instructions.
    register: u8,
    /// A prefix made the operand 16 bits wide.
    narrow: bool,
}

impl RandomNumber {
    /// Decodes an instruction's bytes: `[66] [REX] 0F C7 /6` or `/7` with a register (Intel SDM
    /// vol. 2, RDRAND).
    fn decode(bytes: [u8; 7]) -> Option<Self> {
        let narrow = bytes[0] == 0x66;
        let mut at = usize::from(narrow);
        let rex = (bytes[at] & 0xf0 == 0x40).then_some(bytes[at]);
        at += usize::from(rex.is_some());
        let [0x0f, 0xc7, modrm] = bytes[at..at + 3] else { return None };
        let is_random = modrm >> 6 == 0b11 && matches!((modrm >> 3) & 7, 6 | 7);
        // REX.B is the register's fourth bit; REX.W goes before the prefix.
        let register = (modrm & 7) | ((rex.unwrap_or(0) & 1) << 3);
        let narrow = narrow && rex.unwrap_or(0) & 8 == 0;
        let len = u8::try_from(at + 3).ok()?;
        is_random.then_some(Self { len, register, narrow })
    }

    /// Completes the instruction as without a random number: result 0, flags clear.
    pub fn refuse(self, regs: &mut kvm_regs) {
        // CF PF AF ZF SF OF.
        const FLAGS: u64 = 0x8d5;
        let register = gpr(regs, self.register);
        *register = if self.narrow { *register & !0xffff } else { 0 };
        regs.rflags &= !FLAGS;
        skip(regs, self.len);
    }
}

/// The reason why the system-call assist could not be placed.
#[derive(Debug, thiserror::Error)]
pub enum AssistError {
    /// Hidden memory is not mapped yet.
    #[error(transparent)]
    Hidden(#[from] HiddenError),
    /// The vCPU's tables cannot be walked.
    #[error(transparent)]
    Paging(#[from] PagingError),
    /// The gate of page faults cannot be used.
    #[error(transparent)]
    Idt(#[from] IdtError),
    /// The guest has no handler for page faults.
    #[error("the guest has set LSTAR before its gate for page faults")]
    NoHandler,
    /// The guest's table is no longer in its memory.
    #[error("the guest's interrupt descriptor table: {0}")]
    Memory(#[from] OutsideMemory),
    /// The stub has no code.
    #[error(transparent)]
    Stub(#[from] StubError),
}

impl SoftwareKvm {
    /// Name of this kind of host, for `exoprobe doctor`.
    #[must_use]
    pub fn name(self) -> &'static str {
        "software-only KVM (no VT-x or SVM)"
    }

    /// Consequences for a user, a sentence each.
    #[must_use]
    pub fn consequences(self) -> Vec<String> {
        let mut all = vec![
            self.expectation().to_owned(),
            "A bzImage is unpacked by the VMM, not in the guest; with KASLR, its virtual address is random, \
             its physical address is not."
                .to_owned(),
            format!("Guests are started with `{}`.", self.cmdline("", 1)),
            self.vector_registers().to_owned(),
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

    /// Speed of guests, for users who wait for one.
    #[must_use]
    pub fn expectation(self) -> &'static str {
        "KVM emulates guest kernel code, at about 1.6 million instructions/s; guest user code runs natively. \
         A distribution's kernel takes many minutes to boot (`exoprobe run --fast-boot` leaves out parts of it), the tiny \
         guest of this project 12 s."
    }

    /// The part of the vector registers that programs may use, for `exoprobe doctor`.
    fn vector_registers(self) -> &'static str {
        if self.host_cpuid {
            "Guest kernels save xmm registers only, and CPUID in guest user mode is the host's: a program that \
             uses AVX loses values. glibc is kept from it by an environment variable of init; other programs, \
             and those that init starts without its environment, are not."
        } else {
            "Guest kernels save xmm registers only. CPUID in guest user mode has no OSXSAVE, so that programs \
             that ask find no AVX; one that uses AVX without asking loses values."
        }
    }

    /// The words to add to the kernel command line `given` of a guest with so many vCPUs. An init
    /// that has `GLIBC_TUNABLES` from it keeps those.
    #[must_use]
    pub fn cmdline(self, given: &str, vcpus: u8) -> String {
        let has_tunables = given.split_whitespace().any(|word| word.starts_with("GLIBC_TUNABLES="));
        let tunables = (self.host_cpuid && !has_tunables).then_some(NO_AVX_IN_GLIBC);
        let one_by_one = (vcpus > TOGETHER_MOST).then_some(ONE_BY_ONE);
        let words = [Some(CMDLINE), one_by_one, tunables];
        words.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// The capability that makes KVM report instructions that it cannot emulate: for
    /// KVM_ENABLE_CAP, on the machine, before it runs.
    #[must_use]
    pub fn capability(self) -> kvm_enable_cap {
        let cap = KVM_CAP_EXIT_ON_EMULATION_FAILURE;
        let mut request = kvm_enable_cap { cap, ..kvm_enable_cap::default() };
        request.args[0] = 1;
        request
    }

    /// The register whose writes must exit: at each, [`Self::install_assist`] is called.
    #[must_use]
    pub fn wants_msr(self) -> Option<u32> {
        self.syscall_faults.then_some(MSR_LSTAR)
    }

    /// Hides features that depend on instructions that the emulator lacks, and hypercalls (they
    /// never complete).
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
        let [_, bytes @ ..] = failure.data[1].to_le_bytes();
        match bytes[0] {
            OPCODE_INT3 => EmulationFailure::Breakpoint,
            OPCODE_FWAIT => EmulationFailure::Skip(1),
            _ => RandomNumber::decode(bytes)
                .map_or(EmulationFailure::Fatal, EmulationFailure::NoRandomNumber),
        }
    }

    /// Puts a stub before the guest's page-fault handler. The stub turns the false user-mode #PF at
    /// LSTAR into the original system call: the gate points to hidden memory, no code is changed.
    ///
    /// # Errors
    /// [`AssistError`]; the guest is unchanged in that case.
    pub fn install_assist(
        self,
        ram: &GuestRam,
        hidden: &HiddenMemory,
        sregs: &kvm_sregs,
        lstar: Gva,
    ) -> Result<(), AssistError> {
        let mode = PagingMode::of(sregs)?;
        hidden.map(ram, mode)?;
        let idtr = (Gva(sregs.idt.base), sregs.idt.limit);
        let gate = idt::gate(ram, mode, idtr, PAGE_FAULT_VECTOR)?.ok_or(AssistError::NoHandler)?;
        let handler = gate.target();
        if Way::from(hidden, handler).passes(Stub::SystemCall) {
            return Ok(());
        }
        let code = Stub::SystemCall.assemble(hidden, handler, |a| repair_syscall(a, lstar))?;
        let gate = gate.to(code.gva)?;
        code.write(hidden);
        Ok(gate.store(ram)?)
    }
}

/// Skips an instruction of `len` bytes.
pub fn skip(regs: &mut kvm_regs, len: u8) {
    regs.rip = regs.rip.wrapping_add(u64::from(len));
}

/// Six instructions per fault on the usual path:
///
/// ```text
///     cmp  qword [rsp+8], LSTAR    faulting RIP is the system-call entry?
///     jne  original
///     test byte [rsp+0x10], 3      from user mode?
///     jz   original
///     mov  rsp, [rsp+0x20]         as SYSCALL leaves it; RCX, R11, RFLAGS are right already
///     jmp  LSTAR
/// original:                        the jmp to the handler
/// ```
fn repair_syscall(a: &mut CodeAssembler, lstar: Gva) -> Result<(), StubError> {
    let mut original = a.create_label();
    a.cmp(qword_ptr(rsp + 8), stub::imm32(lstar)?)?;
    a.jne(original)?;
    a.test(byte_ptr(rsp + 0x10), 3)?;
    a.jz(original)?;
    a.mov(rsp, qword_ptr(rsp + 0x20))?;
    stub::jmp(a, lstar)?;
    Ok(a.set_label(&mut original)?)
}

#[cfg(test)]
mod glibc;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idt::testing::{CR3, IDT, LIMIT, guest, put, target};

    const LSTAR: Gva = Gva(0xffff_ffff_8100_0100);
    const HANDLER: Gva = Gva(0xffff_ffff_8120_0200);

    fn sregs() -> kvm_sregs {
        let mut sregs = kvm_sregs { cr3: CR3, cr4: 1 << 5, efer: 1 << 10, ..kvm_sregs::default() };
        sregs.cr0 = 1 << 31;
        (sregs.idt.base, sregs.idt.limit) = (IDT.0, LIMIT);
        sregs
    }

    #[test]
    fn the_stub_branches_where_it_should() {
        let (ram, mode) = guest();
        put(&ram, PAGE_FAULT_VECTOR, HANDLER);
        let hidden = HiddenMemory::new(&ram, 1).unwrap();
        let quirk = SoftwareKvm { syscall_faults: true, host_cpuid: false };
        let install = |lstar| quirk.install_assist(&ram, &hidden, &sregs(), lstar);
        assert!(matches!(install(Gva(0x7fff_0000_0000)), Err(AssistError::Stub(_))));
        assert_eq!(target(&ram, mode, PAGE_FAULT_VECTOR), Some(HANDLER), "nothing was changed");
        for _ in 0..2 {
            install(LSTAR).unwrap();
            let stub = hidden.stub_window().unwrap();
            assert_eq!(target(&ram, mode, PAGE_FAULT_VECTOR), Some(stub.gva));
            let mut code = [0; 33];
            hidden.read(stub.offset, &mut code);
            assert_eq!(code[..9], [0x48, 0x81, 0x7c, 0x24, 8, 0, 1, 0, 0x81]);
            assert_eq!(code[9..11], [0x75, 17], "jne lands on the last jmp");
            assert_eq!(11 + 17, 28);
            assert_eq!(code[16..18], [0x74, 10], "so does jz");
            let to = |jmp: usize| {
                assert_eq!(code[jmp], 0xe9);
                let rel = i32::from_le_bytes(code[jmp + 1..jmp + 5].try_into().unwrap());
                let next = stub.gva.wrapping_add(jmp as u64 + 5);
                next.wrapping_add(i64::from(rel).cast_unsigned())
            };
            assert_eq!((to(23), to(28)), (LSTAR, HANDLER));
        }
    }

    #[test]
    fn glibc_is_kept_from_avx_where_cpuid_is_the_hosts() {
        let quirk = |host_cpuid| SoftwareKvm { syscall_faults: true, host_cpuid };
        assert!(!quirk(false).cmdline("quiet", 1).contains("GLIBC_TUNABLES"));
        let line = quirk(true).cmdline("quiet", 1);
        assert!(line.starts_with("noxsave ") && line.contains("hwcaps=-AVX,"), "{line}");
        let own = quirk(true).cmdline("quiet GLIBC_TUNABLES=glibc.malloc.check=1", 1);
        assert!(!own.contains("GLIBC_TUNABLES"), "the user's own stay: {own}");
    }

    #[test]
    fn a_request_for_a_random_number_is_refused_as_a_cpu_may() {
        let decode = |code: &[u8]| {
            let mut bytes = [0x90; 7];
            bytes[..code.len()].copy_from_slice(code);
            RandomNumber::decode(bytes)
        };
        let cases: [(&[u8], u8, bool); 5] = [
            (&[0x0f, 0xc7, 0xf0], 0, false),             // rdrand eax
            (&[0x48, 0x0f, 0xc7, 0xf2], 2, false),       // rdrand rdx
            (&[0x49, 0x0f, 0xc7, 0xff], 15, false),      // rdseed r15
            (&[0x66, 0x0f, 0xc7, 0xf1], 1, true),        // rdrand cx
            (&[0x66, 0x49, 0x0f, 0xc7, 0xf0], 8, false), // rdrand r8, an idle prefix before it
        ];
        for (code, register, narrow) in cases {
            let len = u8::try_from(code.len()).unwrap();
            let request = decode(code);
            assert_eq!(request, Some(RandomNumber { len, register, narrow }), "{code:x?}");
        }
        // cmpxchg8b [rax], vmptrld [rax], xsavec, rdpid: not these.
        let others: [&[u8]; 4] =
            [&[0x0f, 0xc7, 8], &[0x0f, 0xc7, 0x30], &[0x0f, 0xc7, 0x20], &[0xf3, 0x0f, 0xc7, 0xf8]];
        for code in others {
            assert_eq!(decode(code), None, "{code:x?}");
        }
    }

    #[test]
    fn what_is_refused_is_0_and_sets_no_flag() {
        let full = kvm_regs { rip: 0x1000, rcx: u64::MAX, rflags: 0xfff, ..kvm_regs::default() };
        let refused = |narrow| {
            let mut regs = full;
            RandomNumber { len: 4, register: 1, narrow }.refuse(&mut regs);
            (regs.rcx, regs.rip, regs.rflags)
        };
        assert_eq!(refused(false), (0, 0x1004, 0x72a));
        assert_eq!(refused(true), (!0xffff, 0x1004, 0x72a));
    }

    #[test]
    fn a_guest_without_a_page_fault_handler_is_left_alone() {
        let (ram, mode) = guest();
        let hidden = HiddenMemory::new(&ram, 1).unwrap();
        let quirk = SoftwareKvm { syscall_faults: true, host_cpuid: false };
        let refused = quirk.install_assist(&ram, &hidden, &sregs(), LSTAR);
        assert!(matches!(refused, Err(AssistError::NoHandler)));
        assert_eq!(target(&ram, mode, PAGE_FAULT_VECTOR), None);
    }
}
