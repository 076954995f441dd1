//! Calls that return probes follow, from entry to return.
//!
//! In the mode `trampoline` each followed call has a trampoline of its own: an int3 in hidden
//! memory. Its address replaces the return address and identifies the call, so there is no table to
//! search and no lock. One vCPU at a time runs a stack, so only one vCPU touches its calls' frames.
//! A guest that breaks this (by jumping into trampolines) mixes up its own instances, and has no
//! other effect.

use std::sync::atomic::Ordering;

use exoprobe_guest::Gva;

use crate::engine::hit::free_indices::FreeIndices;
use crate::engine::probe::registered::KretprobeInstance;
use crate::engine::probe::registered::is_same_stack;
use crate::engine::probe::registered::recycle;
use crate::shared::{Cell, Parts, Real, Word};

const FREE: u64 = 0;
/// The calls that are followed by trampolines.
pub(crate) struct TrampolineTable<P: Parts = Real> {
    /// Address of the return address on the stack; [`FREE`] for unused frames.
    keys: Box<[P::Word]>,
    /// The return address. It is kept when the frame is free: a call that returns a second time
    /// still continues at its caller.
    returns: Box<[P::Word]>,
    newest: Box<[P::Cell<Box<KretprobeInstance>>]>,
    free: FreeIndices<P::Word>,
}

impl<P: Parts> TrampolineTable<P> {
    /// Makes `count` frames, one for each trampoline.
    pub(crate) fn new(count: usize) -> Self {
        let words = || (0..count).map(|_| P::Word::new(FREE)).collect();
        let newest = (0..count).map(|_| P::Cell::new()).collect();
        Self { keys: words(), returns: words(), newest, free: FreeIndices::new(count) }
    }

    /// Frames in use.
    pub(crate) fn active(&self) -> usize {
        self.free.taken()
    }

    /// Takes a frame for a call that is not followed yet.
    pub(crate) fn claim(&self, ret_addr: Gva) -> Option<usize> {
        let index = self.free.take()?;
        self.returns[index].store(ret_addr.0, Ordering::Relaxed);
        Some(index)
    }

    /// Undoes [`Self::claim`].
    pub(crate) fn unclaim(&self, index: usize) {
        self.free.give_back(index);
    }

    /// Begins a call: its return address was at `key`, and its trampoline is written there.
    pub(crate) fn begin(&self, index: usize, key: Gva) {
        self.keys[index].store(key.0, Ordering::Release);
    }

    /// Adds an instance to a call.
    pub(crate) fn add(&self, index: usize, mut active: Box<KretprobeInstance>) {
        active.next = self.newest[index].take();
        self.newest[index].store(Some(active));
    }

    /// Returns true if this trampoline is that of the call whose return address was at `key`.
    pub(crate) fn is_at(&self, index: usize, key: Gva) -> bool {
        self.keys.get(index).is_some_and(|k| k.load(Ordering::Acquire) == key.0)
    }

    /// The return address of a trampoline's call; `None` if the trampoline was never used.
    pub(crate) fn return_address(&self, index: usize) -> Option<Gva> {
        let found = self.returns.get(index)?.load(Ordering::Relaxed);
        (found != FREE).then_some(Gva(found))
    }

    /// Ends a call. Returns its instances, the newest first; none if the call has ended already.
    pub(crate) fn end(&self, index: usize) -> Chain {
        // Only one vCPU can end it, even if a guest returns twice at the same time.
        if self.keys[index].swap(FREE, Ordering::AcqRel) == FREE {
            return Chain(None);
        }
        let newest = self.newest[index].take();
        self.free.give_back(index);
        Chain(newest)
    }

    /// Recycles the instances of all calls on the stack of a task that ends.
    pub(crate) fn end_stack(&self, rsp: Gva) {
        if self.active() == 0 {
            return;
        }
        for (index, key) in self.keys.iter().enumerate() {
            let key = key.load(Ordering::Acquire);
            if key != FREE && is_same_stack(Gva(key), rsp) {
                self.end(index).for_each(recycle);
            }
        }
    }

    /// Drops all calls: the guest's memory is void. Recycles instances of registered probes.
    pub(crate) fn clear(&self) {
        for (index, key) in self.keys.iter().enumerate() {
            if key.load(Ordering::Acquire) != FREE {
                self.end(index).for_each(recycle);
            }
            self.returns[index].store(FREE, Ordering::Relaxed);
        }
    }
}

/// Instances of one call, the newest first.
pub(crate) struct Chain(Option<Box<KretprobeInstance>>);

impl Iterator for Chain {
    type Item = Box<KretprobeInstance>;
    fn next(&mut self) -> Option<Box<KretprobeInstance>> {
        let mut first = self.0.take()?;
        self.0 = first.next.take();
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_of_very_many_probes_is_dropped_on_a_small_stack() {
        const STACK: usize = 256 << 10;
        let drops = || {
            let frames = TrampolineTable::<Real>::new(1);
            let index = frames.claim(Gva(1)).unwrap();
            (0..200_000).for_each(|_| frames.add(index, Box::new(KretprobeInstance::new(0))));
            drop(frames);
        };
        std::thread::Builder::new().stack_size(STACK).spawn(drops).unwrap().join().unwrap();
    }
}
