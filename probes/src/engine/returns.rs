//! Calls that return probes follow, from entry to return.
//!
//! In the mode `trampoline` each followed call has a trampoline of its own: an int3 in hidden memory
//! whose address, put where the return address was, tells the call. So there is no table to search and
//! no lock: a stack is run by one vCPU at a time, and so its calls' frames are touched by one. A guest
//! that breaks this (by jumping into trampolines) gets its own instances mixed up, and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::atomic::AtomicCell;
use exoprobe_vmm::{GuestTime, Gva};

use super::handlers::Instance;
use super::probe::{Probe, count};
use super::values::Kept;

/// Bytes of a kernel stack and its alignment (THREAD_SIZE of x86-64; more only under KASAN).
const THREAD_SIZE: u64 = 16 << 10;
/// What a return pops.
pub(crate) const RETURN_ADDRESS_LEN: u64 = 8;
const FREE: u64 = 0;
/// Instances of a probe that are kept while no call is in them.
const SPARE_MOST: usize = 16;

/// An instance of a return probe, spare or in use.
pub(crate) struct Active {
    pub(crate) instance: Instance,
    /// Arguments of the call, for the probe's record.
    pub(super) kept: Kept,
    /// Its probe while in use: instances outlive their probe's registration.
    pub(crate) probe: Option<Arc<Probe>>,
    /// The one that was made before it, of the same call.
    next: Option<Box<Active>>,
}

impl Active {
    pub(crate) fn new(data_size: usize) -> Self {
        let data = vec![0; data_size].into();
        let instance = Instance { ret_addr: Gva(0), entered: GuestTime(0), data };
        Self { instance, kept: Kept::default(), probe: None, next: None }
    }

    pub(crate) fn begin(&mut self, ret_addr: Gva, entered: GuestTime) {
        self.instance.data.fill(0);
        (self.instance.ret_addr, self.instance.entered) = (ret_addr, entered);
    }
}

impl Drop for Active {
    /// Drops the instances of the same call one by one: a call may have one of each of 100,000 probes, and
    /// a drop within a drop for each would overflow the stack.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(mut active) = next {
            next = active.next.take();
        }
    }
}

/// Gives an instance back to its probe.
pub(crate) fn recycle(mut active: Box<Active>) {
    if let Some(probe) = active.probe.take()
        && let Some(returns) = probe.returns()
    {
        returns.instances.give_back(active);
    }
}

/// The instances of a return probe. They are made when calls need them, and most of those that are not in use any
/// more are freed: what a probe costs goes by the calls under way, not by its maxactive.
pub(crate) struct Instances {
    /// How many may be in use: its maxactive.
    most: u32,
    /// Bytes that each has for its handlers.
    data_size: usize,
    in_use: AtomicU32,
    /// Some that are not in use, so that a hit seldom allocates.
    spare: ArrayQueue<Box<Active>>,
}

impl Instances {
    pub(crate) fn new(most: u32, data_size: usize) -> Self {
        let spare = usize::try_from(most).map_or(SPARE_MOST, |most| most.clamp(1, SPARE_MOST));
        Self { most, data_size, in_use: AtomicU32::new(0), spare: ArrayQueue::new(spare) }
    }

    /// One for a call; `None` when all are in use.
    pub(crate) fn take(&self) -> Option<Box<Active>> {
        let one_more = |in_use| (in_use < self.most).then_some(in_use + 1);
        self.in_use.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(self.spare.pop().unwrap_or_else(|| Box::new(Active::new(self.data_size))))
    }

    /// The end of what [`Self::take`] began. Frees the instance where enough are spare.
    fn give_back(&self, active: Box<Active>) {
        // Before the count goes down, so that the next call finds it.
        let _ = self.spare.push(active);
        self.in_use.fetch_sub(1, Ordering::AcqRel);
    }

    /// How many are in use.
    pub(crate) fn in_use(&self) -> u32 {
        self.in_use.load(Ordering::Acquire)
    }
}

/// A call in use of a probe in the mode `site`.
#[derive(Default)]
pub(crate) struct Watch {
    /// Where its return address is on the stack; [`FREE`] otherwise.
    key: AtomicU64,
    active: AtomicCell<Option<Box<Active>>>,
}

/// Follows a call by its place on the stack. One that was there before has ended unseen, or is entered
/// anew by a jump from what it jumped to: it is missed.
pub(crate) fn watch(watched: &[Watch], key: Gva, active: Box<Active>) -> Result<(), Box<Active>> {
    if let Some(stale) = unwatch(watched, key) {
        stale.probe.iter().for_each(|probe| count(&probe.books.nmissed));
        recycle(stale);
    }
    let claimed = watched.iter().find(|watch| {
        watch.key.compare_exchange(FREE, key.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    });
    match claimed {
        Some(watch) => {
            watch.active.store(Some(active));
            Ok(())
        }
        None => Err(active),
    }
}

/// Ends the watch over the call whose return address was at `key`.
pub(crate) fn unwatch(watched: &[Watch], key: Gva) -> Option<Box<Active>> {
    let watch = watched.iter().find(|watch| watch.key.load(Ordering::Acquire) == key.0)?;
    let active = watch.active.take();
    watch.key.store(FREE, Ordering::Release);
    active
}

/// Ends the watch over all calls.
pub(crate) fn unwatch_all(watched: &[Watch]) {
    for watch in watched {
        watch.active.take().into_iter().for_each(recycle);
        watch.key.store(FREE, Ordering::Release);
    }
}

/// Ends the watch over all calls on one stack.
pub(crate) fn unwatch_stack(watched: &[Watch], rsp: Gva) {
    for watch in watched {
        let key = Gva(watch.key.load(Ordering::Acquire));
        if key.0 != FREE
            && is_same_stack(key, rsp)
            && let Some(active) = unwatch(watched, key)
        {
            recycle(active);
        }
    }
}

pub(super) fn is_same_stack(a: Gva, b: Gva) -> bool {
    a.0 / THREAD_SIZE == b.0 / THREAD_SIZE
}

/// The calls that are followed by trampolines.
pub(crate) struct Frames {
    /// Where the return address was on the stack; [`FREE`] for frames that are not in use.
    keys: Box<[AtomicU64]>,
    /// The return address itself. It stays when the frame is free: a call that returns a second time
    /// still finds its way.
    returns: Box<[AtomicU64]>,
    newest: Box<[AtomicCell<Option<Box<Active>>>]>,
    /// First in, first out, so that a frame rests as long as can be.
    free: ArrayQueue<usize>,
}

impl Frames {
    /// Frames for so many trampolines.
    pub(crate) fn new(count: usize) -> Self {
        let free = ArrayQueue::new(count.max(1));
        for index in 0..count {
            // There is room for each.
            let _ = free.push(index);
        }
        let words = || (0..count).map(|_| AtomicU64::new(FREE)).collect();
        let newest = (0..count).map(|_| AtomicCell::new(None)).collect();
        Self { keys: words(), returns: words(), newest, free }
    }

    /// Frames in use.
    pub(crate) fn active(&self) -> usize {
        self.keys.len() - self.free.len().min(self.keys.len())
    }

    /// A frame for a call that is not followed yet.
    pub(crate) fn claim(&self, ret_addr: Gva) -> Option<usize> {
        let index = self.free.pop()?;
        self.returns[index].store(ret_addr.0, Ordering::Relaxed);
        Some(index)
    }

    /// Undoes [`Self::claim`].
    pub(crate) fn unclaim(&self, index: usize) {
        let _ = self.free.push(index);
    }

    /// The call's return address is at `key`, and its trampoline is in its place.
    pub(crate) fn begin(&self, index: usize, key: Gva) {
        self.keys[index].store(key.0, Ordering::Release);
    }

    /// Adds an instance to a call.
    pub(crate) fn add(&self, index: usize, mut active: Box<Active>) {
        active.next = self.newest[index].take();
        self.newest[index].store(Some(active));
    }

    /// Is this trampoline that of the call whose return address was at `key`?
    pub(crate) fn is_at(&self, index: usize, key: Gva) -> bool {
        self.keys.get(index).is_some_and(|k| k.load(Ordering::Acquire) == key.0)
    }

    /// Where a trampoline's call returns to; `None` when it never had one.
    pub(crate) fn return_address(&self, index: usize) -> Option<Gva> {
        let found = self.returns.get(index)?.load(Ordering::Relaxed);
        (found != FREE).then_some(Gva(found))
    }

    /// Ends a call: its instances, the newest first; none when it has ended already.
    pub(crate) fn end(&self, index: usize) -> Chain {
        // Only one can end it, even where a guest returns twice at once.
        if self.keys[index].swap(FREE, Ordering::AcqRel) == FREE {
            return Chain(None);
        }
        let newest = self.newest[index].take();
        let _ = self.free.push(index);
        Chain(newest)
    }

    /// Gives back the instances of all calls on the stack of a task that ends.
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

    /// Forgets everything: the guest's memory is gone. Instances of registered probes go home.
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
pub(crate) struct Chain(Option<Box<Active>>);

impl Iterator for Chain {
    type Item = Box<Active>;
    fn next(&mut self) -> Option<Box<Active>> {
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
            let frames = Frames::new(1);
            let index = frames.claim(Gva(1)).unwrap();
            (0..200_000).for_each(|_| frames.add(index, Box::new(Active::new(0))));
            drop(frames);
        };
        std::thread::Builder::new().stack_size(STACK).spawn(drops).unwrap().join().unwrap();
    }

    #[test]
    fn instances_are_made_for_calls_and_never_more_than_maxactive() {
        const MOST: u32 = 4096;
        let instances = Instances::new(MOST, 8);
        assert_eq!((instances.in_use(), instances.spare.len()), (0, 0), "none before a call");
        let taken: Vec<_> = std::iter::from_fn(|| instances.take()).collect();
        assert_eq!((taken.len(), instances.in_use()), (4096, MOST));
        assert!(instances.take().is_none());
        taken.into_iter().for_each(|active| instances.give_back(active));
        assert_eq!((instances.in_use(), instances.spare.len()), (0, SPARE_MOST));
        let few = Instances::new(1, 0);
        let one = few.take().unwrap();
        assert!(few.take().is_none());
        few.give_back(one);
        assert!(few.take().is_some());
    }

    #[test]
    fn vcpus_never_have_more_than_maxactive() {
        let instances = Instances::new(3, 0);
        let most = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let Some(active) = instances.take() else { continue };
                        most.fetch_max(instances.in_use(), Ordering::Relaxed);
                        instances.give_back(active);
                    }
                });
            }
        });
        assert_eq!(instances.in_use(), 0);
        assert!(most.into_inner() <= 3);
    }
}
