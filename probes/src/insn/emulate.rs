//! Displaced instructions that the VMM runs itself: those that touch registers only.
//!
//! Semantics: Intel SDM vol. 2 (each instruction's "Operation" and "Flags Affected"); the property
//! tests compare every form with the CPU.

use exoprobe_guest::{Gva, gpr};
use iced_x86::{Code, ConditionCode, Instruction, OpKind, Register};
use kvm_bindings::kvm_regs;

use super::decode::{Prefixes, scan_prefixes};

/// Bits of RFLAGS (Intel SDM vol. 1, 3.4.3).
mod flag {
    pub(super) const CF: u64 = 1 << 0;
    pub(super) const PF: u64 = 1 << 2;
    pub(super) const AF: u64 = 1 << 4;
    pub(super) const ZF: u64 = 1 << 6;
    pub(super) const SF: u64 = 1 << 7;
    pub(super) const IF: u64 = 1 << 9;
    pub(super) const DF: u64 = 1 << 10;
    pub(super) const OF: u64 = 1 << 11;
    pub(super) const RF: u64 = 1 << 16;
    /// Flags that arithmetic instructions write.
    pub(super) const STATUS: u64 = CF | PF | AF | ZF | SF | OF;
}

/// A general-purpose register by its number: 0 is RAX, 4 RSP, 15 R15.
type Gpr = u8;

/// Width of an operand or of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Width {
    /// 32 bits; a result is zero-extended into the register (SDM vol. 1, 3.4.1.1).
    W32,
    /// 64 bits.
    W64,
}

impl Width {
    fn truncate(self, value: u64) -> u64 {
        match self {
            Self::W32 => value & 0xffff_ffff,
            Self::W64 => value,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Nop,
    /// `mov reg, imm` and `lea reg, [rip+disp]`: the value is known beforehand.
    Set {
        dst: Gpr,
        value: u64,
    },
    Move {
        dst: Gpr,
        src: Gpr,
        width: Width,
    },
    Lea {
        dst: Gpr,
        base: Option<Gpr>,
        index: Option<(Gpr, u64)>,
        displacement: u64,
        width: Width,
    },
    /// `xor reg, reg` of one register with itself.
    Zero {
        dst: Gpr,
    },
    AddRsp {
        value: u64,
    },
    SubRsp {
        value: u64,
    },
    /// `clc`, `std`, `sti`...: flags that are cleared, set and inverted.
    Flags {
        clear: u64,
        set: u64,
        toggle: u64,
    },
    Branch {
        condition: Condition,
        target: Gva,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Always,
    /// Jcc.
    Flags(ConditionCode),
    /// `jrcxz`, `jecxz`: the count register is zero.
    CountZero(Width),
    /// `loop`, and with `zf` `loope`/`loopne`: decrement the count, branch while it is not zero
    /// and ZF is as wanted.
    Loop {
        width: Width,
        zf: Option<bool>,
    },
}

/// Effect of an emulated instruction outside the registers.
#[must_use = "pass it to KVM, or an interrupt comes where none could come"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shadow {
    /// Nothing.
    None,
    /// STI enabled interrupts, and they stay off until the next instruction has run (SDM vol. 2,
    /// STI): `KVM_X86_SHADOW_INT_STI` in KVM_SET_VCPU_EVENTS. `sti; hlt` relies on it.
    Sti,
}

/// The emulation of a displaced instruction by the VMM, with no further exit and no memory access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Emulation {
    operation: Operation,
    next: Gva,
}

impl Emulation {
    /// The emulation of `insn` (encoded as `bytes`), or `None` if it must run on the CPU.
    pub(super) fn of(insn: &Instruction, bytes: &[u8]) -> Option<Self> {
        let prefixes = scan_prefixes(bytes);
        let operation = nop(insn, bytes)
            .or_else(|| branch(insn, prefixes))
            .or_else(|| data(insn).filter(|_| !prefixes.repeat))?;
        Some(Self { operation, next: Gva(insn.next_ip()) })
    }

    /// Applies the instruction's effect to `regs`, RIP included.
    ///
    /// RIP becomes the next instruction's address or the branch's target, whatever it was before.
    /// RF is cleared, as by every instruction that completes (SDM vol. 3, 18.3.1.1). What is not in
    /// `kvm_regs` is the caller's: the interrupt shadow afterwards is the one given here (one that
    /// an earlier instruction left ends with this one), and where the guest uses indirect branch
    /// tracking, ENDBR64 ends its wait for ENDBRANCH. CPL must be 0: CLI and STI do not check it.
    pub fn apply(&self, regs: &mut kvm_regs) -> Shadow {
        let mut rip = self.next;
        let mut shadow = Shadow::None;
        match self.operation {
            Operation::Nop => {}
            Operation::Set { dst, value } => *gpr(regs, dst) = value,
            Operation::Move { dst, src, width } => {
                *gpr(regs, dst) = width.truncate(*gpr(regs, src));
            }
            Operation::Lea { dst, base, index, displacement, width } => {
                let base = base.map_or(0, |base| *gpr(regs, base));
                let index = index.map_or(0, |(index, scale)| gpr(regs, index).wrapping_mul(scale));
                let address = base.wrapping_add(index).wrapping_add(displacement);
                *gpr(regs, dst) = width.truncate(address);
            }
            Operation::Zero { dst } => {
                *gpr(regs, dst) = 0;
                // AF is documented as undefined; Intel and AMD CPUs clear it.
                set_status(regs, flag::PF | flag::ZF);
            }
            Operation::AddRsp { value } => add_rsp(regs, value),
            Operation::SubRsp { value } => sub_rsp(regs, value),
            Operation::Flags { clear, set, toggle } => {
                if set & !regs.rflags & flag::IF != 0 {
                    shadow = Shadow::Sti;
                }
                regs.rflags = ((regs.rflags & !clear) | set) ^ toggle;
            }
            Operation::Branch { condition, target } => {
                if condition.holds(regs) {
                    rip = target;
                }
            }
        }
        regs.rip = rip.0;
        regs.rflags &= !flag::RF;
        shadow
    }
}

impl Condition {
    /// Decides the branch. LOOP counts its register down here; no condition changes flags.
    fn holds(self, regs: &mut kvm_regs) -> bool {
        match self {
            Self::Always => true,
            Self::Flags(code) => flags_match(code, regs.rflags),
            Self::CountZero(width) => width.truncate(regs.rcx) == 0,
            Self::Loop { width, zf } => {
                regs.rcx = width.truncate(regs.rcx.wrapping_sub(1));
                let zero_flag = regs.rflags & flag::ZF != 0;
                regs.rcx != 0 && zf.is_none_or(|wanted| wanted == zero_flag)
            }
        }
    }
}

/// Evaluates a Jcc condition (SDM vol. 1, appendix B).
fn flags_match(code: ConditionCode, rflags: u64) -> bool {
    let set = |mask: u64| rflags & mask != 0;
    let less = set(flag::SF) != set(flag::OF);
    match code {
        ConditionCode::None => true,
        ConditionCode::o => set(flag::OF),
        ConditionCode::no => !set(flag::OF),
        ConditionCode::b => set(flag::CF),
        ConditionCode::ae => !set(flag::CF),
        ConditionCode::e => set(flag::ZF),
        ConditionCode::ne => !set(flag::ZF),
        ConditionCode::be => set(flag::CF | flag::ZF),
        ConditionCode::a => !set(flag::CF | flag::ZF),
        ConditionCode::s => set(flag::SF),
        ConditionCode::ns => !set(flag::SF),
        ConditionCode::p => set(flag::PF),
        ConditionCode::np => !set(flag::PF),
        ConditionCode::l => less,
        ConditionCode::ge => !less,
        ConditionCode::le => less || set(flag::ZF),
        ConditionCode::g => !less && !set(flag::ZF),
    }
}

fn set_status(regs: &mut kvm_regs, status: u64) {
    regs.rflags = (regs.rflags & !flag::STATUS) | status;
}

/// SF, ZF and PF of a 64-bit result.
fn result_flags(result: u64) -> u64 {
    let mut flags = 0;
    if result >> 63 != 0 {
        flags |= flag::SF;
    }
    if result == 0 {
        flags |= flag::ZF;
    }
    // PF depends on the low byte only.
    if (result & 0xff).count_ones().is_multiple_of(2) {
        flags |= flag::PF;
    }
    flags
}

fn add_rsp(regs: &mut kvm_regs, value: u64) {
    let old = regs.rsp;
    let (result, carry) = old.overflowing_add(value);
    let overflow = ((old ^ result) & (value ^ result)) >> 63 != 0;
    finish_rsp(regs, value, result, carry, overflow);
}

fn sub_rsp(regs: &mut kvm_regs, value: u64) {
    let old = regs.rsp;
    let (result, borrow) = old.overflowing_sub(value);
    let overflow = ((old ^ value) & (old ^ result)) >> 63 != 0;
    finish_rsp(regs, value, result, borrow, overflow);
}

fn finish_rsp(regs: &mut kvm_regs, value: u64, result: u64, carry: bool, overflow: bool) {
    // AF is the carry or borrow between bits 3 and 4.
    let adjust = (regs.rsp ^ value ^ result) & flag::AF;
    let carry = if carry { flag::CF } else { 0 };
    let overflow = if overflow { flag::OF } else { 0 };
    regs.rsp = result;
    set_status(regs, result_flags(result) | adjust | carry | overflow);
}

/// The number and width of a 32- or 64-bit general-purpose register.
fn gpr_number(register: Register) -> Option<(Gpr, Width)> {
    let width = if register.is_gpr64() {
        Width::W64
    } else if register.is_gpr32() {
        Width::W32
    } else {
        return None;
    };
    Some((u8::try_from(register.number()).ok()?, width))
}

fn nop(insn: &Instruction, bytes: &[u8]) -> Option<Operation> {
    let is_nop = match insn.code() {
        Code::Nopw | Code::Nopd | Code::Nopq => true,
        // The multi-byte NOP computes an address and accesses nothing.
        Code::Nop_rm16 | Code::Nop_rm32 | Code::Nop_rm64 => true,
        // In plain form only: with other prefixes decoders disagree about F3 90.
        Code::Pause => bytes == [0xf3, 0x90],
        Code::Endbr64 => bytes == [0xf3, 0x0f, 0x1e, 0xfa],
        _ => false,
    };
    is_nop.then_some(Operation::Nop)
}

fn branch(insn: &Instruction, prefixes: Prefixes) -> Option<Operation> {
    // The address size selects the count register, RCX or ECX.
    let width = if prefixes.address_size { Width::W32 } else { Width::W64 };
    let condition = if insn.is_jmp_short_or_near() {
        Condition::Always
    } else if insn.is_jcc_short_or_near() {
        Condition::Flags(insn.condition_code())
    } else if insn.is_jcx_short() {
        Condition::CountZero(width)
    } else if insn.is_loop() {
        Condition::Loop { width, zf: None }
    } else if insn.is_loopcc() {
        Condition::Loop { width, zf: Some(insn.condition_code() == ConditionCode::e) }
    } else {
        return None;
    };
    Some(Operation::Branch { condition, target: Gva(insn.near_branch_target()) })
}

fn data(insn: &Instruction) -> Option<Operation> {
    match insn.code() {
        Code::Mov_r64_rm64 | Code::Mov_rm64_r64 | Code::Mov_r32_rm32 | Code::Mov_rm32_r32 => {
            let ((dst, width), src) = register_pair(insn)?;
            Some(Operation::Move { dst, src, width })
        }
        Code::Mov_r64_imm64 | Code::Mov_rm64_imm32 | Code::Mov_r32_imm32 | Code::Mov_rm32_imm32 => {
            let (dst, width) = first_register(insn)?;
            // iced sign-extends as the CPU does (imm32 of a 64-bit move).
            Some(Operation::Set { dst, value: width.truncate(insn.immediate(1)) })
        }
        Code::Xor_r64_rm64 | Code::Xor_rm64_r64 | Code::Xor_r32_rm32 | Code::Xor_rm32_r32 => {
            let ((dst, _), src) = register_pair(insn)?;
            (dst == src).then_some(Operation::Zero { dst })
        }
        Code::Add_rm64_imm8 | Code::Add_rm64_imm32 => {
            rsp_operand(insn)?;
            Some(Operation::AddRsp { value: insn.immediate(1) })
        }
        Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 => {
            rsp_operand(insn)?;
            Some(Operation::SubRsp { value: insn.immediate(1) })
        }
        Code::Lea_r32_m | Code::Lea_r64_m => lea(insn),
        code => flags(code),
    }
}

fn flags(code: Code) -> Option<Operation> {
    let (clear, set, toggle) = match code {
        Code::Clc => (flag::CF, 0, 0),
        Code::Stc => (0, flag::CF, 0),
        Code::Cmc => (0, 0, flag::CF),
        Code::Cld => (flag::DF, 0, 0),
        Code::Std => (0, flag::DF, 0),
        Code::Cli => (flag::IF, 0, 0),
        Code::Sti => (0, flag::IF, 0),
        _ => return None,
    };
    Some(Operation::Flags { clear, set, toggle })
}

fn first_register(insn: &Instruction) -> Option<(Gpr, Width)> {
    (insn.op0_kind() == OpKind::Register).then(|| gpr_number(insn.op0_register())).flatten()
}

fn register_pair(insn: &Instruction) -> Option<((Gpr, Width), Gpr)> {
    if insn.op1_kind() != OpKind::Register {
        return None;
    }
    let (src, _) = gpr_number(insn.op1_register())?;
    Some((first_register(insn)?, src))
}

fn rsp_operand(insn: &Instruction) -> Option<()> {
    (insn.op0_kind() == OpKind::Register && insn.op0_register() == Register::RSP).then_some(())
}

fn lea(insn: &Instruction) -> Option<Operation> {
    let (dst, width) = first_register(insn)?;
    let address_register = |register: Register| match register {
        Register::None => Some(None),
        // 32-bit addresses (EBX, EIP, EIZ...) wrap differently: left to the CPU.
        _ if register.is_gpr64() => gpr_number(register).map(|(number, _)| Some(number)),
        _ => None,
    };
    if insn.is_ip_rel_memory_operand() && insn.memory_base() == Register::RIP {
        let value = width.truncate(insn.ip_rel_memory_address());
        return Some(Operation::Set { dst, value });
    }
    let base = address_register(insn.memory_base())?;
    let index = address_register(insn.memory_index())?;
    // A bare 32-bit displacement has the address size in no register: 8 is the 64-bit form.
    if base.is_none() && index.is_none() && insn.memory_displ_size() != 8 {
        return None;
    }
    let scale = u64::from(insn.memory_index_scale());
    let index = index.map(|index| (index, scale));
    Some(Operation::Lea { dst, base, index, displacement: insn.memory_displacement64(), width })
}
