//! Hidden memory with bytes that the guest's kernel reads in place of its text.

use std::collections::BTreeSet;

use exoprobe_guest::{Gva, HiddenMemory};

use crate::engine::patch::error::SlotError;
use crate::engine::patch::slots::Slots;

/// Bytes of one text that the guest reads: an instruction's.
const READ: u64 = 16;
/// Number of these. The guest has used one long before it comes round again: its kernel reads one
/// instruction after the other, under one lock (kprobe_mutex).
const READS: u64 = 16;
/// Bytes of the text that the guest writes. Its kernel writes one at a time (text_mutex).
const WRITE: u64 = 64;
/// Free memory before the next slot is found by its zeros, also after a snapshot.
const FILLER: u8 = 0xcc;

/// State of the guest's changes of its own text.
#[derive(Default)]
pub(crate) struct GuestPatches {
    /// Optimized sites whose jmps are in the way of a write, until they are taken out.
    pub(crate) in_the_way: BTreeSet<Gva>,
    /// `None` until the guest first needs it.
    pub(crate) shown: Option<ShownText>,
}

/// Two kinds of text in hidden memory, each beginning anew when it is full.
pub(crate) struct ShownText {
    gva: Gva,
    /// Of the same place in hidden memory.
    offset: u64,
    next: u64,
}

impl ShownText {
    /// Takes the memory from that of the slots, for good.
    ///
    /// # Errors
    /// [`SlotError::Full`].
    pub(crate) fn new(slots: &mut Slots, hidden: &HiddenMemory) -> Result<Self, SlotError> {
        let len = READS * READ + WRITE;
        let (gva, offset) = slots.reserve(hidden, len)?;
        hidden.write(offset, &vec![FILLER; usize::try_from(len).expect("320 bytes")]);
        Ok(Self { gva, offset, next: 0 })
    }

    /// Returns true if the address is of text that the guest writes.
    pub(crate) fn contains(&self, at: Gva) -> bool {
        at == self.gva.wrapping_add(READS * READ)
    }

    /// Gives the address at which the guest reads `bytes`, at most 16.
    pub(crate) fn for_reading(&mut self, hidden: &HiddenMemory, bytes: &[u8]) -> Gva {
        let at = self.next % READS * READ;
        self.next += 1;
        hidden.write(self.offset + at, bytes);
        self.gva.wrapping_add(at)
    }

    /// Gives the address of `bytes` that the guest writes to its text, at most 64.
    pub(crate) fn for_writing(&mut self, hidden: &HiddenMemory, bytes: &[u8]) -> Gva {
        hidden.write(self.offset + READS * READ, bytes);
        self.gva.wrapping_add(READS * READ)
    }
}
