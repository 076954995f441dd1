//! Code for a slot: hidden guest memory from which a displaced instruction runs.
//!
//! | instruction | boosted | stepped |
//! |---|---|---|
//! | falls through | copy; `jmp rel32` to the next one | copy; int3; `jmp rel32` |
//! | `call rel32` | `push imm32` (return address); `jmp rel32` | `push imm32`; int3; `jmp rel32` |
//! | `call r/m` | `push r/m`; `push [rsp]`; `mov [rsp+8], imm32`; `ret` | |
//! | `jmp r/m`, returns | copy | |
//!
//! None of these changes a flag or register the instruction itself does not. An indirect call reads
//! its operand first: it may depend on RSP, and when it faults nothing has happened yet. It leaves
//! the target's address below the new stack pointer, where nothing of a kernel's lives (interrupts
//! write there at any time).
//!
//! A slot's last 8 bytes hold the instruction's own address, so that the handler of an exception in
//! the slot finds the original address.

use exoprobe_guest::Gva;
use exoprobe_guest::hidden;
use iced_x86::{BlockEncoder, BlockEncoderOptions, Code, Instruction, InstructionBlock};
use thiserror::Error;

use super::decode::{Decoded, MAX_INSN_LEN, decode, scan_prefixes};
use super::{Displaced, Flow, PostUnsupported};

/// Bytes of one slot. Aligned slots never cross a cache line.
pub const SLOT_SIZE: usize = 32;
/// Offset in a slot of the instruction's own address, 8 bytes, little endian; the code precedes it.
pub const SLOT_ADDRESS_OFFSET: usize = SLOT_SIZE - size_of::<u64>();
// The machine reads the address there after a fault of the code.
const _: () = assert!(
    SLOT_SIZE as u64 == hidden::SLOT_SIZE
        && SLOT_ADDRESS_OFFSET as u64 == hidden::SLOT_ADDRESS_OFFSET
);

const PUSH_IMM32: u8 = 0x68;
const JMP_REL32: u8 = 0xe9;
const INT3: u8 = 0xcc;
/// Opcode of indirect near call (`/2`) and push (`/6`), SDM vol. 2, CALL and PUSH.
const GROUP_5: u8 = 0xff;
/// `push [rsp]`: the address is computed before RSP changes (SDM vol. 2, PUSH).
const PUSH_TOP: [u8; 3] = [0xff, 0x34, 0x24];
/// `mov qword [rsp+8], imm32`, but for the immediate, which the CPU sign-extends.
const MOV_BELOW_TOP: [u8; 5] = [0x48, 0xc7, 0x44, 0x24, 0x08];
const RET: u8 = 0xc3;
/// Length of `push imm32` and of `jmp rel32`.
const NEAR_LEN: usize = 5;

// The longest that must always fit: the longest instruction, an int3 and a jmp.
const _: () = assert!(MAX_INSN_LEN + 1 + NEAR_LEN <= SLOT_ADDRESS_OFFSET);

/// The way in which the code of a slot ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotKind {
    /// It continues in the guest's code by itself: no second exit.
    Boosted,
    /// It stops at an int3 after the copy, for a post-handler. A jmp after that continues, for a
    /// guest that skips the int3 without the engine.
    Stepped,
}

/// Code for one slot. It runs only at the address for which it was assembled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotCode {
    /// At most [`SLOT_ADDRESS_OFFSET`] bytes.
    pub bytes: Vec<u8>,
    /// Stepped only: offset of the int3 in `bytes`. Its breakpoint exit has RIP at slot + this. The
    /// guest then continues at [`Displaced::after_step`], which is also the target of the jmp after
    /// it.
    pub stop_offset: Option<u8>,
}

impl SlotCode {
    /// The whole slot for the instruction whose own address is `at`: the code, int3s and the
    /// address.
    ///
    /// The int3s never run, but CPUs speculate past an indirect jmp or a ret.
    #[must_use]
    pub fn image(&self, at: Gva) -> [u8; SLOT_SIZE] {
        let mut image = [INT3; SLOT_SIZE];
        let (code, address) = image.split_at_mut(SLOT_ADDRESS_OFFSET);
        for (to, from) in code.iter_mut().zip(&self.bytes) {
            *to = *from;
        }
        address.copy_from_slice(&at.0.to_le_bytes());
        image
    }
}

/// The reason why there is no slot code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AssembleError {
    /// The instruction's operand, or its successor, is too far from the slot.
    #[error("{to} is out of reach of a 32-bit displacement from the slot at {slot}")]
    OutOfReach {
        /// The slot.
        slot: Gva,
        /// The address to reach.
        to: Gva,
    },
    /// A direct branch: [`Displaced::emulation`] runs it.
    #[error("a direct branch needs no slot: the VMM emulates it")]
    EmulatedOnly,
    /// The instruction cannot be stepped.
    #[error(transparent)]
    PostUnsupported(#[from] PostUnsupported),
    /// An indirect call of more than 11 bytes: without useless prefixes every one fits in 9.
    #[error("the instruction, rewritten for its slot, does not fit into it")]
    TooLong,
    /// The code, decoded again, differs from the expected instruction. It must not run.
    #[error("the code assembled for the slot does not decode to the displaced instruction")]
    Mismatch,
}

impl Displaced {
    /// Assembles the code that runs this instruction from the slot at `slot`.
    ///
    /// The same arguments give the same bytes.
    ///
    /// # Errors
    /// [`AssembleError`]: `slot` is too far from the addresses that the code uses, or the
    /// instruction has no code of this kind.
    pub fn assemble(&self, kind: SlotKind, slot: Gva) -> Result<SlotCode, AssembleError> {
        if kind == SlotKind::Stepped {
            self.supports_post()?;
        }
        let mut code = Assembly { slot, bytes: Vec::with_capacity(SLOT_ADDRESS_OFFSET) };
        let mut stop_offset = None;
        match (self.kind, kind) {
            (Flow::Branch, _) => return Err(AssembleError::EmulatedOnly),
            (Flow::Straight, SlotKind::Stepped) => {
                code.copy(self.original(), &self.decoded)?;
                stop_offset = code.int3();
                code.jmp(self.next())?;
            }
            (Flow::Straight, SlotKind::Boosted) => {
                code.copy(self.original(), &self.decoded)?;
                code.jmp(self.next())?;
            }
            (Flow::JumpIndirect | Flow::Return, _) => code.copy(self.original(), &self.decoded)?,
            (Flow::CallDirect { target, return_address }, _) => {
                code.push(return_address);
                if kind == SlotKind::Stepped {
                    stop_offset = code.int3();
                }
                code.jmp(target)?;
            }
            (Flow::CallIndirect { return_address }, _) => {
                code.call_indirect(self.original(), &self.decoded, return_address)?;
            }
        }
        if code.bytes.len() > SLOT_ADDRESS_OFFSET {
            return Err(AssembleError::TooLong);
        }
        Ok(SlotCode { bytes: code.bytes, stop_offset })
    }
}

/// Appends a jmp to `to`; `bytes` are code for `start`.
///
/// # Errors
/// [`AssembleError::OutOfReach`].
pub(crate) fn jump_to(start: Gva, bytes: &mut Vec<u8>, to: Gva) -> Result<(), AssembleError> {
    let mut code = Assembly { slot: start, bytes: std::mem::take(bytes) };
    let jumped = code.jmp(to);
    *bytes = code.bytes;
    jumped
}

impl Displaced {
    /// Appends the instruction to `bytes`, which are code for `start`, so that the code after it
    /// runs next. Not for calls, whose return address would be in that code.
    ///
    /// # Errors
    /// [`AssembleError`], as [`Self::assemble`].
    pub(crate) fn copy_to(&self, start: Gva, bytes: &mut Vec<u8>) -> Result<(), AssembleError> {
        let mut code = Assembly { slot: start, bytes: std::mem::take(bytes) };
        let copied = match self.kind {
            Flow::Branch => code.branch(&self.decoded.insn),
            Flow::Straight | Flow::JumpIndirect | Flow::Return => {
                code.copy(self.original(), &self.decoded)
            }
            Flow::CallDirect { .. } | Flow::CallIndirect { .. } => Err(AssembleError::Mismatch),
        };
        *bytes = code.bytes;
        copied
    }
}

struct Assembly {
    slot: Gva,
    bytes: Vec<u8>,
}

impl Assembly {
    /// Address of the next byte.
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
        let displacement = self.rel32(self.here().wrapping_add(NEAR_LEN as u64), to)?;
        self.bytes.push(JMP_REL32);
        self.bytes.extend(displacement);
        Ok(())
    }

    /// Appends a direct branch, as long as its target needs.
    fn branch(&mut self, insn: &Instruction) -> Result<(), AssembleError> {
        let block = InstructionBlock::new(std::slice::from_ref(insn), self.here().0);
        let to = Gva(insn.near_branch_target());
        let out_of_reach = AssembleError::OutOfReach { slot: self.slot, to };
        let encoded = BlockEncoder::encode(64, block, BlockEncoderOptions::NONE);
        self.bytes.extend(encoded.map_err(|_| out_of_reach)?.code_buffer);
        Ok(())
    }

    /// Appends an int3; returns its offset.
    fn int3(&mut self) -> Option<u8> {
        let offset = u8::try_from(self.bytes.len()).ok();
        self.bytes.push(INT3);
        offset
    }

    /// `push imm32`: the CPU pushes 64 bits, sign-extended (SDM vol. 2, PUSH).
    fn push(&mut self, value: i32) {
        self.bytes.push(PUSH_IMM32);
        self.bytes.extend(value.to_le_bytes());
    }

    /// Copies an instruction byte by byte, all prefixes included, and adjusts a RIP-relative
    /// operand.
    fn copy(&mut self, original: &[u8], decoded: &Decoded) -> Result<(), AssembleError> {
        let copy = self.relocated(original, decoded)?;
        self.append(&copy, &decoded.insn)
    }

    /// `call r/m` with the return address of the original.
    fn call_indirect(
        &mut self,
        original: &[u8],
        decoded: &Decoded,
        return_address: i32,
    ) -> Result<(), AssembleError> {
        let mut push = self.relocated(original, decoded)?;
        push_in_place_of_call(&mut push)?;
        let mut expected = decoded.insn;
        expected.set_code(Code::Push_rm64);
        self.append(&push, &expected)?;
        self.bytes.extend(PUSH_TOP);
        self.bytes.extend(MOV_BELOW_TOP);
        self.bytes.extend(return_address.to_le_bytes());
        self.bytes.push(RET);
        Ok(())
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

    /// Appends `code` if it decodes to `expected` at its new address. RIP-relative operands compare
    /// by the address that they refer to.
    fn append(&mut self, code: &[u8], expected: &Instruction) -> Result<(), AssembleError> {
        let decoded = decode(code, self.here()).map_err(|_| AssembleError::Mismatch)?;
        if decoded.insn != *expected || decoded.insn.len() != code.len() {
            return Err(AssembleError::Mismatch);
        }
        self.bytes.extend(code);
        Ok(())
    }
}

/// Changes FF /2 to FF /6 in place: prefixes and operand stay.
fn push_in_place_of_call(code: &mut [u8]) -> Result<(), AssembleError> {
    let opcode = scan_prefixes(code).len;
    match code.get_mut(opcode..opcode + 2) {
        Some([GROUP_5, modrm]) => *modrm = (*modrm & 0b11_000_111) | (6 << 3),
        _ => return Err(AssembleError::Mismatch),
    }
    Ok(())
}
