//! Instances of return probes whose calls are followed in the guest.
//!
//! A pool is in hidden memory that the guest's kernel can write. The host checks everything that it
//! reads there; a guest that changes it mixes up its own calls. Free instances form a list. One
//! locked exchange, with a count of changes, replaces its head, so that no code waits for an
//! interrupt or for another CPU.
//!
//! | at | what |
//! |---|---|
//! | 0 | head: lower half of the first free instance's address, or 0; above it, a change count |
//! | 8 | number of calls missed because no instance was free |
//! | 16 | whether returns are counted |
//! | 64 | instances |

use exoprobe_guest::Gva;

use super::ring::Words;

/// Offsets in a pool.
const HEAD: u64 = 0;
/// See [`HEAD`].
const MISSED: u64 = 8;
/// See [`HEAD`].
const ENABLED: u64 = 16;
const INSTANCES: u64 = 64;
/// Bytes of an instance that keeps no words of the entry.
const INSTANCE: u64 = 56;
/// Offsets in an instance: the next free one's address, its lower half;
pub(super) const NEXT: i32 = 0;
/// where its call's return address was, 0 while there is none;
pub(super) const KEY: i32 = 8;
/// where its stub goes on to;
pub(super) const RETURN: i32 = 16;
/// where the call returns to, also when that is a trampoline's by now;
pub(super) const SHOWS: i32 = 24;
/// its stub's address;
pub(super) const STUB: i32 = 32;
/// its own, the lower half;
pub(super) const SELF: i32 = 40;
/// and the guest's time-stamp counter when the call began.
pub(super) const ENTERED: i32 = 48;
/// If it keeps words: a bit for each that could not be read;
pub(super) const FAULTS: i32 = 56;
/// and the words.
pub(super) const KEPT: i32 = 64;
/// Bytes of a word.
const WORD: i32 = 8;
/// Bytes of a stub: push imm32, jmp rel32.
pub const STUB_LEN: usize = 10;

/// A pool's place in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pool {
    /// Its address, in the last 2 GiB.
    pub at: Gva,
    /// Instances, at least one.
    pub capacity: u32,
    /// Words of a call's entry that each instance keeps for the return, at most 64.
    pub kept: u16,
}

impl Pool {
    /// Bytes of a pool of so many instances, each of which keeps so many words.
    #[must_use]
    pub const fn bytes(capacity: u32, kept: u16) -> u64 {
        INSTANCES + capacity as u64 * instance_bytes(kept)
    }

    /// Address of an instance.
    pub(super) fn instance(&self, index: u32) -> Gva {
        self.at.wrapping_add(self.offset(index))
    }

    /// Offset of an instance.
    fn offset(&self, index: u32) -> u64 {
        INSTANCES + u64::from(index) * instance_bytes(self.kept)
    }

    /// Address of the list's head.
    pub(super) fn head(&self) -> Gva {
        self.at.wrapping_add(HEAD)
    }

    /// Address of what says whether returns are counted.
    pub(super) fn enabled(&self) -> Gva {
        self.at.wrapping_add(ENABLED)
    }

    /// Address of the counter of missed calls.
    pub(super) fn missed(&self) -> Gva {
        self.at.wrapping_add(MISSED)
    }
}

const fn instance_bytes(kept: u16) -> u64 {
    match kept {
        0 => INSTANCE,
        _ => KEPT.unsigned_abs() as u64 + kept as u64 * WORD.unsigned_abs() as u64,
    }
}

/// Offset of a kept word in an instance.
pub(super) fn kept_word(index: u16) -> i32 {
    KEPT + i32::from(index) * WORD
}

const LOW: u64 = 0xffff_ffff;

/// The lower half of an address.
fn low(address: Gva) -> u64 {
    address.0 & LOW
}

/// The address with such a lower half, as the guest's code extends it.
fn extended(head: u64) -> Gva {
    let half = u32::try_from(head & LOW).expect("32 bits").cast_signed();
    Gva(i64::from(half).cast_unsigned())
}

/// A call that is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowedCall {
    /// Where its return address is on the stack.
    pub key: Gva,
    /// Where its stub goes on to.
    pub return_to: Gva,
    /// Where it returns to.
    pub shows: Gva,
    /// The guest's time-stamp counter when it began.
    pub entered: u64,
}

/// The host's side of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolMemory {
    /// Where it is in the guest.
    pub pool: Pool,
    /// Its offset in the memory.
    base: u64,
    /// The first stub's address.
    stubs: Gva,
}

impl PoolMemory {
    /// A pool at `base` of the memory, all of it free, and its returns not counted yet.
    pub fn new(words: &impl Words, base: u64, pool: Pool, stubs: Gva) -> Self {
        debug_assert!(pool.kept <= 64, "a bit each");
        let made = Self { pool, base, stubs };
        words.store(base + MISSED, 0);
        made.set_enabled(words, false);
        for index in 0..pool.capacity {
            let at = base + pool.offset(index);
            let next = if index + 1 < pool.capacity { low(pool.instance(index + 1)) } else { 0 };
            let fields = [
                (NEXT, next),
                (KEY, 0),
                (RETURN, 0),
                (SHOWS, 0),
                (STUB, made.stub(index).0),
                (SELF, low(pool.instance(index))),
                (ENTERED, 0),
            ];
            for (field, word) in fields {
                words.store(at + u64::from(field.unsigned_abs()), word);
            }
        }
        words.store(base + HEAD, low(pool.instance(0)));
        made
    }

    /// Address of an instance's stub.
    #[must_use]
    pub fn stub(&self, index: u32) -> Gva {
        self.stubs.wrapping_add(u64::from(index) * STUB_LEN as u64)
    }

    /// The instance whose stub is at `at`.
    #[must_use]
    pub fn of_stub(&self, at: Gva) -> Option<u32> {
        let offset = at.0.wrapping_sub(self.stubs.0);
        let index = u32::try_from(offset / STUB_LEN as u64).ok()?;
        (index < self.pool.capacity && offset.is_multiple_of(STUB_LEN as u64)).then_some(index)
    }

    /// The instance at an address.
    #[must_use]
    pub fn at(&self, address: Gva) -> Option<u32> {
        let offset = address.0.wrapping_sub(self.pool.at.0).checked_sub(INSTANCES)?;
        let bytes = instance_bytes(self.pool.kept);
        let index = u32::try_from(offset / bytes).ok()?;
        (index < self.pool.capacity && offset.is_multiple_of(bytes)).then_some(index)
    }

    fn field(&self, index: u32, field: i32) -> u64 {
        self.base + self.pool.offset(index) + u64::from(field.unsigned_abs())
    }

    /// Whether returns are counted.
    pub fn set_enabled(&self, words: &impl Words, on: bool) {
        words.store(self.base + ENABLED, on.into());
    }

    /// Calls that detours have missed so far.
    #[must_use]
    pub fn missed(&self, words: &impl Words) -> u64 {
        words.load(self.base + MISSED)
    }

    /// Instances in use.
    #[must_use]
    pub fn active(&self, words: &impl Words) -> u32 {
        let used = |index: &u32| words.load(self.field(*index, KEY)) != 0;
        let used = (0..self.pool.capacity).filter(used).count();
        u32::try_from(used).expect("no more than there are")
    }

    /// The call that an instance follows, as the guest has it; `None` while it is free.
    #[must_use]
    pub fn call(&self, words: &impl Words, index: u32) -> Option<FollowedCall> {
        let word = |field| words.load(self.field(index, field));
        let [key, return_to, shows] = [KEY, RETURN, SHOWS].map(|field| Gva(word(field)));
        let call = FollowedCall { key, return_to, shows, entered: word(ENTERED) };
        (call.key != Gva(0)).then_some(call)
    }

    /// Where an instance's stub goes on to, or went last.
    #[must_use]
    pub fn return_to(&self, words: &impl Words, index: u32) -> Gva {
        Gva(words.load(self.field(index, RETURN)))
    }

    /// Takes a free instance for a call; `None` when all are in use.
    pub fn claim(&self, words: &impl Words, call: FollowedCall) -> Option<u32> {
        let head = self.base + HEAD;
        let mut found = words.load(head);
        // The guest may have made a ring of the list: each try looks at one instance.
        let index = loop {
            let index = (found & LOW != 0).then(|| self.at(extended(found))).flatten()?;
            let next = words.load(self.field(index, NEXT)) & LOW;
            match words.compare_exchange(head, found, counted(found) | next) {
                Ok(()) => break index,
                Err(now) => found = now,
            }
        };
        let fields = [
            (RETURN, call.return_to.0),
            (SHOWS, call.shows.0),
            (ENTERED, call.entered),
            (KEY, call.key.0),
        ];
        fields.into_iter().for_each(|(field, word)| words.store(self.field(index, field), word));
        Some(index)
    }

    /// Stores the words of a call's entry in its instance; `None` is one that could not be read.
    pub fn keep(&self, words: &impl Words, index: u32, kept: impl Iterator<Item = Option<u64>>) {
        let mut faults = 0;
        for (at, word) in (0..self.pool.kept).zip(kept) {
            faults |= u64::from(word.is_none()) << at;
            words.store(self.field(index, kept_word(at)), word.unwrap_or_default());
        }
        if self.pool.kept > 0 {
            words.store(self.field(index, FAULTS), faults);
        }
    }

    /// The words of a call's entry that its instance has, as the guest has them.
    pub fn kept(&self, words: &impl Words, index: u32) -> impl Iterator<Item = Option<u64>> {
        let faults = if self.pool.kept > 0 { words.load(self.field(index, FAULTS)) } else { 0 };
        (0..self.pool.kept).map(move |at| {
            let word = words.load(self.field(index, kept_word(at)));
            (faults >> at & 1 == 0).then_some(word)
        })
    }

    /// Gives an instance back.
    pub fn release(&self, words: &impl Words, index: u32) {
        let head = self.base + HEAD;
        words.store(self.field(index, KEY), 0);
        let mut found = words.load(head);
        loop {
            words.store(self.field(index, NEXT), found & LOW);
            let own = low(self.pool.instance(index));
            match words.compare_exchange(head, found, counted(found) | own) {
                Ok(()) => break,
                Err(now) => found = now,
            }
        }
    }

    /// Gives back the instances of calls that have ended unseen.
    pub fn release_where(&self, words: &impl Words, has_ended: impl Fn(Gva) -> bool) {
        for index in 0..self.pool.capacity {
            if self.call(words, index).is_some_and(|call| has_ended(call.key)) {
                self.release(words, index);
            }
        }
    }
}

/// The next number of changes, in its place above an address.
fn counted(head: u64) -> u64 {
    ((head >> 32).wrapping_add(1)) << 32
}

#[cfg(test)]
mod tests {
    use exoprobe_guest::memory::ram_ranges;
    use exoprobe_guest::{GuestRam, HiddenMemory};

    use super::super::PlainWords;
    use super::*;

    const POOL: Pool = Pool { at: Gva(0xffff_ffff_ff30_0000), capacity: 3, kept: 0 };
    const STUBS: Gva = Gva(0xffff_ffff_ff28_0000);

    fn call(key: u64) -> FollowedCall {
        FollowedCall {
            key: Gva(key),
            return_to: Gva(key + 1),
            shows: Gva(key + 2),
            entered: key + 3,
        }
    }

    fn made() -> (PlainWords, PoolMemory) {
        let memory = PlainWords::new(128 + Pool::bytes(POOL.capacity, POOL.kept));
        let pool = PoolMemory::new(&memory, 128, POOL, STUBS);
        (memory, pool)
    }

    #[test]
    fn each_instance_is_given_once_and_comes_back() {
        let (memory, pool) = made();
        let claim = |key| pool.claim(&memory, call(key));
        assert_eq!([claim(8), claim(16), claim(24), claim(32)], [Some(0), Some(1), Some(2), None]);
        assert_eq!((pool.active(&memory), pool.call(&memory, 1)), (3, Some(call(16))));
        pool.release(&memory, 1);
        assert_eq!((pool.active(&memory), pool.call(&memory, 1)), (2, None));
        assert_eq!(pool.return_to(&memory, 1), Gva(17), "for one that returns twice");
        assert_eq!((claim(40), claim(48)), (Some(1), None));
        pool.release_where(&memory, |key| key.0 < 30);
        assert_eq!(pool.active(&memory), 1);
        assert!(claim(1).is_some() && claim(2).is_some() && claim(3).is_none());
        assert_eq!(memory.load(128) >> 32, 9, "changes are counted");
    }

    #[test]
    fn stubs_and_instances_are_told_by_their_addresses() {
        let (_, pool) = made();
        for index in 0..3 {
            assert_eq!(pool.of_stub(pool.stub(index)), Some(index));
            assert_eq!(pool.at(POOL.instance(index)), Some(index));
        }
        let near = [STUBS.0 - 10, STUBS.0 + 1, STUBS.0 + 30];
        assert!(near.into_iter().all(|at| pool.of_stub(Gva(at)).is_none()));
        let near = [POOL.at.0, POOL.at.0 + 63, POOL.at.0 + 65, POOL.at.0 + 64 + 3 * 56];
        assert!(near.into_iter().all(|at| pool.at(Gva(at)).is_none()));
    }

    #[test]
    fn words_of_the_entry_are_kept_beside_their_call() {
        let pool = Pool { kept: 3, ..POOL };
        let memory = PlainWords::new(128 + Pool::bytes(pool.capacity, pool.kept));
        let pool = PoolMemory::new(&memory, 128, pool, STUBS);
        let kept = |index| pool.kept(&memory, index).collect::<Vec<_>>();
        let all = [1_u64, 2, 3].map(|n| {
            let index = pool.claim(&memory, call(n * 8)).unwrap();
            pool.keep(&memory, index, [Some(n), None, Some(!n)].into_iter());
            index
        });
        for (n, index) in (1..).zip(all) {
            assert_eq!(pool.call(&memory, index), Some(call(n * 8)));
            assert_eq!(kept(index), [Some(n), None, Some(!n)]);
            assert_eq!(pool.at(pool.pool.instance(index)), Some(index));
        }
        pool.release(&memory, all[1]);
        assert_eq!(pool.claim(&memory, call(8)), Some(all[1]));
        pool.keep(&memory, all[1], [Some(7); 3].into_iter());
        assert_eq!(kept(all[1]), [Some(7); 3]);
        assert_eq!(kept(all[2]), [Some(3), None, Some(!3)]);
    }

    #[test]
    fn what_the_guest_writes_into_a_pool_stops_nobody() {
        for head in [u64::MAX, 1, low(POOL.instance(2)) + 1, low(POOL.at)] {
            let (memory, pool) = made();
            memory.store(128, head);
            assert_eq!(pool.claim(&memory, call(8)), None);
        }
        // A list that leads back to itself gives the same instance again and again.
        let (memory, pool) = made();
        memory.store(128 + 64, low(POOL.instance(0)));
        assert_eq!([0; 9].map(|_| pool.claim(&memory, call(8))), [Some(0); 9]);
        pool.release_where(&memory, |_| true);
    }
    #[test]
    fn threads_that_claim_and_release_in_hidden_memory_never_share_an_instance() {
        const VCPUS: u64 = 3;
        let rounds = if cfg!(miri) { 8 } else { 20_000 };
        let memory = &HiddenMemory::new(&GuestRam::anonymous(&ram_ranges(1)).unwrap(), 1).unwrap();
        let pool = &PoolMemory::new(memory, 128, Pool { capacity: 2, ..POOL }, STUBS);
        std::thread::scope(|scope| {
            for vcpu in 1..=VCPUS {
                scope.spawn(move || {
                    for round in 0..rounds {
                        let own = call(vcpu << 32 | round << 3);
                        let Some(index) = pool.claim(memory, own) else { continue };
                        std::thread::yield_now();
                        assert_eq!(pool.call(memory, index), Some(own));
                        pool.release(memory, index);
                    }
                });
            }
        });
        assert_eq!(pool.active(memory), 0);
        let all = [8, 16, 24].map(|key| pool.claim(memory, call(key)).is_some());
        assert_eq!(all, [true, true, false], "none was lost");
    }
}
