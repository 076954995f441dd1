//! Gates of a guest's interrupt descriptor table in 64-bit mode (Intel SDM vol. 3, 6.14.1, figure
//! 6-8).

use crate::addr::{Gpa, Gva};
use crate::memory::{GuestRam, OutsideMemory};
use crate::paging::{self, PagingError, PagingMode, ReadPhys};

const GATE_LEN: u64 = 16;
/// Parts of a gate's first 8 bytes: the bits of its target (15:0 and 31:16), and those of its type.
const TARGET: u64 = 0xffff_0000_0000_ffff;
const PRESENT: u64 = 1 << 47;
const TYPE: u64 = 0xf << 40;
const INTERRUPT_GATE: u64 = 0xe << 40;
const TRAP_GATE: u64 = 0xf << 40;

/// The reason why a guest's gates cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdtError {
    /// The table is not mapped at the address in IDTR.
    #[error("cannot read the guest's interrupt descriptor table: {0}")]
    Table(#[from] PagingError),
    /// As above, but the physical page is missing.
    #[error("the guest's interrupt descriptor table is outside its memory: {0}")]
    Memory(#[from] OutsideMemory),
    /// A gate could lie on two pages.
    #[error("the guest's interrupt descriptor table at {0} is not on a multiple of 16")]
    Unaligned(Gva),
    /// A present gate that the CPU itself would refuse.
    #[error("gate {vector} of the guest is no interrupt or trap gate ({low:#x})")]
    Kind {
        /// Its vector.
        vector: u8,
        /// Its first 8 bytes.
        low: u64,
    },
    /// The handler is so far from hidden memory that a single store could not redirect the gate.
    #[error("the handler of gate {vector} at {handler} is not in the same 4 GiB as hidden memory")]
    Reach {
        /// Its vector.
        vector: u8,
        /// Its handler.
        handler: Gva,
    },
}

/// A gate as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gate {
    vector: u8,
    at: Gpa,
    low: u64,
    high: u64,
}

/// Reads gate `vector` of the table that IDTR (`base`, `limit`) refers to; `None` if the table ends
/// before it, and if the gate is not present.
pub(crate) fn gate(
    ram: &GuestRam,
    mode: PagingMode,
    (base, limit): (Gva, u16),
    vector: u8,
) -> Result<Option<Gate>, IdtError> {
    if base.offset_in(GATE_LEN) != 0 {
        return Err(IdtError::Unaligned(base));
    }
    let offset = u64::from(vector) * GATE_LEN;
    if offset + GATE_LEN - 1 > u64::from(limit) {
        return Ok(None);
    }
    let at = paging::translate(ram, mode, base.wrapping_add(offset))?.gpa;
    let load = |at| ram.read_u64(at).ok_or(OutsideMemory { gpa: at, len: 8 });
    let (low, high) = (load(at)?, load(Gpa(at.0 + 8))?);
    match (low & PRESENT, low & TYPE) {
        (0, _) => Ok(None),
        (_, INTERRUPT_GATE | TRAP_GATE) => Ok(Some(Gate { vector, at, low, high })),
        _ => Err(IdtError::Kind { vector, low }),
    }
}

impl Gate {
    /// Target of the gate.
    pub(crate) fn target(&self) -> Gva {
        Gva(self.low & 0xffff | self.low >> 32 & 0xffff_0000 | self.high << 32)
    }

    /// The same gate with another target. Only its first 8 bytes may change, so a vCPU that takes
    /// an exception meanwhile sees either the old gate or the new one.
    pub(crate) fn to(self, target: Gva) -> Result<Self, IdtError> {
        if target.0 >> 32 != self.target().0 >> 32 {
            return Err(IdtError::Reach { vector: self.vector, handler: self.target() });
        }
        let bits = target.0 & 0xffff | (target.0 & 0xffff_0000) << 32;
        Ok(Self { low: self.low & !TARGET | bits, ..self })
    }

    /// Writes the gate back, by one store.
    pub(crate) fn store(&self, ram: &GuestRam) -> Result<(), OutsideMemory> {
        ram.store_u64(self.at, self.low)
    }
}

/// A guest's memory with an IDT, for tests that redirect gates.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::memory::ram_ranges;
    use crate::paging::{PTE_LARGE, PTE_PRESENT, PTE_WRITE};

    /// Address of the table: the first MiB is mapped at itself, and at the kernel image's base.
    pub(crate) const IDT: Gva = Gva(0x7000);
    pub(crate) const LIMIT: u16 = 4095;
    pub(crate) const CR3: u64 = 0x2000;

    /// RAM with page tables and an empty IDT.
    pub(crate) fn guest() -> (GuestRam, PagingMode) {
        let ram = GuestRam::anonymous(&ram_ranges(1)).unwrap();
        let table = PTE_PRESENT | PTE_WRITE;
        let words = [
            (CR3, 0x3000 | table),
            (CR3 + 0xff8, 0x3000 | table),
            (0x3000, 0x4000 | table),
            (0x3ff0, 0x4000 | table),
            (0x3ff8, 0x5000 | table),
            (0x4000, table | PTE_LARGE),
        ];
        for (at, word) in words {
            ram.store_u64(Gpa(at), word).unwrap();
        }
        (ram, PagingMode { cr3: CR3, levels: 4 })
    }

    /// Puts an interrupt gate of the kernel (selector 0x10) into the table.
    pub(crate) fn put(ram: &GuestRam, vector: u8, target: Gva) {
        let at = IDT.0 + u64::from(vector) * GATE_LEN;
        let low = target.0 & 0xffff | 0x10 << 16 | 0x8e00 << 32 | (target.0 & 0xffff_0000) << 32;
        ram.store_u64(Gpa(at), low).unwrap();
        ram.store_u64(Gpa(at + 8), target.0 >> 32).unwrap();
    }

    /// Target of gate `vector`; `None` if it is not present.
    pub(crate) fn target(ram: &GuestRam, mode: PagingMode, vector: u8) -> Option<Gva> {
        gate(ram, mode, (IDT, LIMIT), vector).unwrap().map(|gate| gate.target())
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{IDT, LIMIT, guest, put};
    use super::*;

    #[test]
    fn a_gate_keeps_all_but_its_target() {
        let (ram, mode) = guest();
        let handler = Gva(0xffff_ffff_8122_3344);
        put(&ram, 14, handler);
        let (at, idt) = (Gpa(IDT.0 + 14 * 16), (IDT, LIMIT));
        ram.store_u64(at, ram.read_u64(at).unwrap() | 0x67_0000_0000).unwrap();
        let old = gate(&ram, mode, idt, 14).unwrap().unwrap();
        assert_eq!(old.target(), handler);
        old.to(Gva(0xffff_ffff_5566_7788)).unwrap().store(&ram).unwrap();
        let new = gate(&ram, mode, idt, 14).unwrap().unwrap();
        assert_eq!(new.target(), Gva(0xffff_ffff_5566_7788));
        assert_eq!(new.low, 0x5566_8e67_0010_7788);
        assert_eq!(new.high, old.high);
        let far = Gva(0xffff_fffe_8122_3344);
        assert_eq!(old.to(far), Err(IdtError::Reach { vector: 14, handler }));
    }

    #[test]
    fn what_is_no_gate_is_left_or_refused() {
        let (ram, mode) = guest();
        let handler = Gva(0xffff_ffff_8122_3344);
        assert_eq!(gate(&ram, mode, (IDT, LIMIT), 14), Ok(None), "not present");
        put(&ram, 14, handler);
        assert_eq!(gate(&ram, mode, (IDT, 14 * 16 + 14), 14), Ok(None), "after the table's end");
        assert!(gate(&ram, mode, (IDT, 14 * 16 + 15), 14).unwrap().is_some());
        let odd = Gva(IDT.0 + 8);
        assert_eq!(gate(&ram, mode, (odd, LIMIT), 14), Err(IdtError::Unaligned(odd)));
        let unmapped = gate(&ram, mode, (Gva(1 << 40), LIMIT), 14);
        assert!(matches!(unmapped, Err(IdtError::Table(_))));
        let outside = gate(&ram, mode, (Gva((1 << 20) - 16 * 14), LIMIT), 14);
        assert!(matches!(outside, Err(IdtError::Memory(_))));
        let at = Gpa(IDT.0 + 14 * 16);
        ram.store_u64(at, ram.read_u64(at).unwrap() & !(1 << 41)).unwrap();
        assert!(matches!(gate(&ram, mode, (IDT, LIMIT), 14), Err(IdtError::Kind { .. })));
    }
}
