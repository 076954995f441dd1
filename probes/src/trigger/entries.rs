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

/// A value of a hit that is kept: of a variable, of a saved field or of a synthetic event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SavedValue {
    /// A number as the kernel has it, without a sign; 0 if it could not be read.
    Number(u64),
    /// Text.
    Text(String),
    /// Addresses of a back-trace, the probed place first.
    Stack(Vec<u64>),
}

/// The values that an entry keeps for the handlers of its histogram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracked {
    /// The variable's value at which each handler's action was last done; 0 before.
    pub values: Vec<u64>,
    /// The saved fields of that hit, for the one handler that saves.
    pub saved: Vec<SavedValue>,
}

/// The hit at which a histogram's handler took the last snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotTaken {
    /// The variable's value.
    pub value: u64,
    /// The keys of its entry.
    pub keys: Arc<[HistogramKey]>,
}

/// Sums of the hits of one key.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeySums {
    pub(crate) hits: u64,
    /// The sum of each value, modulo 2^64.
    pub(crate) sums: Vec<u64>,
    /// Values that its handlers keep, shared with answers that show them; `None` without handlers.
    pub(crate) tracked: Option<Arc<Tracked>>,
}

/// The variables of entries; `None` if one is not set.
pub(super) type VariablesByKeys = HashMap<Box<[HistogramKey]>, Box<[Option<SavedValue>]>>;

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
    /// The last snapshot that its handler took.
    pub(super) snapshot: Option<SnapshotTaken>,
    /// The memory that the entries may take.
    pub(super) _room: Option<Share>,
}

/// Entries of a histogram; those of one name share them.
pub(super) type Entries = Arc<Mutex<Counted>>;

pub(super) fn lock(entries: &Entries) -> MutexGuard<'_, Counted> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}
