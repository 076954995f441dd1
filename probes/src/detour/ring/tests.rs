//! Rings as detours and hostile guests write them.

use std::sync::Arc;

use exoprobe_guest::GuestRam;
use exoprobe_guest::memory::ram_ranges;
use proptest::prelude::*;

use super::*;
use crate::detour::PlainWords;

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

/// Bytes of the array in the records of block 13.
const ARRAY: u16 = 13;

/// Blocks 12 and 13 have three values: two texts, or a text and an array, around a number.
fn shape_of(number: u16) -> Option<RecordShape<'static>> {
    let in_bytes: &[InBytes] = match number {
        12 => const { &[InBytes::text(0), InBytes::text(2)] },
        13 => const { &[InBytes::text(0), InBytes { index: 2, array: Some(ARRAY) }] },
        _ => &[],
    };
    let args = if in_bytes.is_empty() { usize::from(number) } else { 3 };
    (number < 10 || number == 12 || number == 13).then_some(RecordShape { args, in_bytes })
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
    write_bytes(memory, 12, words, bytes);
}

/// Writes a record of block 12 or 13, whose words are as given, and these bytes.
fn write_bytes(memory: &impl Words, number: u16, words: [u64; 2], bytes: &[u8]) {
    let head = memory.load(0);
    let at = 64 + head % LEN;
    for (i, word) in (0..).zip([words[0], 7, words[1]]) {
        memory.store(at + 32 + i * 8, word);
    }
    for (i, word) in (0..).zip(bytes.as_chunks().0) {
        memory.store(at + 56 + i * 8, u64::from_le_bytes(*word));
    }
    memory.store(at, u64::from(header(number, 3)));
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
        ring.drain(&memory, shape_of, |record| got.push((record.args, record.in_bytes))).unwrap();
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
fn arrays_have_all_of_their_bytes_after_the_words() {
    let memory = memory();
    let mut ring = GuestRing::new(&memory, 0, LEN);
    for _ in 0..LEN / 80 + 3 {
        write_bytes(&memory, 13, [8, 16], b"a text\0-\0zeros\0are\0in.it");
        write_bytes(&memory, 13, [8 | TORN, 16 | TORN], &[b'x'; 24]);
        write(&memory, 1, &[5]).unwrap();
        let mut got = Vec::new();
        ring.drain(&memory, shape_of, |record| got.push(record.in_bytes)).unwrap();
        let whole = [&b"a text"[..], b"\0zeros\0are\0in"].map(|bytes| Some(bytes.to_vec()));
        assert_eq!(got, [whole.to_vec(), vec![None, None], vec![]]);
    }
}

#[test]
fn arrays_of_another_length_are_told() {
    for words in [[8, 0], [8, 8], [8, 24], [8, 13], [16, 16], [8, u64::MAX - 7]] {
        let memory = memory();
        let mut ring = GuestRing::new(&memory, 0, LEN);
        write_bytes(&memory, 13, words, &[b'x'; 24]);
        let drained = ring.drain(&memory, shape_of, |record| panic!("{words:?}: {record:?}"));
        assert_eq!(drained, Err(CorruptRing), "{words:?}");
    }
}

#[test]
fn a_vcpu_that_writes_while_the_host_reads_loses_no_record() {
    // More than the ring holds.
    let records = if cfg!(miri) { LEN / 48 + 8 } else { 100_000 };
    let memory = HiddenMemory::new(&GuestRam::anonymous(&ram_ranges(1)).unwrap(), 1).unwrap();
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
