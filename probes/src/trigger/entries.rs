//! Entries of histograms.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::budget::Share;

/// One key of an entry, as hits are counted by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HistogramKey {
    /// A number: with `.log2` the power, with `.buckets=N` the first of its bucket.
    Number(u64),
    /// The same, of a signed number.
    Signed(i64),
    /// A task's name, and its number.
    Task(String, u32),
    /// Text of the guest's.
    Text(String),
    /// Addresses of a back-trace, the probed place first.
    Stack(Vec<u64>),
    /// It could not be read.
    Fault,
}

/// Sums of the hits of one key.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeySums {
    pub(crate) hits: u64,
    /// The sum of each value, modulo 2^64.
    pub(crate) sums: Vec<u64>,
}

/// The variables of entries; `None` if one is not set.
pub(super) type VariablesByKeys = HashMap<Box<[HistogramKey]>, Box<[Option<u64>]>>;

/// The entries of a histogram.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    /// Keys are shared with answers that show them.
    pub(crate) entries: HashMap<Arc<[HistogramKey]>, KeySums>,
    /// The variables of each entry by its keys, as those of other histograms are compared with
    /// them. Empty without variables.
    pub(super) variables: VariablesByKeys,
    pub(crate) hits: u64,
    /// Hits whose key had no room.
    pub(crate) dropped: u64,
    /// The memory that the entries may take.
    pub(super) _room: Option<Share>,
}

/// Entries of a histogram; those of one name share them.
pub(super) type Entries = Arc<Mutex<Counted>>;

pub(super) fn lock(entries: &Entries) -> MutexGuard<'_, Counted> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}
