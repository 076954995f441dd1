//! Slots in hidden memory. A slot's code depends only on the instruction and its address, so a slot
//! is never freed: the same instruction gets its old slot again, and a guest task that sleeps in a
//! slot for ever finds it unchanged.

use std::collections::HashMap;

use exoprobe_guest::{Gva, HiddenMemory};

use crate::engine::patch::error::SlotError;
use crate::insn::{Displaced, SLOT_SIZE, SlotKind};

/// A slot with its code in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Start of its code.
    pub(crate) gva: Gva,
    /// For stepping only: address of the int3 after the copy.
    pub(crate) stop: Option<Gva>,
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    at: Gva,
    original: Vec<u8>,
    stepped: bool,
}

/// Allocates slots in a guest's code window.
#[derive(Default)]
pub(crate) struct Slots {
    made: HashMap<Key, Slot>,
    /// Offset in the window of the first free byte; `None` until the window is known.
    next: Option<u64>,
}

impl Slots {
    /// The slot of an instruction, made on first use.
    ///
    /// # Errors
    /// [`SlotError::Full`] when the window is full, [`SlotError::Assemble`].
    pub(crate) fn get(
        &mut self,
        hidden: &HiddenMemory,
        insn: &Displaced,
        kind: SlotKind,
    ) -> Result<Slot, SlotError> {
        let stepped = kind == SlotKind::Stepped;
        let key = Key { at: insn.at(), original: insn.original().to_vec(), stepped };
        if let Some(slot) = self.made.get(&key) {
            return Ok(*slot);
        }
        let (gva, offset, next) = self.room(hidden, SLOT_SIZE as u64)?;
        let code = insn.assemble(kind, gva)?;
        hidden.write(offset, &code.image(insn.at()));
        self.next = Some(next);
        let stop = code.stop_offset.map(|offset| gva.wrapping_add(u64::from(offset)));
        let slot = Slot { gva, stop };
        self.made.insert(key, slot);
        Ok(slot)
    }

    /// Takes `len` bytes for another use, for good. Returns their address in the guest and their
    /// offset in hidden memory.
    ///
    /// # Errors
    /// [`SlotError::Full`].
    pub(crate) fn reserve(
        &mut self,
        hidden: &HiddenMemory,
        len: u64,
    ) -> Result<(Gva, u64), SlotError> {
        let (gva, offset, next) = self.room(hidden, len)?;
        self.next = Some(next);
        Ok((gva, offset))
    }

    /// The address, the offset and the end of the next `len` bytes, as whole slots.
    fn room(&mut self, hidden: &HiddenMemory, len: u64) -> Result<(Gva, u64, u64), SlotError> {
        let window = hidden.code_window().ok_or(SlotError::Full(0))?;
        let next = *self.next.get_or_insert_with(|| first_free(hidden, window.offset, window.len));
        let end = next + len.next_multiple_of(SLOT_SIZE as u64);
        if end > window.len {
            return Err(SlotError::Full(window.len));
        }
        Ok((window.gva.wrapping_add(next), window.offset + next, end))
    }
}

/// First free offset: after all slots of a guest that was restored from a snapshot.
fn first_free(hidden: &HiddenMemory, offset: u64, len: u64) -> u64 {
    let mut bytes = vec![0; usize::try_from(len).expect("a window is below 2 MiB")];
    hidden.read(offset, &mut bytes);
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
    used.next_multiple_of(SLOT_SIZE as u64)
}
