//! The VMM's own code in the guest: stubs before handlers of the guest's exceptions, in the stub
//! page of hidden memory. Only this module divides that page.
//!
//! A stub has a cell of 64 bytes: its code, which ends with a jmp, and in the last 8 bytes the
//! target of the jmp. Several stubs may precede one handler, the last one first; these addresses
//! link them.

use iced_x86::code_asm::CodeAssembler;
use iced_x86::{BlockEncoderOptions, Code, IcedError, Instruction};

use crate::addr::Gva;
use crate::hidden::HiddenMemory;
use crate::paging::PAGE_SIZE;

const CELL_LEN: usize = 64;
const CELL: u64 = CELL_LEN as u64;
const CELLS: u64 = PAGE_SIZE / CELL;
/// Offset in a cell of the address at which its code continues.
const NEXT: usize = CELL_LEN - 8;
/// Number of cells for each part of the stubs of guarded loads.
const LOAD_VECTORS: u64 = 16;
/// Cell of the second part of the first stub of guarded loads.
const LOAD_FIXUPS: u64 = 16;
/// Cell of the first fault's stub: one for each vector of the CPU's own exceptions.
const FAULTS: u64 = 32;
/// Fills the rest of a cell: stops speculation past the jmp.
const FILL: u8 = 0xcc;

/// A stub, by its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stub {
    /// A host's quirk about system calls.
    SystemCall,
    /// Faults of displaced instructions, one a vector (0 to 31).
    Fault(u8),
    /// Faults of guarded loads, one a vector (1 to 15).
    Load(u8),
    /// The second part of [`Self::Load`], which no gate leads to.
    LoadFixup(u8),
}

/// The reason why a stub has no code.
#[derive(Debug, thiserror::Error)]
pub enum StubError {
    /// Hidden memory is not mapped in the guest.
    #[error("hidden memory is not mapped")]
    NotMapped,
    /// An address does not fit into the 32 bits of an instruction.
    #[error("{0} is not in the last 2 GiB of addresses")]
    Far(Gva),
    /// The assembler refused, as it does a branch of more than 2 GiB.
    #[error("cannot assemble a stub: {0}")]
    Assemble(#[from] IcedError),
}

/// An address as a sign-extended 32-bit operand.
pub(crate) fn imm32(address: Gva) -> Result<i32, StubError> {
    i32::try_from(address.0.cast_signed()).map_err(|_| StubError::Far(address))
}

/// A stub's code for its cell, not written yet.
pub(crate) struct StubCode {
    /// Address of its cell.
    pub(crate) gva: Gva,
    offset: u64,
    cell: [u8; CELL_LEN],
}

impl Stub {
    fn offset(self) -> u64 {
        match self {
            Self::SystemCall => 0,
            Self::Load(vector) => u64::from(vector) % LOAD_VECTORS * CELL,
            Self::LoadFixup(vector) => (LOAD_FIXUPS + u64::from(vector) % LOAD_VECTORS) * CELL,
            Self::Fault(vector) => (FAULTS + u64::from(vector) % FAULTS) * CELL,
        }
    }

    /// Address of its cell.
    pub(crate) fn at(self, hidden: &HiddenMemory) -> Result<Gva, StubError> {
        let page = hidden.stub_window().ok_or(StubError::NotMapped)?;
        Ok(page.gva.wrapping_add(self.offset()))
    }

    /// Assembles `body` and, after it, a jmp to `next`.
    pub(crate) fn assemble(
        self,
        hidden: &HiddenMemory,
        next: Gva,
        body: impl FnOnce(&mut CodeAssembler) -> Result<(), StubError>,
    ) -> Result<StubCode, StubError> {
        let page = hidden.stub_window().ok_or(StubError::NotMapped)?;
        let gva = self.at(hidden)?;
        let code = encode(gva, next, body)?;
        let mut cell = [FILL; CELL_LEN];
        cell[NEXT..].copy_from_slice(&next.0.to_le_bytes());
        cell[..NEXT]
            .get_mut(..code.len())
            .expect("stubs are shorter than their cells")
            .copy_from_slice(&code);
        Ok(StubCode { gva, offset: page.offset + self.offset(), cell })
    }
}

/// The stubs that a gate passes through.
pub(crate) struct Way {
    cells: Vec<u64>,
    /// The address at which the last stub continues: the guest's handler.
    pub(crate) end: Gva,
}

impl Way {
    /// Follows the stubs from `target`, a gate's target.
    pub(crate) fn from(hidden: &HiddenMemory, target: Gva) -> Self {
        let mut way = Self { cells: Vec::new(), end: target };
        let Some(page) = hidden.stub_window() else { return way };
        for _ in 0..CELLS {
            let offset = way.end.0.wrapping_sub(page.gva.0);
            if offset >= page.len || !offset.is_multiple_of(CELL) {
                break;
            }
            let mut next = [0; 8];
            hidden.read(page.offset + offset + NEXT as u64, &mut next);
            way.cells.push(offset);
            way.end = Gva(u64::from_le_bytes(next));
        }
        way
    }

    /// Returns true if the chain contains `stub`.
    pub(crate) fn passes(&self, stub: Stub) -> bool {
        self.cells.contains(&stub.offset())
    }
}

fn encode(
    at: Gva,
    next: Gva,
    body: impl FnOnce(&mut CodeAssembler) -> Result<(), StubError>,
) -> Result<Vec<u8>, StubError> {
    let mut assembler = CodeAssembler::new(64)?;
    body(&mut assembler)?;
    jmp(&mut assembler, next)?;
    // Branches are not changed: one out of reach must not become a jump through memory.
    let options = BlockEncoderOptions::DONT_FIX_BRANCHES;
    Ok(assembler.assemble_options(at.0, options)?.inner.code_buffer)
}

/// `jmp rel32`.
pub(crate) fn jmp(assembler: &mut CodeAssembler, to: Gva) -> Result<(), IcedError> {
    assembler.add_instruction(Instruction::with_branch(Code::Jmp_rel32_64, to.0)?)
}

impl StubCode {
    /// Writes the code to its cell. Nothing may point there yet.
    pub(crate) fn write(&self, hidden: &HiddenMemory) {
        hidden.write(self.offset, &self.cell);
    }
}
