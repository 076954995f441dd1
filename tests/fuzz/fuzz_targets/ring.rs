//! A ring of records as a guest may have left it.
#![no_main]

use std::cell::RefCell;

use exoprobe_probes::detour::{GuestRing, Words};
use libfuzzer_sys::fuzz_target;

const LEN: u64 = 2048;
const WORD: usize = 8;

struct Memory(RefCell<Vec<u64>>);

impl Words for Memory {
    fn load(&self, offset: u64) -> u64 {
        self.0.borrow()[usize::try_from(offset).unwrap() / WORD]
    }

    fn store(&self, offset: u64, word: u64) {
        self.0.borrow_mut()[usize::try_from(offset).unwrap() / WORD] = word;
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<(), u64> {
        let now = self.load(offset);
        if now != current {
            return Err(now);
        }
        self.store(offset, new);
        Ok(())
    }
}

fuzz_target!(|data: &[u8]| {
    let words = usize::try_from(GuestRing::bytes(LEN)).unwrap() / WORD;
    let memory = Memory(RefCell::new(vec![0; words]));
    let mut ring = GuestRing::new(&memory, 0, LEN);
    // Several times, as the guest may go on meanwhile.
    for data in data.chunks(words * WORD) {
        for (word, bytes) in memory.0.borrow_mut().iter_mut().zip(data.chunks_exact(WORD)) {
            *word ^= u64::from_le_bytes(bytes.try_into().unwrap());
        }
        let mut taken = 0;
        let drained = ring.drain(
            &memory,
            |number| Some(usize::from(number % 130)),
            |record| {
                assert_eq!(record.args.len(), usize::from(record.number % 130).min(129));
                taken += 1;
            },
        );
        assert!(taken <= LEN / 32, "{taken} records of {LEN} bytes");
        if drained.is_err() {
            assert_eq!((memory.load(0), memory.load(8)), (0, LEN), "it goes on, empty");
        }
    }
});
