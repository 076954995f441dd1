//! Loads in the detours' window whose fault is theirs: the guest's handler is not called.
//!
//! A detour reads memory that may not be mapped by a load in one form ([`CODE`]), with CF clear
//! before it. If it faults, the stub before the guest's handler sets CF and continues after the
//! load. Two DS prefixes tell it from displaced instructions: no compiler writes them, and
//! a detour whose displaced instructions contain these bytes is refused.
//!
//! Nothing is done for the fault, so memory that the guest would have paged in is not there. CR2
//! changes, as it does at each fault of the kernel's own.

use iced_x86::code_asm::{CodeAssembler, byte_ptr, dword_ptr, qword_ptr, rax, rsp};
use iced_x86::{Code, Instruction};

use crate::addr::Gva;
use crate::hidden::HiddenMemory;
use crate::stub::{Stub, StubCode, StubError, imm32};

/// The load: `mov rdx, [rax]` with two DS prefixes.
pub const CODE: [u8; 5] = [0x3e, 0x3e, 0x48, 0x8b, 0x10];
/// The first bytes of it, by which a stub knows it.
pub const MARK: [u8; 4] = [0x3e, 0x3e, 0x48, 0x8b];
/// Exceptions that it can raise: #GP of an address that is not canonical, and #PF.
pub(crate) const VECTORS: [u8; 2] = [13, 14];
/// The carry flag, in the lowest byte of the flags.
const CF: i32 = 1;

/// The stub of a vector for its place before `next`: a cell that other faults pass, and one for
/// those in the detours' window.
///
/// # Errors
/// [`StubError`].
pub(crate) fn stubs(
    hidden: &HiddenMemory,
    vector: u8,
    next: Gva,
) -> Result<[StubCode; 2], StubError> {
    let fixup = Stub::LoadFixup(vector);
    let at = fixup.at(hidden)?;
    let detours = hidden.detour_window().ok_or(StubError::NotMapped)?;
    let (base, len) = (imm32(detours.gva)?, i32::try_from(detours.len).expect("2 MiB"));
    let front = Stub::Load(vector).assemble(hidden, next, |a| is_in_window(a, (base, len), at))?;
    Ok([front, fixup.assemble(hidden, next, pass_over)?])
}

/// ```text
///     push rax
///     mov  rax, [rsp + 0x10]         the saved RIP, above an error code
///     sub  rax, detours              wraps for what is below
///     cmp  rax, length
///     pop  rax
///     jb   fixup
/// ```
fn is_in_window(
    a: &mut CodeAssembler,
    (base, len): (i32, i32),
    fixup: Gva,
) -> Result<(), StubError> {
    a.push(rax)?;
    a.mov(rax, qword_ptr(rsp + 0x10))?;
    a.sub(rax, base)?;
    a.cmp(rax, len)?;
    a.pop(rax)?;
    // No rel8 reaches it.
    Ok(a.add_instruction(Instruction::with_branch(Code::Jb_rel32_64, fixup.0)?)?)
}

/// ```text
///     test byte [rsp + 0x10], 3      user mode learns nothing by jumping there
///     jnz  out
///     push rax
///     mov  rax, [rsp + 0x10]
///     cmp  dword [rax], mark
///     pop  rax
///     jne  out
///     add  qword [rsp + 8], 5        after the load
///     or   byte [rsp + 0x18], 1      CF of the saved flags
///     add  rsp, 8                    the error code
///     iretq
/// out:
/// ```
fn pass_over(a: &mut CodeAssembler) -> Result<(), StubError> {
    let mut out = a.create_label();
    let len = i32::try_from(CODE.len()).expect("5");
    a.test(byte_ptr(rsp + 0x10), 3)?;
    a.jnz(out)?;
    a.push(rax)?;
    a.mov(rax, qword_ptr(rsp + 0x10))?;
    a.cmp(dword_ptr(rax), i32::from_le_bytes(MARK))?;
    a.pop(rax)?;
    a.jne(out)?;
    a.add(qword_ptr(rsp + 8), len)?;
    a.or(byte_ptr(rsp + 0x18), CF)?;
    a.add(rsp, 8)?;
    a.iretq()?;
    Ok(a.set_label(&mut out)?)
}
