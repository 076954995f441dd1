//! Code for a slot: hidden guest memory from which a displaced instruction runs.
//!
//! | instruction | boosted | stepped |
//! |---|---|---|
//! | falls through | copy; `jmp rel32` to the next one | copy; int3 |
//! | `call rel32` | `push imm32` (return address); `jmp rel32` | |
//! | `call r/m` | `push imm32`; `jmp r/m` | |
//! | `jmp r/m`, `ret` | copy | |
//!
//! None of these changes a flag or register the instruction itself does not.

use exoprobe_vmm::addr::Gva;
use iced_x86::{Code, Instruction, Register};
use thiserror::Error;

use super::decode::{Decoded, MAX_INSN_LEN, decode, scan_prefixes};
use super::{Displaced, Kind, PostUnsupported};

/// Bytes that one slot needs at most, in either kind: 15, 1 and 5 (the longest instruction, int3 and
/// a jmp), rounded up so that aligned slots never cross a cache line.
pub const SLOT_SIZE: usize = 32;

const PUSH_IMM32: u8 = 0x68;
const JMP_REL32: u8 = 0xe9;
const INT3: u8 = 0xcc;
/// Opcode of indirect near call (`/2`) and jmp (`/4`), SDM vol. 2, CALL and JMP.
const GROUP_5: u8 = 0xff;
/// Length of `push imm32` and of `jmp rel32`.
const NEAR_LEN: u64 = 5;

/// How the code in a slot ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotKind {
    /// It continues in the guest's code by itself: no second exit.
    Boosted,
    /// It stops at an int3 behind the copy, for a post-handler; a jmp behind that continues, for
    /// whoever passes over the int3 without knowing the probe.
    Stepped,
}

/// Code for one slot. It runs only at the address for which it was assembled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotCode {
    /// At most [`SLOT_SIZE`] bytes. Fill the rest of the slot with int3 (0xcc): nothing runs there,
    /// but CPUs speculate past an indirect jmp or a ret.
    pub bytes: Vec<u8>,
    /// Stepped only: offset of the int3 in `bytes`. Its breakpoint exit has RIP at slot + this; the
    /// guest then continues at [`Displaced::next`], to where the jmp behind the int3 leads as well.
    pub stop_offset: Option<u8>,
}

/// Why there is no slot code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AssembleError {
    /// What the instruction addresses, or its successor, is too far from the slot.
    #[error("{to} is out of reach of a 32-bit displacement from the slot at {slot}")]
    OutOfReach {
        /// The slot.
        slot: Gva,
        /// What must be reached.
        to: Gva,
    },
    /// A direct branch: [`Displaced::emulation`] runs it.
    #[error("a direct branch needs no slot: the VMM emulates it")]
    EmulatedOnly,
    /// The instruction cannot be stepped.
    #[error(transparent)]
    PostUnsupported(#[from] PostUnsupported),
    /// The rewritten instruction is longer than the CPU allows.
    #[error("rewritten for its slot the instruction would be longer than 15 bytes")]
    TooLong,
    /// The code was decoded again and is not what it should be; nothing must run it.
    #[error("the code assembled for the slot does not decode to the displaced instruction")]
    Mismatch,
}

impl Displaced {
    /// Assembles the code that runs this instruction from the slot at `slot`.
    ///
    /// The same arguments give the same bytes.
    ///
    /// # Errors
    /// [`AssembleError`]: `slot` is too far from what the code addresses, or the instruction has no
    /// code of this kind.
    pub fn assemble(&self, kind: SlotKind, slot: Gva) -> Result<SlotCode, AssembleError> {
        if kind == SlotKind::Stepped {
            self.supports_post()?;
        }
        let mut code = Assembly { slot, bytes: Vec::with_capacity(SLOT_SIZE) };
        let mut stop_offset = None;
        match (self.kind, kind) {
            (Kind::Branch, _) => return Err(AssembleError::EmulatedOnly),
            (Kind::Straight, SlotKind::Stepped) => {
                code.copy(self.original(), &self.decoded)?;
                stop_offset = Some(self.len);
                code.bytes.push(INT3);
                code.jmp(self.next())?;
            }
            (Kind::Straight, SlotKind::Boosted) => {
                code.copy(self.original(), &self.decoded)?;
                code.jmp(self.next())?;
            }
            (Kind::JumpIndirect | Kind::Return, _) => code.copy(self.original(), &self.decoded)?,
            (Kind::CallDirect { target, return_address }, _) => {
                code.push(return_address);
                code.jmp(target)?;
            }
            (Kind::CallIndirect { return_address }, _) => {
                code.push(return_address);
                code.call_as_jmp(self.original(), &self.decoded)?;
            }
        }
        Ok(SlotCode { bytes: code.bytes, stop_offset })
    }
}

struct Assembly {
    slot: Gva,
    bytes: Vec<u8>,
}

impl Assembly {
    /// Where the next byte goes.
    fn here(&self) -> Gva {
        self.slot.wrapping_add(self.bytes.len() as u64)
    }

    fn rel32(&self, end: Gva, to: Gva) -> Result<[u8; 4], AssembleError> {
        // Addresses wrap at 2^64, as the CPU computes them.
        let distance = to.0.wrapping_sub(end.0).cast_signed();
        match i32::try_from(distance) {
            Ok(distance) => Ok(distance.to_le_bytes()),
            Err(_) => Err(AssembleError::OutOfReach { slot: self.slot, to }),
        }
    }

    fn jmp(&mut self, to: Gva) -> Result<(), AssembleError> {
        let displacement = self.rel32(self.here().wrapping_add(NEAR_LEN), to)?;
        self.bytes.push(JMP_REL32);
        self.bytes.extend(displacement);
        Ok(())
    }

    /// `push imm32`: the CPU pushes 64 bits, sign-extended (SDM vol. 2, PUSH).
    fn push(&mut self, value: i32) {
        self.bytes.push(PUSH_IMM32);
        self.bytes.extend(value.to_le_bytes());
    }

    /// Copies an instruction byte by byte, all prefixes included, and re-aims a RIP-relative
    /// operand.
    fn copy(&mut self, original: &[u8], decoded: &Decoded) -> Result<(), AssembleError> {
        let copy = self.relocated(original, decoded)?;
        self.append(&copy, &decoded.insn)
    }

    /// `call r/m` as `jmp r/m`, for behind the push of the return address.
    fn call_as_jmp(&mut self, original: &[u8], decoded: &Decoded) -> Result<(), AssembleError> {
        let mut expected = decoded.insn;
        expected.set_code(Code::Jmp_rm64);
        let jmp = if decoded.insn.memory_base() == Register::RSP {
            // RSP is 8 lower by now, so its displacement must be 8 higher.
            let displacement = decoded.insn.memory_displacement64().wrapping_add(8);
            expected.set_memory_displacement64(displacement);
            expected.set_memory_displ_size(8);
            jmp_rsp_relative(original, displacement)?
        } else {
            let mut jmp = self.relocated(original, decoded)?;
            jmp_in_place_of_call(&mut jmp)?;
            jmp
        };
        self.append(&jmp, &expected)
    }

    fn relocated(&self, original: &[u8], decoded: &Decoded) -> Result<Vec<u8>, AssembleError> {
        let mut copy = original.to_vec();
        if decoded.insn.is_ip_rel_memory_operand() {
            // RIP-relative displacements always have 32 bits, relative to the instruction's end
            // (SDM vol. 2, 2.2.1.6).
            let end = self.here().wrapping_add(copy.len() as u64);
            let to = Gva(decoded.insn.ip_rel_memory_address());
            let offset = decoded.offsets.displacement_offset();
            let field = copy.get_mut(offset..offset + 4).ok_or(AssembleError::Mismatch)?;
            field.copy_from_slice(&self.rel32(end, to)?);
        }
        Ok(copy)
    }

    /// Appends `code` if, where it now lies, it decodes to `expected`. RIP-relative operands
    /// compare by the address they mean.
    fn append(&mut self, code: &[u8], expected: &Instruction) -> Result<(), AssembleError> {
        if code.len() > MAX_INSN_LEN {
            return Err(AssembleError::TooLong);
        }
        let decoded = decode(code, self.here()).map_err(|_| AssembleError::Mismatch)?;
        if decoded.insn != *expected || decoded.insn.len() != code.len() {
            return Err(AssembleError::Mismatch);
        }
        self.bytes.extend(code);
        Ok(())
    }
}

/// Changes FF /2 to FF /4 in place: prefixes (`notrack`, a segment) and operand stay.
fn jmp_in_place_of_call(code: &mut [u8]) -> Result<(), AssembleError> {
    let opcode = scan_prefixes(code).len;
    match code.get_mut(opcode..opcode + 2) {
        Some([GROUP_5, modrm]) => *modrm = (*modrm & 0b11_000_111) | (4 << 3),
        _ => return Err(AssembleError::Mismatch),
    }
    Ok(())
}

/// `jmp [rsp + displacement]` with the prefixes of `call`, which has RSP as its only register.
fn jmp_rsp_relative(call: &[u8], displacement: u64) -> Result<Vec<u8>, AssembleError> {
    let displacement = i32::try_from(displacement.cast_signed());
    let displacement = displacement.map_err(|_| AssembleError::TooLong)?;
    let prefixes = scan_prefixes(call).len;
    let mut code = call[..prefixes].to_vec();
    // mod 10 (disp32), reg /4, rm 100 (SIB follows); SIB: no index, base RSP (SDM vol. 2, 2.1.5).
    code.extend([GROUP_5, 0b10_100_100, 0b00_100_100]);
    code.extend(displacement.to_le_bytes());
    Ok(code)
}
