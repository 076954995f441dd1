//! The instructions that a jmp replaces, and whether it may.
//!
//! The rules are those of the kernel's own optimizer (kprobes.rst, "Safety Check"), with what its
//! tables know besides: static keys and fix-ups are jumps, too.

use exoprobe_guest::Gva;
use iced_x86::{FlowControl, Instruction, Mnemonic};

use crate::insn::{self, Assurances, Displaced, Refusal};

/// Bytes of `jmp rel32`.
pub const JMP_LEN: usize = 5;

/// The reason why an instruction must not be replaced by a jmp: the rule that refused it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// The function, or its straight code, ends within the jmp.
    #[error("the function ends at {end}: no room for a jmp of 5 bytes")]
    TooShort {
        /// The first address after it.
        end: Gva,
    },
    /// The bytes after the function's end are not padding.
    #[error("the bytes after `{insn}` may be executed, and a jmp would cover them")]
    AfterEnd {
        /// The instruction that ends it.
        insn: String,
    },
    /// A branch leads into what the jmp covers.
    #[error(
        "control comes to {to}, within the jmp, from elsewhere (a branch, a static key or a fix-up)"
    )]
    JumpInto {
        /// The target.
        to: Gva,
    },
    /// The target of an indirect jmp is not known.
    #[error("{function} has an indirect jump at {at}, whose target is not known")]
    IndirectJump {
        /// The function, or a part of it.
        function: String,
        /// The jmp's address.
        at: Gva,
    },
    /// An instruction cannot run elsewhere.
    #[error(transparent)]
    Instruction(#[from] Refusal),
    /// A call's return address would be the detour's.
    #[error("`{insn}` is a call, which would return into the detour")]
    Call {
        /// The instruction.
        insn: String,
    },
    /// The kernel looks its fault up by its address.
    #[error(
        "the instruction at {at} is in the exception table: its fault is looked up by its address"
    )]
    ExceptionTable {
        /// Its address.
        at: Gva,
    },
    /// A return probe of its caller may need a breakpoint there.
    #[error("a call returns to {at}, where a return probe may have to watch for it")]
    AfterCall {
        /// The probed address.
        at: Gva,
    },
    /// Entry code, and text that is freed.
    #[error("{at} is in entry code, or in text that does not stay")]
    Reserved {
        /// The probed address.
        at: Gva,
    },
    /// The kernel rewrites the instruction while it runs.
    #[error("the kernel rewrites the instruction at {at} while it runs")]
    Rewritten {
        /// Its address.
        at: Gva,
    },
}

impl Obstacle {
    /// Name of the rule.
    #[must_use]
    pub fn rule(&self) -> &'static str {
        match self {
            Self::TooShort { .. } => "too-short",
            Self::AfterEnd { .. } => "behind-end",
            Self::JumpInto { .. } => "jump-into",
            Self::IndirectJump { .. } => "indirect-jump",
            Self::Instruction(_) => "instruction",
            Self::Call { .. } => "call",
            Self::ExceptionTable { .. } => "exception-table",
            Self::AfterCall { .. } => "behind-call",
            Self::Reserved { .. } => "reserved",
            Self::Rewritten { .. } => "rewritten",
        }
    }
}

/// Facts about a kernel's text besides its bytes.
pub trait TextFacts {
    /// Assurances for displaced instructions.
    fn assurances(&self) -> Assurances;
    /// Returns true if control can reach `at` from elsewhere than the instruction before it.
    fn is_target(&self, at: Gva) -> bool;
    /// Returns true if a call returns to `at`.
    fn follows_call(&self, at: Gva) -> bool;
    /// Returns true if nothing at `at` may be optimized: entry code, and text that is freed.
    fn is_reserved(&self, at: Gva) -> bool;
    /// The indirect jmp of the function at `at`, or of a part of it that lies elsewhere.
    fn indirect_jump(&self, at: Gva) -> Option<(String, Gva)>;
    /// Returns true if the exception table lists the instruction at `at`.
    fn may_fault(&self, at: Gva) -> bool;
    /// Returns true if the kernel rewrites one of `len` bytes at `at` while it runs.
    fn is_rewritten(&self, at: Gva, len: usize) -> bool;
}

/// The instructions that a jmp replaces: all that its five bytes touch, whole.
#[derive(Clone, Debug)]
pub struct Region {
    insns: Vec<Displaced>,
    /// The bytes that the jmp covers.
    covered: [u8; JMP_LEN],
    /// The last instruction continues after itself.
    falls_through: bool,
}

impl Region {
    /// The region at `at`; `bytes` are the guest's own from there to the function's end.
    ///
    /// # Errors
    /// The first [`Obstacle`].
    pub fn check(bytes: &[u8], at: Gva, facts: &impl TextFacts) -> Result<Self, Obstacle> {
        let end = at.wrapping_add(bytes.len() as u64);
        let covered = *bytes.first_chunk().ok_or(Obstacle::TooShort { end })?;
        if facts.is_reserved(at) {
            return Err(Obstacle::Reserved { at });
        }
        if facts.follows_call(at) {
            return Err(Obstacle::AfterCall { at });
        }
        if let Some((function, at)) = facts.indirect_jump(at) {
            return Err(Obstacle::IndirectJump { function, at });
        }
        if facts.is_rewritten(at, JMP_LEN) {
            return Err(Obstacle::Rewritten { at });
        }
        let mut inside = (1..JMP_LEN as u64).map(|offset| at.wrapping_add(offset));
        if let Some(to) = inside.find(|at| facts.is_target(*at)) {
            return Err(Obstacle::JumpInto { to });
        }
        let (mut insns, mut len, mut falls_through) = (Vec::new(), 0, true);
        while len < JMP_LEN && falls_through {
            let insn = displaced(&bytes[len..], at.wrapping_add(len as u64), facts)?;
            len += usize::from(insn.len());
            falls_through = insn.falls_through();
            insns.push(insn);
        }
        if let Some(last) = insns.last().filter(|_| len < JMP_LEN)
            && !is_padding(&bytes[len..], last.next(), JMP_LEN - len)
        {
            return Err(Obstacle::AfterEnd { insn: last.text() });
        }
        Ok(Self { insns, covered, falls_through })
    }

    /// Its address.
    #[must_use]
    pub fn at(&self) -> Gva {
        self.insns[0].at()
    }

    /// Original bytes that the jmp covers.
    #[must_use]
    pub fn covered(&self) -> &[u8; JMP_LEN] {
        &self.covered
    }

    /// All bytes of the instructions, as in the guest.
    pub fn bytes(&self) -> impl Iterator<Item = u8> {
        self.insns.iter().flat_map(|insn| insn.original().iter().copied())
    }

    /// The instructions, which the detour runs.
    #[must_use]
    pub fn insns(&self) -> &[Displaced] {
        &self.insns
    }

    /// The address to which the detour returns; `None` if the instructions themselves jump away.
    #[must_use]
    pub fn next(&self) -> Option<Gva> {
        self.insns.last().filter(|_| self.falls_through).map(Displaced::next)
    }

    /// The address after the last instruction, and after the jmp.
    #[must_use]
    pub fn end(&self) -> Gva {
        let jmp = self.at().wrapping_add(JMP_LEN as u64);
        self.insns.last().map_or(jmp, Displaced::next).max(jmp)
    }

    /// Addresses of the instructions that the jmp covers, except for the first: no task may be
    /// there.
    pub fn inner(&self) -> impl Iterator<Item = Gva> {
        self.insns.iter().skip(1).map(Displaced::at)
    }
}

fn displaced(bytes: &[u8], at: Gva, facts: &impl TextFacts) -> Result<Displaced, Obstacle> {
    let insn = insn::analyze(bytes, at, facts.assurances())?;
    if insn.pushes_return_address() {
        return Err(Obstacle::Call { insn: insn.text() });
    }
    if facts.may_fault(at) {
        return Err(Obstacle::ExceptionTable { at });
    }
    if facts.is_rewritten(at, usize::from(insn.len())) {
        return Err(Obstacle::Rewritten { at });
    }
    Ok(insn)
}

/// Returns true if the `len` bytes after a function's end are only compilers' padding.
fn is_padding(bytes: &[u8], at: Gva, len: usize) -> bool {
    let decoder = iced_x86::Decoder::with_ip(64, bytes, at.0, iced_x86::DecoderOptions::NONE);
    let end = at.wrapping_add(len as u64);
    let fills = |insn: Instruction| matches!(insn.mnemonic(), Mnemonic::Int3 | Mnemonic::Nop);
    decoder.into_iter().take_while(|insn| insn.ip() < end.0).all(fills)
}

/// Returns true if an instruction jumps to an address that is not in its bytes; `is_thunk`
/// recognizes the compilers' thunks.
pub(super) fn jumps_indirectly(insn: &Instruction, is_thunk: impl Fn(Gva) -> bool) -> bool {
    match insn.flow_control() {
        FlowControl::IndirectBranch => true,
        FlowControl::UnconditionalBranch => is_thunk(Gva(insn.near_branch_target())),
        _ => false,
    }
}
