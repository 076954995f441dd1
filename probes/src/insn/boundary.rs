//! Checks whether an address starts an instruction.
//!
//! x86 instructions have no alignment: only decoding from a known start, a symbol's address, shows
//! where they begin. An int3 written inside an instruction would change it silently.

use exoprobe_guest::Gva;
use iced_x86::{FlowControl, Instruction, Mnemonic};
use thiserror::Error;

use super::decode::Instructions;

/// The reason why an address is not known to start an instruction.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BoundaryError {
    /// The address is inside an instruction.
    #[error(
        "the address is inside the {insn_len}-byte instruction `{insn_text}` at {insn_start}: a \
         breakpoint there would change it; use {insn_start} instead"
    )]
    Inside {
        /// Where that instruction starts.
        insn_start: Gva,
        /// That instruction, in Intel operand order.
        insn_text: String,
        /// Its length in bytes.
        insn_len: u8,
    },
    /// The bytes between the function's start and the address cannot be decoded with certainty.
    #[error(
        "the bytes at {at}, between the function's start and the address, do not decode for sure \
         (data in the text, a breakpoint of the guest's own, or an encoding that CPU vendors read \
         differently); probe the function's start instead"
    )]
    Undecodable {
        /// Address at which decoding became uncertain.
        at: Gva,
    },
    /// The address is not one of the function's bytes.
    #[error("the address is outside its function, which is {start} to {end} (end excluded)")]
    OutsideFunction {
        /// The function's first byte.
        start: Gva,
        /// The byte after its last.
        end: Gva,
    },
}

/// Checks that `target` is the start of an instruction, by decoding from the function's start.
///
/// `function_bytes` are the function's bytes as the guest's code has them: int3s that probes put
/// there must be replaced by the original bytes first. An int3 of the guest's own hides the
/// instruction below it, so it makes what follows undecided; one after an instruction that never
/// falls through is padding (straight-line speculation) and decodes as itself, unless a branch in
/// the function leads to it. (A guest breakpoint over an instruction that only a jump table leads
/// to looks like padding; the guest's own kprobes are the only source of such a one.)
///
/// # Errors
/// [`BoundaryError`]: not a start, not decidable, or not in the function.
pub fn check_boundary(
    function_start: Gva,
    function_bytes: &[u8],
    target: Gva,
) -> Result<(), BoundaryError> {
    let offset = target.0.wrapping_sub(function_start.0);
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    if offset >= function_bytes.len() {
        let end = function_start.wrapping_add(function_bytes.len() as u64);
        return Err(BoundaryError::OutsideFunction { start: function_start, end });
    }
    let insns = decode_up_to(function_start, function_bytes, offset)?;
    match insns.last() {
        Some(last) if target.0 != last.next_ip() => Err(BoundaryError::Inside {
            insn_start: Gva(last.ip()),
            insn_text: last.to_string(),
            insn_len: length(last),
        }),
        _ => Ok(()),
    }
}

fn length(insn: &Instruction) -> u8 {
    // An instruction has at most 15 bytes.
    u8::try_from(insn.len()).unwrap_or(u8::MAX)
}

/// The instructions that start before `offset`; the last one may extend beyond it. The direct
/// branches of the whole function must agree with them.
fn decode_up_to(
    start: Gva,
    bytes: &[u8],
    offset: usize,
) -> Result<Vec<Instruction>, BoundaryError> {
    let mut insns: Vec<Instruction> = Vec::new();
    let mut branches = Vec::new();
    let mut position = 0;
    if offset == 0 {
        return Ok(insns);
    }
    for decoded in Instructions::new(bytes, start) {
        if position < offset {
            let at = start.wrapping_add(position as u64);
            let insn = decoded.map_err(|_| BoundaryError::Undecodable { at })?;
            if insn.mnemonic() == Mnemonic::Int3 && !insns.last().is_some_and(never_falls_through) {
                return Err(BoundaryError::Undecodable { at });
            }
            insns.push(insn);
        }
        // After the decoded part this only collects evidence, so the first uncertain instruction
        // ends it.
        let Ok(insn) = decoded else { break };
        branches.push(insn.near_branch_target());
        position += insn.len();
    }
    check_branches(&insns, branches)?;
    Ok(insns)
}

/// Returns true for instructions after which compilers pad with int3, and for that padding itself.
fn never_falls_through(insn: &Instruction) -> bool {
    matches!(
        insn.flow_control(),
        FlowControl::Return
            | FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Exception
    ) || insn.mnemonic() == Mnemonic::Int3
}

/// Cross-checks the decoded `insns` with the targets of branches (0: none): a branch into the
/// middle of one, or to an int3 taken for padding, shows that decoding went astray.
fn check_branches(insns: &[Instruction], branches: Vec<u64>) -> Result<(), BoundaryError> {
    for to in branches {
        let index = insns.partition_point(|insn| insn.ip() <= to);
        let Some(hit) = index.checked_sub(1).map(|i| &insns[i]) else { continue };
        let inside = to > hit.ip() && to < hit.next_ip();
        if inside || (to == hit.ip() && hit.mnemonic() == Mnemonic::Int3) {
            return Err(BoundaryError::Undecodable { at: Gva(hit.ip()) });
        }
    }
    Ok(())
}
