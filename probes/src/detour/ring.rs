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
//! arguments, 64 bits each; texts and arrays. The argument of each of these is the bytes that it
//! has there, a multiple of 8, and 1 more if it could not be read. The host clears the words that
//! it has read.

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
/// Bit of a text's or an array's argument: it could not be read.
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

/// Bytes that an array takes in a record: whole words.
pub(super) fn padded(array: u16) -> u64 {
    u64::from(array).next_multiple_of(WORD as u64)
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
    /// Its texts and arrays, in order; `None` for one that could not be read.
    pub in_bytes: Vec<Option<Vec<u8>>>,
}

/// A value of a record whose bytes come after the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InBytes {
    /// Its index.
    pub index: usize,
    /// Bytes of an array; `None` for a text, which ends before its NUL.
    pub array: Option<u16>,
}

#[cfg(any(test, feature = "testing"))]
impl InBytes {
    /// A text.
    #[must_use]
    pub const fn text(index: usize) -> Self {
        Self { index, array: None }
    }
}

/// Contents of a block's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordShape<'a> {
    /// Number of values.
    pub args: usize,
    /// The texts and arrays among them, in order.
    pub in_bytes: &'a [InBytes],
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
    let most = left.min(RECORD_MAX as u64) - len;
    let (in_bytes, after) = read_bytes(words, at + len, most, &args, shape.in_bytes)?;
    len += after;
    let record = GuestRecord { number, time: word(RECORD_TIME), task, args, in_bytes };
    Some((record, len))
}

/// Reads the texts and arrays of a record, which have at most `most` bytes together at `at`, and
/// returns them with their length. `None` if no block writes them so.
fn read_bytes(
    words: &impl Words,
    at: u64,
    most: u64,
    args: &[u64],
    in_bytes: &[InBytes],
) -> Option<(Vec<Option<Vec<u8>>>, u64)> {
    let (mut found, mut len) = (Vec::with_capacity(in_bytes.len()), 0);
    for InBytes { index, array } in in_bytes {
        let word = *args.get(*index)?;
        let (bytes, is_torn) = (word & !TORN, word & TORN != 0);
        let is_right = match array {
            Some(exact) => bytes == padded(*exact),
            None => bytes > 0 && bytes.is_multiple_of(WORD as u64),
        };
        if !is_right || bytes > most - len {
            return None;
        }
        let places = (at + len..at + len + bytes).step_by(WORD);
        let all = places.flat_map(|at| words.load(at).to_le_bytes());
        found.push(match (is_torn, array) {
            (true, _) => None,
            (false, Some(exact)) => Some(all.take(usize::from(*exact)).collect()),
            (false, None) => Some(all.take_while(|byte| *byte != 0).collect()),
        });
        len += bytes;
    }
    Some((found, len))
}

#[cfg(test)]
pub(super) mod tests;
