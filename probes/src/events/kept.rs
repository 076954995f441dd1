//! The hits that a store keeps: bounded in number and in bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::hit::Hit;
use super::origin::Origin;
use super::ring::Record;
use crate::definition::Argument;

/// What the allocator adds to each allocation, about, in bytes.
const ALLOCATION: usize = 16;

/// Bounds of an event store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLimits {
    /// Most events, at least 1.
    pub count: usize,
    /// Most memory that they take, in bytes, with what events of a probe share. The newest event is kept
    /// whatever it takes.
    pub bytes: usize,
}

impl EventLimits {
    /// Events kept for readers unless chosen otherwise.
    pub const DEFAULT_COUNT: usize = 1 << 16;
    /// Memory for them, in MiB, unless chosen otherwise.
    pub const DEFAULT_MIB: usize = 64;
}

impl Default for EventLimits {
    fn default() -> Self {
        Self { count: Self::DEFAULT_COUNT, bytes: Self::DEFAULT_MIB << 20 }
    }
}

/// The last hits. The oldest go when there are too many, or they take too much.
pub(super) struct KeptHits {
    hits: VecDeque<Hit>,
    limits: EventLimits,
    /// What the hits and their origins take.
    bytes: usize,
    /// Hits by the address of their origin.
    origins: FxHashMap<usize, usize>,
}

impl KeptHits {
    pub(super) fn new(limits: EventLimits) -> Self {
        let limits = EventLimits { count: limits.count.max(1), ..limits };
        Self { hits: VecDeque::new(), limits, bytes: 0, origins: FxHashMap::default() }
    }

    pub(super) fn all(&self) -> &VecDeque<Hit> {
        &self.hits
    }

    pub(super) fn push(&mut self, hit: Hit) {
        let hits = self.origins.entry(key(&hit.origin)).or_default();
        *hits += 1;
        if *hits == 1 {
            self.bytes += hit.origin.bytes();
        }
        self.bytes += hit.bytes();
        self.hits.push_back(hit);
        while self.hits.len() > self.limits.count
            || (self.bytes > self.limits.bytes && self.hits.len() > 1)
        {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some(hit) = self.hits.pop_front() else { return };
        self.bytes -= hit.bytes();
        let key = key(&hit.origin);
        let Some(hits) = self.origins.get_mut(&key) else { return };
        *hits -= 1;
        if *hits == 0 {
            self.origins.remove(&key);
            self.bytes -= hit.origin.bytes();
        }
    }

    /// Forgets all, and frees their memory.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.limits);
    }
}

/// Identifies an origin while one of its hits is kept.
fn key(origin: &Arc<Origin>) -> usize {
    Arc::as_ptr(origin).addr()
}

impl Hit {
    /// Memory that it takes, in bytes, without its origin.
    pub(super) fn bytes(&self) -> usize {
        let Record { args, stack, text, .. } = &self.record;
        size_of::<Self>()
            + args.len() * size_of::<Option<u64>>()
            + size_of_val(stack.as_slice())
            + text.len()
            + 3 * ALLOCATION
    }
}

impl Origin {
    /// Memory that it takes, in bytes, about. Its texts and its symbols are the probe's and the kernel's.
    fn bytes(&self) -> usize {
        let names: usize = self.fields.iter().map(|field| field.name.len() + ALLOCATION).sum();
        size_of::<Self>() + self.fields.len() * 2 * size_of::<Argument>() + names + 2 * ALLOCATION
    }
}
