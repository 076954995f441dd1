//! Rings of records that the guest writes: their format, and the host's side.
//!
//! A ring is in hidden memory that the guest's kernel can write, so its content is not trusted.
//! Positions and lengths are checked; an invalid value costs that ring's records, and is reported.
//!
//! | at | what |
//! |---|---|
//! | 0 | head: number of bytes ever reserved; written by the guest |
//! | 8 | limit: the highest permitted head; written by the host |
//! | 64 | records: position p is at p modulo the data's size; a record goes on past the end |
//!
//! A record: a header (zero until the record is complete: number of its block, and of its
//! arguments) and the current task's number, 32 bits each; time stamp; the task's name, 128 bits;
//! arguments, 64 bits each; texts. A text's argument is the bytes that it has there, a multiple of
//! 8, and 1 more if it could not be read. The host clears the words that it has read.

use exoprobe_guest::HiddenMemory;
use exoprobe_introspect::TaskId;

/// Offset of the head.
pub(super) const RING_HEAD: i32 = 0;
/// Offset of the limit.
pub(super) const RING_LIMIT: i32 = 8;
/// Offset of the records, so that the guest's CPUs do not share the head's cache line with them.
pub(super) const RING_DATA: i32 = 64;
/// Offsets in a record.
pub(super) const RECORD_TIME: i32 = 8;
/// See [`RECORD_TIME`].
pub(super) const RECORD_PID: i32 = 4;
/// See [`RECORD_TIME`].
pub(super) const RECORD_COMM: i32 = 16;
/// See [`RECORD_TIME`].
pub(super) const RECORD_ARGS: i32 = 32;
/// Bytes of a word.
pub(super) const WORD: usize = 8;
/// Bit of a text's argument: it could not be read.
const TORN: u64 = 1;
/// The lower half of a word.
const LOW: u64 = 0xffff_ffff;
/// Values before the arguments in the record of a return: the return address, and the time of the
/// call's beginning.
pub const RETURN_VALUES: usize = 2;
/// Most values of a record.
pub(super) const ARGS_MAX: usize = crate::definition::ARGS_MAX + RETURN_VALUES;
/// Bytes of the longest record, and of what is after a ring's end for it.
pub(super) const RECORD_MAX: usize = RECORD_ARGS as usize + ARGS_MAX * WORD;

/// The header of a complete record: never zero.
pub(super) fn header(number: u16, args: usize) -> u32 {
    let args = u32::try_from(args.min(ARGS_MAX)).expect("at most 130");
    u32::from(number) << 16 | args << 1 | 1
}

/// Bytes of a record with so many arguments.
pub(super) fn record_bytes(args: usize) -> i32 {
    i32::try_from(RECORD_ARGS as usize + args.min(ARGS_MAX) * WORD).expect("some KiB")
}

/// Memory that the guest writes to at the same time, by 64-bit words.
pub trait Words {
    /// The word at `offset`, a multiple of 8; later loads see the writes before the word's
    /// (acquire).
    fn load(&self, offset: u64) -> u64;
    /// Replaces the word at `offset`; earlier stores are visible before it (release).
    fn store(&self, offset: u64, word: u64);
    /// Replaces the word at `offset` by `new` if it is `current`, atomically.
    ///
    /// # Errors
    /// The present word, if it differs.
    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<(), u64>;
    /// Sets `len` bytes at `offset`, both multiples of 8, to zero.
    fn clear(&self, offset: u64, len: u64) {
        (offset..offset + len).step_by(WORD).for_each(|offset| self.store(offset, 0));
    }
}

impl Words for HiddenMemory {
    fn load(&self, offset: u64) -> u64 {
        self.load_u64(offset)
    }

    fn store(&self, offset: u64, word: u64) {
        self.store_u64(offset, word);
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<(), u64> {
        self.compare_exchange_u64(offset, current, new)
    }

    fn clear(&self, offset: u64, len: u64) {
        self.clear_u64s(offset, len);
    }
}

/// A record as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestRecord {
    /// The block that wrote it.
    pub number: u16,
    /// Guest time-stamp counter.
    pub time: u64,
    /// The current task; all zero if its location is not known.
    pub task: TaskId,
    /// Its values, in order.
    pub args: Vec<u64>,
    /// Its texts, in order; `None` for one that could not be read.
    pub texts: Vec<Option<Vec<u8>>>,
}

/// Contents of a block's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordShape<'a> {
    /// Number of values.
    pub args: usize,
    /// Indices of the texts among them, ascending.
    pub texts: &'a [usize],
}

/// The guest wrote into the ring: its content is not valid, and its records are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the guest wrote into a ring of records: what was in it is lost")]
pub struct CorruptRing;

/// The host's side of one ring.
pub struct GuestRing {
    /// Offset of the ring in the memory.
    base: u64,
    /// Bytes of data, a power of two.
    len: u64,
    /// Bytes ever read.
    tail: u64,
}

impl GuestRing {
    /// Bytes that a ring with so many bytes of data takes.
    #[must_use]
    pub const fn bytes(len: u64) -> u64 {
        RING_DATA as u64 + len + (RECORD_MAX as u64).next_multiple_of(64)
    }

    /// A ring at `base` with `len` bytes of data, a power of two; empties it.
    ///
    /// # Panics
    /// When `len` is no power of two, or too small for the longest record.
    pub fn new(words: &impl Words, base: u64, len: u64) -> Self {
        assert!(len.is_power_of_two() && len >= RECORD_MAX as u64, "a ring of {len} bytes");
        let mut ring = Self { base, len, tail: 0 };
        ring.reset(words);
        ring
    }

    /// Empties the ring; its content is not trusted.
    fn reset(&mut self, words: &impl Words) {
        self.tail = 0;
        words.store(self.base + RING_LIMIT as u64, 0);
        let data = RING_DATA as u64;
        words.clear(self.base + data, Self::bytes(self.len) - data);
        words.store(self.base + RING_HEAD as u64, 0);
        words.store(self.base + RING_LIMIT as u64, self.len);
    }

    /// The guest's write position.
    pub fn head(&self, words: &impl Words) -> u64 {
        words.load(self.base + RING_HEAD as u64)
    }

    /// Returns true if everything written up to this position has been read.
    #[must_use]
    pub fn has_read(&self, head: u64) -> bool {
        self.tail >= head
    }

    /// Reads all complete records, up to the first that is still being written. `shape_of` returns
    /// the shape of a block's records.
    ///
    /// # Errors
    /// [`CorruptRing`], after the records before the fault; the ring is empty then.
    pub fn drain<'a>(
        &mut self,
        words: &impl Words,
        shape_of: impl Fn(u16) -> Option<RecordShape<'a>>,
        mut take: impl FnMut(GuestRecord),
    ) -> Result<(), CorruptRing> {
        let head = self.head(words);
        if head.checked_sub(self.tail).is_none_or(|used| used > self.len) {
            self.reset(words);
            return Err(CorruptRing);
        }
        while self.tail < head {
            let at = self.base + RING_DATA as u64 + self.tail % self.len;
            let first = words.load(at);
            if first & LOW == 0 {
                break;
            }
            let Some((record, len)) = read(words, at, head - self.tail, &shape_of) else {
                self.reset(words);
                return Err(CorruptRing);
            };
            take(record);
            (at..at + len).step_by(WORD).for_each(|offset| words.store(offset, 0));
            self.tail += len;
            words.store(self.base + RING_LIMIT as u64, self.tail + self.len);
        }
        Ok(())
    }
}

fn bytes(args: usize) -> u64 {
    record_bytes(args).unsigned_abs().into()
}

/// Reads the record at `at`, of at most `left` bytes, and returns it with its length. `None` if no
/// block writes such a record.
fn read<'a>(
    words: &impl Words,
    at: u64,
    left: u64,
    shape_of: impl Fn(u16) -> Option<RecordShape<'a>>,
) -> Option<(GuestRecord, u64)> {
    let first = words.load(at);
    let (found, pid) = (first & LOW, first >> 32);
    let number = u16::try_from(found >> 16).ok()?;
    let shape = shape_of(number).filter(|s| found == u64::from(header(number, s.args)))?;
    let mut len = bytes(shape.args);
    if len > left {
        return None;
    }
    let word = |offset: i32| words.load(at + u64::from(offset.unsigned_abs()));
    let comm = [word(RECORD_COMM), word(RECORD_COMM + 8)].map(u64::to_le_bytes);
    let task = TaskId {
        pid: u32::try_from(pid).expect("32 bits"),
        comm: *comm.as_flattened().first_chunk().expect("two words"),
    };
    let places = (0..shape.args as u64).map(|i| at + RECORD_ARGS as u64 + i * WORD as u64);
    let args: Vec<u64> = places.map(|at| words.load(at)).collect();
    let most = left.min(RECORD_MAX as u64);
    let mut texts = Vec::with_capacity(shape.texts.len());
    for index in shape.texts {
        let word = *args.get(*index)?;
        let (bytes, is_torn) = (word & !TORN, word & TORN != 0);
        if bytes == 0 || !bytes.is_multiple_of(WORD as u64) || bytes > most - len {
            return None;
        }
        texts.push((!is_torn).then(|| text(words, at + len, bytes)));
        len += bytes;
    }
    let record = GuestRecord { number, time: word(RECORD_TIME), task, args, texts };
    Some((record, len))
}

/// The text in so many bytes at `at`, up to its NUL.
fn text(words: &impl Words, at: u64, bytes: u64) -> Vec<u8> {
    let all = (at..at + bytes).step_by(WORD).flat_map(|at| words.load(at).to_le_bytes());
    all.take_while(|byte| *byte != 0).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use exoprobe_guest::GuestRam;
    use exoprobe_guest::memory::ram_ranges;
    use proptest::prelude::*;

    use super::super::PlainWords;
    use super::*;

    fn memory() -> PlainWords {
        PlainWords::new(GuestRing::bytes(LEN))
    }

    /// Writes a record as a detour does; `None` when there is no room.
    pub(in crate::detour) fn write(memory: &impl Words, number: u16, args: &[u64]) -> Option<()> {
        let head = memory.load(0);
        let next = head + bytes(args.len());
        if next > memory.load(8) {
            return None;
        }
        memory.store(0, next);
        let at = 64 + head % LEN;
        memory.store(at + 8, head);
        memory.store(at + 16, u64::from_le_bytes(*b"a name, "));
        memory.store(at + 24, u64::from_le_bytes(*b"of 16 by"));
        for (i, arg) in (0u64..).zip(args) {
            memory.store(at + 32 + i * 8, *arg);
        }
        memory.store(at, u64::from(header(number, args.len())) | 7 << 32);
        Some(())
    }

    pub(in crate::detour) const LEN: u64 = 2048;

    fn shape_of(number: u16) -> Option<RecordShape<'static>> {
        let texts: &[usize] = if number == 12 { &[0, 2] } else { &[] };
        let args = if number == 12 { 3 } else { usize::from(number) };
        (number < 10 || number == 12).then_some(RecordShape { args, texts })
    }

    #[test]
    fn records_come_in_order_over_the_end_and_a_full_ring_takes_no_more() {
        let memory = memory();
        let mut ring = GuestRing::new(&memory, 0, LEN);
        let mut next = 0;
        for round in 0..50 {
            let mut written = 0;
            while write(&memory, 3, &[round, written, 9]).is_some() {
                written += 1;
            }
            assert_eq!(written, LEN / 56);
            let mut got = 0;
            let take = |record: GuestRecord| {
                let task = TaskId { pid: 7, comm: *b"a name, of 16 by" };
                assert_eq!((record.number, record.task), (3, task));
                assert_eq!(record.args, [round, got, 9]);
                assert!(record.time >= next);
                (next, got) = (record.time + 1, got + 1);
            };
            assert_eq!(ring.drain(&memory, shape_of, take), Ok(()));
            assert_eq!(got, written);
        }
    }

    #[test]
    fn a_record_that_is_not_whole_holds_up_those_behind_it() {
        let memory = memory();
        let mut ring = GuestRing::new(&memory, 0, LEN);
        write(&memory, 1, &[1]).unwrap();
        write(&memory, 1, &[2]).unwrap();
        let header = memory.load(64);
        memory.store(64, 0);
        let mut got = Vec::new();
        ring.drain(&memory, shape_of, |record| got.extend(record.args)).unwrap();
        assert!(got.is_empty());
        memory.store(64, header);
        ring.drain(&memory, shape_of, |record| got.extend(record.args)).unwrap();
        assert_eq!(got, [1, 2]);
    }

    #[test]
    fn what_no_detour_writes_is_told_and_the_ring_begins_anew() {
        let one = bytes(1);
        let good = u64::from(header(1, 1));
        // The head, and the first word of the record that has been written.
        for (what, head, first) in [
            ("a head beyond the limit", 2 * LEN, good),
            ("a head before what was read", one - 8, good),
            ("a block that there is not", 2 * one, u64::from(header(10, 1))),
            ("another number of arguments than the block's", 2 * one, u64::from(header(2, 1))),
            ("more arguments than there is room", 2 * one, u64::from(header(9, 9))),
            ("a record that was never reserved to its end", one + 8, good),
            ("a header without its mark", 2 * one, good & !1),
        ] {
            let memory = memory();
            let mut ring = GuestRing::new(&memory, 0, LEN);
            write(&memory, 1, &[1]).unwrap();
            ring.drain(&memory, shape_of, |_| {}).unwrap();
            write(&memory, 1, &[2]).unwrap();
            memory.store(0, head);
            memory.store(64 + one, first);
            let drained = ring.drain(&memory, shape_of, |record| panic!("{what}: {record:?}"));
            assert_eq!(drained, Err(CorruptRing), "{what}");
            write(&memory, 1, &[3]).unwrap();
            let mut got = Vec::new();
            ring.drain(&memory, shape_of, |record| got.extend(record.args)).unwrap();
            assert_eq!(got, [3], "{what}");
        }
    }

    /// Writes a record of block 12 with two texts, whose words are as given, and these bytes.
    fn write_texts(memory: &impl Words, words: [u64; 2], bytes: &[u8]) {
        let head = memory.load(0);
        let at = 64 + head % LEN;
        for (i, word) in (0..).zip([words[0], 7, words[1]]) {
            memory.store(at + 32 + i * 8, word);
        }
        for (i, word) in (0..).zip(bytes.as_chunks().0) {
            memory.store(at + 56 + i * 8, u64::from_le_bytes(*word));
        }
        memory.store(at, u64::from(header(12, 3)));
        memory.store(0, head + 56 + bytes.len() as u64);
    }

    #[test]
    fn texts_come_after_the_words_up_to_their_nul() {
        let memory = memory();
        let mut ring = GuestRing::new(&memory, 0, LEN);
        for _ in 0..LEN / 80 + 3 {
            write_texts(&memory, [16, 8 | TORN], b"a longer text\0\xff\xffnot here");
            write_texts(&memory, [8, 8], b"\0garbagewhole...");
            write(&memory, 1, &[5]).unwrap();
            let mut got = Vec::new();
            ring.drain(&memory, shape_of, |record| got.push((record.args, record.texts))).unwrap();
            let text = |text: &[u8]| Some(text.to_vec());
            let expected = [
                (vec![16, 7, 9], vec![text(b"a longer text"), None]),
                (vec![8, 7, 8], vec![text(b""), text(b"whole...")]),
                (vec![5], vec![]),
            ];
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn texts_longer_than_their_record_are_told() {
        let most = RECORD_MAX as u64 - 56;
        for words in [[0, 8], [8, 0], [12, 12], [8, 24], [most + 8, 8], [u64::MAX - 7, 8], [1, 8]] {
            let memory = memory();
            let mut ring = GuestRing::new(&memory, 0, LEN);
            write_texts(&memory, words, &[b'x'; 24]);
            let drained = ring.drain(&memory, shape_of, |record| panic!("{words:?}: {record:?}"));
            assert_eq!(drained, Err(CorruptRing), "{words:?}");
        }
        // More than a record has, though the guest has reserved it.
        let memory = memory();
        let mut ring = GuestRing::new(&memory, 0, LEN);
        write_texts(&memory, [most, 8], &[b'x'; 24]);
        memory.store(0, LEN);
        assert_eq!(ring.drain(&memory, shape_of, |_| panic!("too long")), Err(CorruptRing));
        write_texts(&memory, [most - 8, 8], &[b'x'; 24]);
        memory.store(0, LEN);
        assert_eq!(ring.drain(&memory, shape_of, drop), Ok(()));
    }

    #[test]
    fn a_vcpu_that_writes_while_the_host_reads_loses_no_record() {
        // More than the ring holds.
        let records = if cfg!(miri) { LEN / 48 + 8 } else { 100_000 };
        let memory = HiddenMemory::new(&GuestRam::anonymous(&ram_ranges(1)).unwrap()).unwrap();
        let mut ring = GuestRing::new(&memory, 0, LEN);
        let memory = &memory;
        let mut next = 0;
        std::thread::scope(|scope| {
            // A reader that fails ends the writer, too.
            let reads = Arc::new(());
            let has_reader = Arc::downgrade(&reads);
            scope.spawn(move || {
                for record in 0..records {
                    while write(memory, 2, &[record, !record]).is_none() {
                        if has_reader.strong_count() == 0 {
                            return;
                        }
                        std::thread::yield_now();
                    }
                }
            });
            while next < records {
                let take = |record: GuestRecord| {
                    assert_eq!(record.args, [next, !next]);
                    next += 1;
                };
                ring.drain(memory, shape_of, take).unwrap();
                std::thread::yield_now();
            }
        });
        assert!(ring.has_read(ring.head(memory)));
    }

    proptest! {
        #[test]
        fn whatever_the_guest_writes_the_host_stays_within_and_goes_on(
            scribbles in prop::collection::vec((0..GuestRing::bytes(LEN) / 8, any::<u64>()), 0..40),
            head in prop_oneof![any::<u64>(), 0..2 * LEN],
        ) {
            let memory = memory();
            let mut ring = GuestRing::new(&memory, 0, LEN);
            write(&memory, 2, &[1, 2]).unwrap();
            for (word, value) in scribbles {
                memory.store(word * 8, value);
            }
            memory.store(0, head);
            let most = LEN / bytes(0);
            let mut taken = 0;
            let drained = ring.drain(&memory, shape_of, |_| taken += 1);
            prop_assert!(taken <= most);
            if drained.is_err() {
                write(&memory, 1, &[5]).unwrap();
                let mut got = Vec::new();
                ring.drain(&memory, shape_of, |record| got.push(record.args)).unwrap();
                prop_assert_eq!(got, vec![vec![5]]);
            }
        }
    }
}
