//! A pool of return probes' instances that the guest writes into while the host uses it.

use exoprobe_guest::Gva;
use exoprobe_probes::detour::{FollowedCall, PlainWords, Pool, PoolMemory, Words};

const WORD: usize = 8;
const POOL: Pool = Pool { at: Gva(0xffff_ffff_ff30_0000), capacity: 5, kept: 2 };
const STUBS: Gva = Gva(0xffff_ffff_ff28_0000);

pub(crate) fn run(data: &[u8]) {
    let bytes = Pool::bytes(POOL.capacity, POOL.kept);
    let words = usize::try_from(bytes).unwrap() / WORD;
    let memory = PlainWords::new(bytes);
    let pool = PoolMemory::new(&memory, 0, POOL, STUBS);
    for step in data.chunks_exact(2 + WORD) {
        let word = u64::from_le_bytes(*step[2..].first_chunk().unwrap());
        match step[0] % 4 {
            0 => memory.store((usize::from(step[1]) % words * WORD) as u64, word),
            1 => {
                let call =
                    FollowedCall { key: Gva(word), return_to: Gva(1), shows: Gva(2), entered: 3 };
                let claimed = pool.claim(&memory, call);
                assert!(claimed.is_none_or(|index| index < POOL.capacity));
                if let Some(index) = claimed {
                    pool.keep(&memory, index, [Some(word), None].into_iter());
                    assert_eq!(pool.kept(&memory, index).collect::<Vec<_>>(), [Some(word), None]);
                }
            }
            2 => pool.release(&memory, u32::from(step[1]) % POOL.capacity),
            _ => pool.release_where(&memory, |key| key.0 & 1 == word & 1),
        }
        assert!(pool.active(&memory) <= POOL.capacity);
        assert!(pool.at(Gva(word)).is_none_or(|index| index < POOL.capacity));
        assert!(pool.of_stub(Gva(word)).is_none_or(|index| index < POOL.capacity));
    }
}
