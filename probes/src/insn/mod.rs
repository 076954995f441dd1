//! The displaced instruction: the one under a kprobe's int3, and the ways in which it runs
//! elsewhere.
//!
//! [`check_boundary`] decides whether an address starts an instruction at all. [`analyze`] decides
//! whether that instruction may run displaced: emulated by the VMM ([`Emulation`]), or from a slot
//! in hidden guest memory ([`Displaced::assemble`]). Other instructions are refused, with
//! the reason in a [`Refusal`].
//!
//! The int3 covers only the first byte and is never lifted; the displaced forms below are therefore
//! complete: the guest executes nothing of the original.
//!
//! [`Assurances`] are the guarantees of the rest of exoprobe for a guest; with none of them more
//! is refused. The caller must check what this module cannot see: an instruction listed in the
//! guest's exception table (its fix-up is found by address), symbols that must not be probed at all
//! (entry code), supervisor shadow stacks (see [`Displaced::pushes_return_address`]), and places
//! that the guest patches at run time (jump labels, static calls, ftrace): an analysis is
//! stale after that.

mod assurances;
mod boundary;
mod decode;
mod emulate;
mod refusal;
mod slot;
#[cfg(test)]
pub(crate) mod tests;
mod vet;

pub use assurances::Assurances;
pub use boundary::{BoundaryError, check_boundary};
pub use emulate::{Emulation, Shadow};
pub use refusal::Refusal;
pub(crate) use slot::jump_to;
pub use slot::{AssembleError, SLOT_ADDRESS_OFFSET, SLOT_SIZE, SlotCode, SlotKind};

use exoprobe_guest::Gva;
use iced_x86::{FlowControl, Instruction, Mnemonic};
use thiserror::Error;

pub(crate) use decode::MAX_INSN_LEN;
use decode::{DecodeError, Decoded, decode, scan_prefixes};

/// The next address after an instruction, and with it the shape of its slot code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    /// To the next instruction.
    Straight,
    /// Direct jmp, Jcc, LOOPcc, JCXZ: always emulated.
    Branch,
    CallDirect {
        target: Gva,
        return_address: i32,
    },
    CallIndirect {
        return_address: i32,
    },
    JumpIndirect,
    /// ret, far ret, iretq, sysret.
    Return,
}

/// A post-handler cannot run after this instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "no post-handler can run after a {what}: only the guest's CPU finds out where it goes, and is \
     there at once; use a pre-handler, or probe where it goes"
)]
pub struct PostUnsupported {
    /// The instruction's class.
    what: &'static str,
}

/// An instruction that may run displaced.
#[derive(Debug, Clone)]
pub struct Displaced {
    decoded: Decoded,
    bytes: [u8; MAX_INSN_LEN],
    len: u8,
    kind: Flow,
    emulation: Option<Emulation>,
}

/// Decides how the instruction at `at` may run displaced.
///
/// `bytes` start at `at` with the guest's own bytes (no int3 of a probe in them), and reach 15
/// bytes far or to the end of the function, whichever comes first.
///
/// # Errors
/// [`Refusal`]: the instruction cannot run displaced with these `assurances`, with the reason.
pub fn analyze(bytes: &[u8], at: Gva, assurances: Assurances) -> Result<Displaced, Refusal> {
    let decoded = decode(bytes, at).map_err(|error| match error {
        DecodeError::Truncated => Refusal::Truncated { at },
        DecodeError::Invalid => Refusal::Undecodable { at },
        DecodeError::VendorDependent => Refusal::VendorDependent { at },
    })?;
    let insn = &decoded.insn;
    let original = &bytes[..insn.len()];
    vet::vet(insn, scan_prefixes(original), assurances)?;
    let kind = classify(insn)?;
    let emulation = Emulation::of(insn, original);
    if kind == Flow::Branch && emulation.is_none() {
        return Err(Refusal::Unvetted { insn: insn.to_string() });
    }
    let mut copy = [0; MAX_INSN_LEN];
    copy[..original.len()].copy_from_slice(original);
    // An instruction has at most 15 bytes, so this never saturates.
    let len = u8::try_from(original.len()).unwrap_or(u8::MAX);
    Ok(Displaced { decoded, bytes: copy, len, kind, emulation })
}

fn classify(insn: &Instruction) -> Result<Flow, Refusal> {
    match insn.flow_control() {
        FlowControl::Next => Ok(Flow::Straight),
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => Ok(Flow::Branch),
        FlowControl::Call if insn.is_call_near() => Ok(Flow::CallDirect {
            target: Gva(insn.near_branch_target()),
            return_address: return_address(insn)?,
        }),
        FlowControl::IndirectCall if insn.is_call_near_indirect() => {
            Ok(Flow::CallIndirect { return_address: return_address(insn)? })
        }
        FlowControl::IndirectBranch if insn.is_jmp_near_indirect() => Ok(Flow::JumpIndirect),
        FlowControl::Return if is_return(insn.mnemonic()) => Ok(Flow::Return),
        _ => Err(Refusal::Unvetted { insn: insn.to_string() }),
    }
}

fn is_return(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Ret | Mnemonic::Retf | Mnemonic::Iretq | Mnemonic::Sysret | Mnemonic::Sysretq
    )
}

/// The return address as the immediate of a sign-extending `push imm32`.
fn return_address(insn: &Instruction) -> Result<i32, Refusal> {
    let next = insn.next_ip();
    i32::try_from(next.cast_signed())
        .map_err(|_| Refusal::ReturnAddress { insn: insn.to_string(), next: Gva(next) })
}

impl Displaced {
    /// The instruction's own address.
    #[must_use]
    pub fn at(&self) -> Gva {
        Gva(self.decoded.insn.ip())
    }

    /// Its length in bytes, 1 to 15.
    #[expect(clippy::len_without_is_empty, reason = "an instruction is never empty")]
    #[must_use]
    pub fn len(&self) -> u8 {
        self.len
    }

    /// Its bytes as the guest has them.
    #[must_use]
    pub fn original(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The address after it, where a fall-through continues and a call returns to.
    #[must_use]
    pub fn next(&self) -> Gva {
        Gva(self.decoded.insn.next_ip())
    }

    /// Disassembly, Intel syntax.
    #[must_use]
    pub fn text(&self) -> String {
        self.decoded.insn.to_string()
    }

    /// The emulation of the instruction by the VMM, if it has one: the cheapest way, and one after
    /// which a post-handler can run at once.
    #[must_use]
    pub fn emulation(&self) -> Option<&Emulation> {
        self.emulation.as_ref()
    }

    /// Returns true for calls. If the guest uses supervisor shadow stacks, a call must not run from
    /// a slot: the slot's push does not change the shadow stack, and the return would fault (#CP).
    #[must_use]
    pub fn pushes_return_address(&self) -> bool {
        matches!(self.kind, Flow::CallDirect { .. } | Flow::CallIndirect { .. })
    }

    /// Returns true if the instruction after it can follow it.
    #[must_use]
    pub fn falls_through(&self) -> bool {
        match self.kind {
            Flow::Straight | Flow::CallDirect { .. } | Flow::CallIndirect { .. } => true,
            Flow::Branch => self.decoded.insn.flow_control() == FlowControl::ConditionalBranch,
            Flow::JumpIndirect | Flow::Return => false,
        }
    }

    /// The address at which the guest continues after the int3 of its stepped slot: the next
    /// instruction, or the target of a call, whose return address the slot has pushed.
    #[must_use]
    pub fn after_step(&self) -> Gva {
        match self.kind {
            Flow::CallDirect { target, .. } => target,
            _ => self.next(),
        }
    }

    /// Returns true if the guest can continue at `at` after the instruction. Not for indirect
    /// branches.
    pub(crate) fn leads_to(&self, at: Gva) -> bool {
        match self.kind {
            Flow::CallDirect { target, .. } => at == target,
            Flow::Branch => {
                at.0 == self.decoded.insn.near_branch_target()
                    || (at == self.next() && self.falls_through())
            }
            _ => at == self.next(),
        }
    }

    /// Checks that a post-handler can run after it: it is emulated, or can be stepped in a slot.
    ///
    /// # Errors
    /// [`PostUnsupported`] for indirect calls and jumps, and for returns.
    pub fn supports_post(&self) -> Result<(), PostUnsupported> {
        let what = match self.kind {
            Flow::Straight | Flow::Branch | Flow::CallDirect { .. } => return Ok(()),
            Flow::CallIndirect { .. } => "indirect call",
            Flow::JumpIndirect => "indirect jmp",
            Flow::Return => "return",
        };
        Err(PostUnsupported { what })
    }
}
