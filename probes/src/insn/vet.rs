//! Which instructions must not run displaced, by what they do.
//!
//! Everything unprivileged that continues at the next instruction may, unless listed here;
//! everything privileged may not, unless listed here.

use exoprobe_guest::Gva;
use iced_x86::{CpuidFeature, Instruction, Mnemonic, OpKind, Register};

use super::assurances::Assurances;
use super::decode::Prefixes;
use super::refusal::Refusal;

/// Makes a refusal from the instruction's text.
type Reason = fn(String) -> Refusal;

/// Refuses `insn` with a reason if it must not run displaced.
pub(super) fn vet(
    insn: &Instruction,
    prefixes: Prefixes,
    assurances: Assurances,
) -> Result<(), Refusal> {
    if insn.mnemonic() == Mnemonic::Int3 {
        return Err(Refusal::GuestBreakpoint { at: Gva(insn.ip()) });
    }
    let reason = by_mnemonic(insn.mnemonic())
        .or_else(|| entry_code(insn.mnemonic(), assurances))
        .or_else(|| far_transfer(insn))
        .or_else(|| stack_segment(insn))
        .or_else(|| control_register(insn, assurances))
        .or_else(|| insn.cpuid_features().iter().find_map(|feature| by_feature(*feature)))
        .or_else(|| unvetted(insn))
        .or_else(|| operand(insn))
        .or_else(|| branch_prefix(insn, prefixes));
    if let Some(refusal) = reason {
        return Err(refusal(insn.to_string()));
    }
    branch_target(insn)
}

fn by_mnemonic(mnemonic: Mnemonic) -> Option<Reason> {
    Some(match mnemonic {
        // Linux reads the instruction at the address that trapped before it looks BUG and WARN up
        // (is_valid_bugaddr, decode_bug): at the original address it would find the int3.
        Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2 => |insn| Refusal::Trap { insn },
        // The STI shadow that makes `sti; hlt` atomic does not survive an exit in between on
        // every host. The monitor that MWAIT waits on does not either.
        Mnemonic::Hlt | Mnemonic::Mwait | Mnemonic::Mwaitx => |insn| Refusal::Wait { insn },
        // They hand their own address on, or lead into modes that 64-bit kernels do not use.
        Mnemonic::Syscall
        | Mnemonic::Sysenter
        | Mnemonic::Sysexit
        | Mnemonic::Sysexitq
        | Mnemonic::Iret
        | Mnemonic::Iretd => |insn| Refusal::Unvetted { insn },
        Mnemonic::Int | Mnemonic::Int1 | Mnemonic::Into => {
            |insn| Refusal::SoftwareInterrupt { insn }
        }
        // SDM vol. 1, 16.3.8: exceptions and VM exits abort a transaction.
        Mnemonic::Xbegin
        | Mnemonic::Xend
        | Mnemonic::Xabort
        | Mnemonic::Xtest
        | Mnemonic::Xsusldtrk
        | Mnemonic::Xresldtrk => |insn| Refusal::Transaction { insn },
        _ => return None,
    })
}

/// The ways between user and kernel mode. None depends on its own address (SDM vol. 2), but they
/// run where page-table isolation has switched to the user's tables; and IRETQ faults when a frame
/// for user mode is bad, which Linux recognizes by the address (`native_irq_return_iret`).
fn entry_code(mnemonic: Mnemonic, assurances: Assurances) -> Option<Reason> {
    let assured = match mnemonic {
        Mnemonic::Swapgs | Mnemonic::Sysret | Mnemonic::Sysretq => assurances.mapped_everywhere,
        Mnemonic::Iretq => assurances.mapped_everywhere && assurances.faults_show_original,
        _ => true,
    };
    (!assured).then_some(|insn| Refusal::EntryCode { insn })
}

fn far_transfer(insn: &Instruction) -> Option<Reason> {
    let far = insn.is_call_far()
        || insn.is_call_far_indirect()
        || insn.is_jmp_far()
        || insn.is_jmp_far_indirect();
    far.then_some(|insn| Refusal::FarTransfer { insn })
}

/// SDM vol. 2, MOV and POP: the shadow would cover the slot's jump or int3 instead. (POP SS does
/// not exist in 64-bit mode, and LSS has no shadow.)
fn stack_segment(insn: &Instruction) -> Option<Reason> {
    let loads_ss = insn.mnemonic() == Mnemonic::Mov
        && insn.op0_kind() == OpKind::Register
        && insn.op0_register() == Register::SS;
    loads_ss.then_some(|insn| Refusal::InterruptShadow { insn })
}

/// Writes to the control registers that govern paging. In 64-bit mode they can turn off neither
/// paging nor PAE, nor change the number of levels (SDM vol. 3, 2.5 and 4.1.2: #GP), so code goes
/// on where it is as long as the new page table maps it.
fn control_register(insn: &Instruction, assurances: Assurances) -> Option<Reason> {
    let writes = match insn.mnemonic() {
        Mnemonic::Lmsw => true,
        // CR2 and CR8 (a fault's address, the task priority) change no mapping.
        Mnemonic::Mov if insn.op0_kind() == OpKind::Register => {
            let to = insn.op0_register();
            to.is_cr() && !matches!(to, Register::CR2 | Register::CR8)
        }
        _ => false,
    };
    (writes && !assurances.mapped_everywhere).then_some(|insn| Refusal::ControlRegister { insn })
}

fn by_feature(feature: CpuidFeature) -> Option<Reason> {
    Some(match feature {
        CpuidFeature::VMX
        | CpuidFeature::SVM
        | CpuidFeature::SKINIT
        | CpuidFeature::SKINIT_or_SVM
        | CpuidFeature::INVEPT
        | CpuidFeature::INVVPID
        | CpuidFeature::SEV_ES
        | CpuidFeature::SEV_SNP
        | CpuidFeature::RMPQUERY
        | CpuidFeature::SMX
        | CpuidFeature::SGX1
        | CpuidFeature::OSS
        | CpuidFeature::TDX => |insn| Refusal::Virtualization { insn },
        CpuidFeature::RTM | CpuidFeature::HLE_or_RTM | CpuidFeature::TSXLDTRK => {
            |insn| Refusal::Transaction { insn }
        }
        // Shadow stacks, user interrupts, key locker, MPX bounds, other entry code, debug and
        // vendor oddities: none is in a kernel's ordinary code.
        CpuidFeature::CET_SS
        | CpuidFeature::UINTR
        | CpuidFeature::UDBG
        | CpuidFeature::KL
        | CpuidFeature::AESKLE
        | CpuidFeature::WIDE_KL
        | CpuidFeature::MPX
        | CpuidFeature::PCONFIG
        | CpuidFeature::HRESET
        | CpuidFeature::SMM
        | CpuidFeature::FRED
        | CpuidFeature::LWP => |insn| Refusal::Unvetted { insn },
        _ => return None,
    })
}

/// Privileged instructions, but for those that act the same at any address, fall through, and
/// leave mode and mappings of kernel addresses alone.
fn unvetted(insn: &Instruction) -> Option<Reason> {
    let vetted = matches!(
        insn.mnemonic(),
        Mnemonic::Cli
            | Mnemonic::Sti
            | Mnemonic::Swapgs
            | Mnemonic::Sysret
            | Mnemonic::Sysretq
            | Mnemonic::Lmsw
            | Mnemonic::In
            | Mnemonic::Insb
            | Mnemonic::Insw
            | Mnemonic::Insd
            | Mnemonic::Out
            | Mnemonic::Outsb
            | Mnemonic::Outsw
            | Mnemonic::Outsd
            | Mnemonic::Rdmsr
            | Mnemonic::Wrmsr
            | Mnemonic::Wrmsrns
            | Mnemonic::Rdpmc
            // Control and debug registers.
            | Mnemonic::Mov
            | Mnemonic::Clts
            | Mnemonic::Invlpg
            | Mnemonic::Invlpgb
            | Mnemonic::Tlbsync
            | Mnemonic::Invpcid
            | Mnemonic::Wbinvd
            | Mnemonic::Wbnoinvd
            | Mnemonic::Lgdt
            | Mnemonic::Lidt
            | Mnemonic::Lldt
            | Mnemonic::Ltr
            | Mnemonic::Lkgs
            | Mnemonic::Xsetbv
            | Mnemonic::Xsaves
            | Mnemonic::Xsaves64
            | Mnemonic::Xrstors
            | Mnemonic::Xrstors64
            | Mnemonic::Clac
            | Mnemonic::Stac
            | Mnemonic::Monitor
            | Mnemonic::Monitorx
    );
    (insn.is_privileged() && !vetted).then_some(|insn| Refusal::Unvetted { insn })
}

/// Operands that cannot be kept when the instruction moves.
fn operand(insn: &Instruction) -> Option<Reason> {
    let bad = insn.is_ip_rel_memory_operand() && insn.memory_base() == Register::EIP;
    bad.then_some(|insn| Refusal::EipRelative { insn })
}

/// BND and REP prefixes of emulated or rebuilt branches, and 16-bit ones, are not reproduced.
fn branch_prefix(insn: &Instruction, prefixes: Prefixes) -> Option<Reason> {
    let direct = is_near_direct(insn);
    let indirect = insn.is_call_near_indirect() || insn.is_jmp_near_indirect();
    let ret = matches!(insn.mnemonic(), Mnemonic::Ret | Mnemonic::Retf);
    // `repz ret` is an old idiom for AMD branch predictors, and is copied as it is.
    let uncertain = ((direct || indirect || ret) && prefixes.operand_size)
        || ((direct || insn.is_call_near_indirect()) && prefixes.repeat)
        || (indirect && prefixes.address_size);
    uncertain.then_some(|insn| Refusal::Prefix { insn })
}

/// True for near jmp, Jcc, call, LOOPcc and JCXZ with an immediate target.
fn is_near_direct(insn: &Instruction) -> bool {
    insn.is_jmp_short_or_near()
        || insn.is_jcc_short_or_near()
        || insn.is_call_near()
        || insn.is_loop()
        || insn.is_loopcc()
        || insn.is_jcx_short()
}

/// A taken branch to a non-canonical address raises #GP, which no displaced form reproduces.
fn branch_target(insn: &Instruction) -> Result<(), Refusal> {
    let target = insn.near_branch_target();
    // With 5-level paging 57 bits are significant, else 48: the branch's own address shows which
    // is the least that must hold.
    let bits = if is_canonical(insn.ip(), 48) { 48 } else { 57 };
    if is_near_direct(insn) && !is_canonical(target, bits) {
        return Err(Refusal::Target { insn: insn.to_string(), target: Gva(target) });
    }
    Ok(())
}

fn is_canonical(address: u64, bits: u32) -> bool {
    let shift = 64 - bits;
    (address.cast_signed() << shift) >> shift == address.cast_signed()
}
