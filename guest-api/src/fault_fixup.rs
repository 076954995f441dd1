//! Shows faults of displaced instructions to the guest at the address that it knows.
//!
//! An instruction that runs from a slot of hidden memory may fault: on purpose, if the kernel has
//! an exception-table entry for it, or because memory is not mapped yet. The guest's handler must
//! then see the address of the original. So each fault's gate in the IDT points to a stub in hidden
//! memory. The stub reads the saved RIP (Intel SDM vol. 3, 6.14.2, figure 6-9), and replaces one in
//! the slots by the address that its slot holds ([`SLOT_ADDRESS_OFFSET`]).
//!
//! Faults of guarded loads have stubs of their own before those ([`crate::guarded_load`]).

use iced_x86::code_asm::{CodeAssembler, byte_ptr, qword_ptr, rax, rsp};

use crate::addr::Gva;
use crate::guarded_load;
use crate::hidden::{HiddenError, HiddenMemory, SLOT_ADDRESS_OFFSET, SLOT_SIZE, Window};
use crate::idt::{self, Gate, IdtError};
use crate::memory::{GuestRam, OutsideMemory};
use crate::paging::PagingMode;
use crate::stub::{Stub, StubCode, StubError, Way, imm32};

/// Exceptions that an instruction in a slot can raise itself, and whether they push an error code
/// (Intel SDM vol. 3, table 6-1): #DE, #BR, #UD, #NM, #DF (of an iretq whose stack is not there:
/// espfix64), #NP, #SS, #GP,
/// #PF, #MF, #AC, #XM.
const VECTORS: [(u8, bool); 12] = [
    (0, false),
    (5, false),
    (6, false),
    (7, false),
    (8, true),
    (11, true),
    (12, true),
    (13, true),
    (14, true),
    (16, false),
    (17, true),
    (19, false),
];

/// The reason why the guest's gates were not changed.
#[derive(Debug, thiserror::Error)]
pub enum FixupError {
    /// Hidden memory cannot be reached from all of the guest's tables.
    #[error(transparent)]
    Hidden(#[from] HiddenError),
    /// A gate cannot be used.
    #[error(transparent)]
    Idt(#[from] IdtError),
    /// A stub could not be assembled.
    #[error(transparent)]
    Stub(#[from] StubError),
    /// The guest's table is no longer in its memory.
    #[error("the guest's interrupt descriptor table: {0}")]
    Memory(#[from] OutsideMemory),
}

/// Routes the faults of the table at `idt_base` through stubs in `hidden`, which is mapped; `mode`
/// is that of the kernel's page tables. Gates that are routed already are not changed, so this can
/// be called again: the kernel sets its gates anew while it boots. vCPUs may run meanwhile. Skips
/// gates that are not present.
///
/// Under page-table isolation the stubs are mapped in user mode's tables, too. Those must exist: a
/// guest that makes them later must not run in user mode before this is called again.
///
/// # Errors
/// [`FixupError`]; no gate was changed in that case.
pub fn install(
    ram: &GuestRam,
    hidden: &HiddenMemory,
    mode: PagingMode,
    idt_base: Gva,
    idt_limit: u16,
) -> Result<(), FixupError> {
    let slots = hidden.code_window().ok_or(StubError::NotMapped)?;
    let mut changes: Vec<(Vec<StubCode>, Gate)> = Vec::with_capacity(VECTORS.len());
    for (vector, error_code) in VECTORS {
        let Some(gate) = idt::gate(ram, mode, (idt_base, idt_limit), vector)? else { continue };
        let way = Way::from(hidden, gate.target());
        hidden.map_stubs_for_user(ram, mode, way.end)?;
        let (mut codes, mut next) = (Vec::new(), gate.target());
        if !way.passes(Stub::Fault(vector)) {
            codes.push(slot_stub(hidden, slots, (vector, error_code), next)?);
            next = codes[0].gva;
        }
        if guarded_load::VECTORS.contains(&vector) && !way.passes(Stub::Load(vector)) {
            let [front, fixup] = guarded_load::stubs(hidden, vector, next)?;
            next = front.gva;
            codes.extend([front, fixup]);
        }
        if next != gate.target() {
            changes.push((codes, gate.to(next)?));
        }
    }
    for (codes, gate) in changes {
        codes.iter().for_each(|code| code.write(hidden));
        gate.store(ram)?;
    }
    Ok(())
}

/// The stub for faults of slots, before `next`.
fn slot_stub(
    hidden: &HiddenMemory,
    slots: Window,
    (vector, error_code): (u8, bool),
    next: Gva,
) -> Result<StubCode, StubError> {
    let body = |assembler: &mut CodeAssembler| show_original(assembler, slots, error_code);
    Stub::Fault(vector).assemble(hidden, next, body)
}

/// Five instructions and the jmp for a fault elsewhere:
///
/// ```text
///     push rax
///     mov  rax, [rsp + 8]            the saved RIP; 8 higher above an error code
///     sub  rax, slots                wraps for what is below
///     cmp  rax, length
///     jae  out
///     test byte [rsp + 0x10], 3      user mode learns no address of the kernel by jumping there
///     jnz  out
///     or   rax, 31
///     mov  rax, [slots + rax - 7]    the last 8 bytes of the slot
///     mov  [rsp + 8], rax
/// out:
///     pop  rax
/// ```
///
/// Flags need not be kept: the CPU has saved them.
fn show_original(a: &mut CodeAssembler, slots: Window, error_code: bool) -> Result<(), StubError> {
    const LAST_IN_SLOT: i32 = 31;
    const { assert!(SLOT_SIZE == 32 && SLOT_ADDRESS_OFFSET == SLOT_SIZE - 8) };
    let saved_rip = 8 + 8 * i32::from(error_code);
    let base = imm32(slots.gva)?;
    let len = i32::try_from(slots.len).expect("hidden memory has 2 MiB");
    let mut out = a.create_label();
    a.push(rax)?;
    a.mov(rax, qword_ptr(rsp + saved_rip))?;
    a.sub(rax, base)?;
    a.cmp(rax, len)?;
    a.jae(out)?;
    a.test(byte_ptr(rsp + saved_rip + 8), 3)?;
    a.jnz(out)?;
    a.or(rax, LAST_IN_SLOT)?;
    a.mov(rax, qword_ptr(rax + (base - 7)))?;
    a.mov(qword_ptr(rsp + saved_rip), rax)?;
    a.set_label(&mut out)?;
    Ok(a.pop(rax)?)
}

#[cfg(test)]
mod tests;
