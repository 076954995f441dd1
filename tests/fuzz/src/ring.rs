//! A ring of records as a guest may have left it.

use exoprobe_probes::detour::{GuestRing, InBytes, PlainWords, RecordShape, Words};

const LEN: u64 = 2048;
const WORD: usize = 8;

/// More than a record has.
const RECORD: usize = 1200;

/// The values of a block's records that are texts and arrays.
fn in_bytes(number: u16) -> &'static [InBytes] {
    match number % 130 {
        3.. if number >= 1 << 15 => {
            const { &[InBytes::text(0), InBytes { index: 1, array: Some(13) }, InBytes::text(2)] }
        }
        _ => &[],
    }
}

pub(crate) fn run(data: &[u8]) {
    let words = usize::try_from(GuestRing::bytes(LEN)).unwrap() / WORD;
    let memory = PlainWords::new(GuestRing::bytes(LEN));
    let mut ring = GuestRing::new(&memory, 0, LEN);
    // Several times, as the guest may go on meanwhile.
    for data in data.chunks(words * WORD) {
        for (offset, bytes) in (0..).step_by(WORD).zip(data.chunks_exact(WORD)) {
            let word = u64::from_le_bytes(bytes.try_into().unwrap());
            memory.store(offset, memory.load(offset) ^ word);
        }
        let mut taken = 0;
        let drained = ring.drain(
            &memory,
            |number| {
                let args = usize::from(number % 130);
                Some(RecordShape { args, in_bytes: in_bytes(number) })
            },
            |record| {
                assert_eq!(record.args.len(), usize::from(record.number % 130).min(129));
                assert_eq!(record.in_bytes.len(), in_bytes(record.number).len());
                let bytes: usize = record.in_bytes.iter().flatten().map(Vec::len).sum();
                assert!(bytes <= RECORD, "{bytes} bytes of texts and arrays");
                taken += 1;
            },
        );
        assert!(taken <= LEN / 32, "{taken} records of {LEN} bytes");
        if drained.is_err() {
            assert_eq!((memory.load(0), memory.load(8)), (0, LEN), "it goes on, empty");
        }
    }
}
