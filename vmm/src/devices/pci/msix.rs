//! MSI-X (PCI Local Bus 3.0, 6.8.2): interrupts as messages, a table of them in the function's
//! memory.

use std::sync::Arc;

use super::shared::low;

/// Bytes of an entry of the table.
const ENTRY_LEN: u64 = 16;
/// Capability number.
pub(crate) const MSIX_CAPABILITY: u8 = 0x11;
/// Of the message control: MSI-X is on; all vectors are masked.
const ENABLE: u16 = 1 << 15;
const MASK_ALL: u16 = 1 << 14;
/// Of an entry's vector control: it is masked.
const MASKED: u32 = 1;

/// A message: a write of `data` to `address` that the interrupt controller understands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Message {
    pub(crate) address: u64,
    pub(crate) data: u32,
}

/// The way of messages to the interrupt controllers. The guest chooses them: one may go nowhere.
pub(crate) type MessageSink = Arc<dyn Fn(Message) + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Entry {
    message: Message,
    control: u32,
    pending: bool,
}

/// The fate of an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The message is to be sent.
    Send(Message),
    /// It is kept until the vector is unmasked, or MSI-X is off.
    Kept,
}

/// The table and its control word.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Msix {
    control: u16,
    entries: Vec<Entry>,
}

impl Msix {
    /// A table of so many vectors, all masked, as after a reset.
    pub(crate) fn new(vectors: u16) -> Self {
        let entry = Entry { message: Message::default(), control: MASKED, pending: false };
        Self { control: 0, entries: vec![entry; vectors.into()] }
    }

    /// As after a reset.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(u16::try_from(self.entries.len()).expect("at most 2,048 vectors"));
    }

    /// Takes over the state of a snapshot; false if it is of another table.
    pub(crate) fn restore(&mut self, saved: &Self) -> bool {
        let fits = saved.entries.len() == self.entries.len();
        if fits {
            *self = saved.clone();
            self.control &= ENABLE | MASK_ALL;
        }
        fits
    }

    /// The capability's bytes after its link, for a table and pending bits at these offsets of base
    /// address 0, and which of them the guest may write.
    pub(crate) fn capability(&self, table: u32, pending: u32) -> ([u8; 10], [u8; 2]) {
        let size = u16::try_from(self.entries.len() - 1).expect("at most 2,048 vectors");
        let mut body = [0; 10];
        body[..2].copy_from_slice(&size.to_le_bytes());
        body[2..6].copy_from_slice(&table.to_le_bytes());
        body[6..].copy_from_slice(&pending.to_le_bytes());
        (body, (ENABLE | MASK_ALL).to_le_bytes())
    }

    /// Takes the control word over after a write. Returns the messages that were kept until now.
    pub(crate) fn set_control(&mut self, control: u16) -> Vec<(u16, Message)> {
        self.control = control & (ENABLE | MASK_ALL);
        self.release()
    }

    fn is_on(&self) -> bool {
        self.control & (ENABLE | MASK_ALL) == ENABLE
    }

    /// Vectors that are to be sent now, though they were kept.
    fn release(&mut self) -> Vec<(u16, Message)> {
        if !self.is_on() {
            return Vec::new();
        }
        let ready = |entry: &Entry| entry.pending && entry.control & MASKED == 0;
        let found = self.entries.iter_mut().enumerate().filter(|(_, entry)| ready(entry));
        found
            .map(|(at, entry)| {
                entry.pending = false;
                (u16::try_from(at).expect("at most 2,048 vectors"), entry.message)
            })
            .collect()
    }

    /// An interrupt on a vector; one without an entry is lost, as the driver has asked for none.
    pub(crate) fn raise(&mut self, vector: u16) -> Option<Delivery> {
        let is_on = self.is_on();
        let entry = self.entries.get_mut(usize::from(vector))?;
        if is_on && entry.control & MASKED == 0 {
            return Some(Delivery::Send(entry.message));
        }
        entry.pending = true;
        Some(Delivery::Kept)
    }

    /// A read of the table, by the rules of its words: 4 or 8 bytes, aligned; else 0.
    pub(crate) fn read_table(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        for (at, word) in data.chunks_exact_mut(4).enumerate() {
            word.copy_from_slice(&self.word(offset + 4 * at as u64).to_le_bytes());
        }
    }

    fn word(&self, offset: u64) -> u32 {
        let Some(entry) =
            usize::try_from(offset / ENTRY_LEN).ok().and_then(|at| self.entries.get(at))
        else {
            return 0;
        };
        match offset % ENTRY_LEN {
            0 => low(entry.message.address),
            4 => low(entry.message.address >> 32),
            8 => entry.message.data,
            12 => entry.control,
            _ => 0,
        }
    }

    /// A write of the table. Returns the messages that were kept until now.
    pub(crate) fn write_table(&mut self, offset: u64, data: &[u8]) -> Vec<(u16, Message)> {
        for (at, word) in data.chunks_exact(4).enumerate() {
            let word = u32::from_le_bytes(word.try_into().expect("4 bytes"));
            self.set_word(offset + 4 * at as u64, word);
        }
        self.release()
    }

    fn set_word(&mut self, offset: u64, word: u32) {
        let entry = usize::try_from(offset / ENTRY_LEN).ok();
        let Some(entry) = entry.and_then(|at| self.entries.get_mut(at)) else { return };
        let message = &mut entry.message;
        match offset % ENTRY_LEN {
            0 => message.address = message.address & !0xffff_ffff | u64::from(word & !3),
            4 => message.address = message.address & 0xffff_ffff | u64::from(word) << 32,
            8 => message.data = word,
            12 => entry.control = word & MASKED,
            _ => {}
        }
    }

    /// A read of the pending bits.
    pub(crate) fn read_pending(&self, offset: u64, data: &mut [u8]) {
        let first = usize::try_from(offset).unwrap_or(usize::MAX).saturating_mul(8);
        for (at, byte) in data.iter_mut().enumerate() {
            let bits = self.entries.iter().skip(first.saturating_add(8 * at)).take(8);
            *byte = bits
                .enumerate()
                .fold(0, |byte, (bit, entry)| byte | u8::from(entry.pending) << bit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: Message = Message { address: 0xfee0_1000, data: 0x31 };

    fn with_message(vector: u64) -> Msix {
        let mut msix = Msix::new(3);
        let address = MESSAGE.address.to_le_bytes();
        assert!(msix.write_table(vector * ENTRY_LEN, &address).is_empty());
        assert!(msix.write_table(vector * ENTRY_LEN + 8, &MESSAGE.data.to_le_bytes()).is_empty());
        msix
    }

    #[test]
    fn an_interrupt_is_sent_or_kept_until_it_may_be() {
        let mut msix = with_message(1);
        assert_eq!(msix.raise(1), Some(Delivery::Kept), "off");
        assert!(msix.set_control(ENABLE).is_empty(), "masked");
        let mut pending = [0];
        msix.read_pending(0, &mut pending);
        assert_eq!(pending, [2]);
        assert_eq!(msix.write_table(ENTRY_LEN + 12, &[0; 4]), [(1, MESSAGE)]);
        assert_eq!(msix.raise(1), Some(Delivery::Send(MESSAGE)));
        msix.set_control(ENABLE | MASK_ALL);
        assert_eq!(msix.raise(1), Some(Delivery::Kept));
        assert_eq!(msix.set_control(ENABLE), [(1, MESSAGE)], "once");
        assert!(msix.set_control(ENABLE).is_empty());
        assert_eq!(msix.raise(3), None);
    }

    #[test]
    fn a_snapshot_keeps_messages_and_what_waits() {
        let mut msix = with_message(1);
        assert_eq!(msix.raise(1), Some(Delivery::Kept));
        let mut restored = Msix::new(3);
        assert!(restored.restore(&msix) && restored == msix);
        assert_eq!(restored.write_table(ENTRY_LEN + 12, &[0; 4]), []);
        assert_eq!(restored.set_control(ENABLE), [(1, MESSAGE)]);
        assert!(!Msix::new(2).restore(&msix));
    }

    #[test]
    fn the_table_reads_as_it_was_written_and_ends() {
        let mut msix = with_message(2);
        let mut words = [0; 8];
        msix.read_table(2 * ENTRY_LEN, &mut words);
        assert_eq!(words, MESSAGE.address.to_le_bytes());
        msix.read_table(2 * ENTRY_LEN + 12, &mut words);
        assert_eq!(words, [1, 0, 0, 0, 0, 0, 0, 0], "past the end is nothing");
        assert!(msix.write_table(3 * ENTRY_LEN, &[0xff; 8]).is_empty());
        msix.read_table(u64::MAX - 3, &mut words[..4]);
        assert_eq!(words[..4], [0; 4]);
        let (body, writable) = msix.capability(0x8000, 0xc000);
        assert_eq!((body[0], body[3], writable), (2, 0x80, [0, 0xc0]));
    }
}
