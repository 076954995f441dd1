//! A single-producer, single-consumer ring of records: the producer is one vCPU's thread (a thread
//! that samples, while the vCPU stands still), the consumer, the holder of the store's drain lock.
//!
//! A record is a run of 64-bit words: probe id and length, guest time, shape, task, return address
//! and time of entry (of returns), the arguments that could not be read (if one may fault),
//! arguments, back-trace, texts. The word of a text argument is the place of its bytes among those
//! ([`TextPlace`]). Each record is in one piece: the words at the ring's end that it does not fit
//! into are skipped.

use std::sync::atomic::{AtomicU64, Ordering};

use exoprobe_guest::{GuestTime, Gva};
use exoprobe_introspect::TaskId;

use crate::shared::Word;

const HEADER_WORDS: usize = 3;
/// One bit an argument: 128 at most, and those after them have none.
const FAULT_WORDS: usize = 2;
/// Number and name.
const TASK_WORDS: usize = 3;
/// The return address, and the time of entry.
const RETURN_WORDS: usize = 2;

/// Parts of a record besides its header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The record contains the current task.
    pub(crate) has_task: bool,
    /// The record is of a return, and contains the return address.
    pub(crate) is_return: bool,
    /// The record contains which arguments could not be read.
    pub(crate) may_fault: bool,
    /// Words of arguments.
    pub(crate) args: u16,
    /// Words of back-trace.
    pub(crate) stack: u16,
    /// Words of texts.
    pub(crate) text: u16,
}

/// The place of a text's bytes among those of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextPlace {
    start: u32,
    len: u32,
}

impl TextPlace {
    /// `None` beyond 4 GiB.
    pub(crate) fn new(start: usize, len: usize) -> Option<Self> {
        Some(Self { start: u32::try_from(start).ok()?, len: u32::try_from(len).ok()? })
    }

    /// Adds a text to others.
    pub(crate) fn append(texts: &mut Vec<u8>, text: &[u8]) -> Option<Self> {
        let place = Self::new(texts.len(), text.len())?;
        texts.extend_from_slice(text);
        Some(place)
    }

    /// As the argument's word.
    pub(crate) fn word(self) -> u64 {
        u64::from(self.len) << 32 | u64::from(self.start)
    }

    /// The word of an argument that may have no text: no bytes have the place that it names then.
    pub(crate) fn word_of(place: Option<Self>) -> u64 {
        place.map_or(u64::MAX, Self::word)
    }

    /// The text that a word refers to.
    pub(crate) fn of(word: u64, texts: &[u8]) -> Option<&[u8]> {
        let start = usize::try_from(word & u64::from(u32::MAX)).ok()?;
        let len = usize::try_from(word >> 32).ok()?;
        texts.get(start..start.checked_add(len)?)
    }
}

impl Shape {
    fn pack(self) -> u64 {
        u64::from(self.args)
            | u64::from(self.stack) << 16
            | u64::from(self.is_return) << 32
            | u64::from(self.may_fault) << 33
            | u64::from(self.has_task) << 34
            | u64::from(self.text) << 48
    }

    fn unpack(word: u64) -> Self {
        let half = |shift: u32| u16::try_from(word >> shift & 0xffff).expect("16 bits");
        let flag = |bit: u32| word >> bit & 1 != 0;
        let (is_return, may_fault, has_task) = (flag(32), flag(33), flag(34));
        let (args, stack, text) = (half(0), half(16), half(48));
        Self { args, stack, text, is_return, may_fault, has_task }
    }

    fn words(self) -> usize {
        HEADER_WORDS
            + if self.has_task { TASK_WORDS } else { 0 }
            + if self.is_return { RETURN_WORDS } else { 0 }
            + if self.may_fault { FAULT_WORDS } else { 0 }
            + usize::from(self.args)
            + usize::from(self.stack)
            + usize::from(self.text)
    }
}

/// A return of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Returned {
    /// The return address.
    pub(crate) to: Gva,
    /// Time of the function's entry.
    pub(crate) entered: GuestTime,
}

/// Most frames of a back-trace; with the user's part as many again.
pub(crate) const STACK_DEPTH: usize = 32;

/// The number of no probe: of the records of [`crate::Engine::mark`].
pub(crate) const MARK: u32 = u32::MAX;

/// The number of no probe: of words at the ring's end that are skipped.
const SKIPPED: u32 = MARK - 1;

/// One hit, as read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) probe: u32,
    /// Guest time-stamp counter.
    pub(crate) time: u64,
    /// The current task, if its location is known.
    pub(crate) task: Option<TaskId>,
    /// For a return probe.
    pub(crate) returned: Option<Returned>,
    /// `None` for an argument that could not be read.
    pub(crate) args: Vec<Option<u64>>,
    pub(crate) stack: Vec<u64>,
    /// The bytes of all texts, to the end of a word.
    pub(crate) text: Box<[u8]>,
}

impl Record {
    /// The bytes of argument `index`, which is text or an array; `None` if it could not be read.
    pub(crate) fn bytes(&self, index: usize) -> Option<&[u8]> {
        TextPlace::of(self.args.get(index).copied().flatten()?, &self.text)
    }

    /// Duration of a return's call, in ticks of the guest's clock; 0 if the guest's counters of two
    /// CPUs differ by more than it.
    pub(crate) fn duration(&self) -> Option<u64> {
        Some(self.time.saturating_sub(self.returned?.entered.0))
    }
}

/// The first word of a record of `words` words.
fn header(probe: u32, words: u64) -> u64 {
    u64::from(probe) << 32 | words
}

/// The ring of one vCPU.
pub(crate) struct Ring<W = AtomicU64> {
    words: Box<[W]>,
    /// Words ever written; only the producer stores it.
    head: W,
    /// Words ever read; only the consumer stores it.
    tail: W,
}

impl<W: Word> Ring<W> {
    /// A ring of `capacity` words, rounded up to a power of two.
    pub(crate) fn new(capacity: usize) -> Self {
        let len = capacity.next_power_of_two();
        let words = (0..len).map(|_| W::new(0)).collect();
        Self { words, head: W::new(0), tail: W::new(0) }
    }

    /// The index of a word by its number.
    fn index(&self, number: u64) -> usize {
        let mask = self.words.len() as u64 - 1;
        usize::try_from(number & mask).expect("below the ring's length")
    }

    /// Begins a record; `None` if there is no room for it. A record of up to half the ring has room
    /// once all others are taken. Must be called by one thread at a time.
    // Always: a hit has 25 instructions less for it.
    #[inline(always)]
    pub(crate) fn begin(&self, probe: u32, time: u64, shape: Shape) -> Option<Writer<'_, W>> {
        let needed = shape.words();
        let head = self.head.load(Ordering::Relaxed);
        let used = head - self.tail.load(Ordering::Acquire);
        let at = self.index(head);
        let (mut words, mut end) = (&self.words[at..], head + needed as u64);
        if words.len() < needed {
            end += words.len() as u64;
            words = &self.words;
        }
        if used + (end - head) > self.words.len() as u64 {
            return None;
        }
        if end - head > needed as u64 {
            let skipped = header(SKIPPED, end - head - needed as u64);
            self.words[at].store(skipped, Ordering::Relaxed);
        }
        let mut writer = Writer { ring: self, rest: &words[..needed], end };
        writer.put([header(probe, needed as u64), time, shape.pack()]);
        Some(writer)
    }

    /// Takes all complete records. Must be called by one thread at a time.
    pub(crate) fn drain(&self, mut take: impl FnMut(Record)) {
        let head = self.head.load(Ordering::Acquire);
        let mut tail = self.tail.load(Ordering::Relaxed);
        while tail < head {
            let words = &self.words[self.index(tail)..];
            let mut words = words.iter().map(|word| word.load(Ordering::Relaxed));
            let mut next = || words.next().expect("a record is in one piece");
            let header = next();
            let (probe, len) = (header >> 32, header & u64::from(u32::MAX));
            if probe == u64::from(SKIPPED) {
                tail += len;
                continue;
            }
            let (time, shape) = (next(), Shape::unpack(next()));
            let task = shape.has_task.then(|| TaskId::of_words([next(), next(), next()]));
            let returned =
                shape.is_return.then(|| Returned { to: Gva(next()), entered: GuestTime(next()) });
            let faults = match shape.may_fault {
                true => u128::from(next()) | u128::from(next()) << 64,
                false => 0,
            };
            let args = (0..shape.args).map(|i| {
                let value = next();
                let is_fault = faults.checked_shr(i.into()).unwrap_or_default() & 1 != 0;
                (!is_fault).then_some(value)
            });
            let args = args.collect();
            let stack = (0..shape.stack).map(|_| next()).collect();
            let text = (0..shape.text).flat_map(|_| next().to_le_bytes()).collect();
            let probe = u32::try_from(probe).expect("32 bits");
            take(Record { probe, time, task, returned, args, stack, text });
            tail += len;
            self.tail.store(tail, Ordering::Release);
        }
    }
}

/// A record that is being written into a ring; it is visible once finished.
pub(crate) struct Writer<'a, W = AtomicU64> {
    ring: &'a Ring<W>,
    /// The record's words that are not written yet.
    rest: &'a [W],
    /// The ring's head after the record.
    end: u64,
}

impl<W: Word> Writer<'_, W> {
    /// Writes the next words. Their number is checked once.
    #[inline]
    fn put<const N: usize>(&mut self, values: [u64; N]) {
        let (words, rest) = self.rest.split_at(N);
        words.iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        self.rest = rest;
    }

    /// Writes the current task ([`TaskId::words`]): first, if the shape has one.
    #[inline]
    pub(crate) fn task(&mut self, task: [u64; TASK_WORDS]) {
        self.put(task);
    }

    /// Writes the return: next, in a return's record.
    #[inline]
    pub(crate) fn returned(&mut self, returned: Returned) {
        self.put([returned.to.0, returned.entered.0]);
    }

    /// Writes all arguments; `None` is one that could not be read, which is permitted only with
    /// `may_fault`.
    #[inline]
    pub(crate) fn args(&mut self, may_fault: bool, args: impl Iterator<Item = Option<u64>>) {
        if !may_fault {
            args.for_each(|value| self.put([value.unwrap_or(0)]));
            return;
        }
        let (faults_at, rest) = self.rest.split_at(FAULT_WORDS);
        self.rest = rest;
        let mut faults = 0;
        for (index, value) in args.enumerate() {
            faults |= u128::from(value.is_none()) << index;
            self.put([value.unwrap_or(0)]);
        }
        let [low, high] = [faults & u128::from(u64::MAX), faults >> 64]
            .map(|half| u64::try_from(half).expect("64 bits"));
        faults_at[0].store(low, Ordering::Relaxed);
        faults_at[1].store(high, Ordering::Relaxed);
    }

    /// Writes the back-trace; its length is in the shape.
    #[inline]
    pub(crate) fn stack(&mut self, frames: &[u64]) {
        frames.iter().for_each(|frame| self.put([*frame]));
    }

    /// Writes the bytes of all texts; the shape has their number of words.
    #[inline]
    pub(crate) fn text(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(size_of::<u64>()) {
            let mut word = [0; size_of::<u64>()];
            word[..piece.len()].copy_from_slice(piece);
            self.put([u64::from_le_bytes(word)]);
        }
    }

    /// Publishes the record to the consumer.
    #[inline]
    pub(crate) fn finish(self) {
        debug_assert!(self.rest.is_empty(), "fewer words than the record's shape has");
        // The record's words come before the new head for a thread that acquires it.
        self.ring.head.store(self.end, Ordering::Release);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::hint::spin_loop;
    use std::sync::Arc;
    use std::thread;

    use super::*;
    use proptest::prelude::*;

    /// Writes a record; `false` if there is no room for it.
    pub(crate) fn push<W: Word>(ring: &Ring<W>, record: &Record) -> bool {
        let shape = Shape {
            has_task: record.task.is_some(),
            is_return: record.returned.is_some(),
            may_fault: record.args.contains(&None),
            args: u16::try_from(record.args.len()).unwrap(),
            stack: u16::try_from(record.stack.len()).unwrap(),
            text: u16::try_from(record.text.len() / 8).unwrap(),
        };
        let Some(mut writer) = ring.begin(record.probe, record.time, shape) else {
            return false;
        };
        record.task.iter().for_each(|task| writer.task(task.words()));
        record.returned.into_iter().for_each(|returned| writer.returned(returned));
        writer.args(shape.may_fault, record.args.iter().copied());
        writer.stack(&record.stack);
        writer.text(&record.text);
        writer.finish();
        true
    }

    /// A record of arguments alone.
    pub(crate) fn record(probe: u32, time: u64, args: &[u64]) -> Record {
        let args = args.iter().copied().map(Some).collect();
        let (stack, text) = (Vec::new(), Box::default());
        Record { probe, time, task: None, returned: None, args, stack, text }
    }

    #[test]
    fn a_full_ring_refuses_and_goes_on_after_a_drain() {
        let ring = Ring::<AtomicU64>::new(16);
        let (first, second) = (record(1, 2, &[4, 5, 6, 7, 8]), record(1, 2, &[1, 2, 3, 4, 5]));
        assert!(push(&ring, &first) && push(&ring, &second));
        assert!(!push(&ring, &record(9, 9, &[])), "16 words hold 8 and 8");
        let mut got = Vec::new();
        ring.drain(|r| got.push(r));
        assert_eq!(got, [first, second]);
        assert!(push(&ring, &record(9, 9, &[])));
    }

    #[test]
    fn a_text_is_where_its_argument_says_or_nowhere() {
        let place = |start, len| TextPlace::new(start, len).unwrap().word();
        assert_eq!(TextPlace::of(place(2, 3), b"abcdefgh"), Some(&b"cde"[..]));
        assert_eq!(TextPlace::of(place(8, 0), b"abcdefgh"), Some(&b""[..]));
        assert_eq!(TextPlace::of(place(6, 3), b"abcdefgh"), None);
        assert_eq!(TextPlace::of(u64::MAX, b"abcdefgh"), None);
    }

    #[test]
    fn nothing_is_lost_or_torn_between_two_threads() {
        let ring = Arc::new(Ring::<AtomicU64>::new(64));
        // Many times what the ring holds.
        let total: u64 = if cfg!(miri) { 100 } else { 20_000 };
        let written = Arc::clone(&ring);
        // The test does not wait for it if it fails.
        let producer = thread::spawn(move || {
            for n in 0..total {
                while !push(&written, &record(7, n, &[n, n + 1])) {
                    thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < total {
            ring.drain(|r| {
                assert_eq!(r, record(7, next, &[next, next + 1]));
                next += 1;
            });
            // Under Miri, the producer's turn.
            spin_loop();
        }
        producer.join().unwrap();
    }

    prop_compose! {
        fn any_record()(
            probe: u32, time: u64, task: Option<(u32, [u8; 16])>, returned: Option<(u64, u64)>,
            args in prop::collection::vec(any::<Option<u64>>(), 0..128),
            stack in prop::collection::vec(any::<u64>(), 0..40),
            texts in prop::collection::vec(any::<u64>(), 0..24),
        ) -> Record {
            let task = task.map(|(pid, comm)| TaskId { pid, comm });
            let returned = returned
                .map(|(to, entered)| Returned { to: Gva(to), entered: GuestTime(entered) });
            let text = texts.into_iter().flat_map(u64::to_le_bytes).collect();
            Record { probe, time, task, returned, args, stack, text }
        }
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(records in prop::collection::vec(any_record(), 0..10)) {
            let ring = Ring::<AtomicU64>::new(512);
            for record in records {
                prop_assert!(push(&ring, &record));
                let mut got = Vec::new();
                ring.drain(|r| got.push(r));
                prop_assert_eq!(got, vec![record]);
            }
        }
    }
}
