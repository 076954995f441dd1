//! Histograms.

use exoprobe_probes::{StackFrame, trigger};
use serde::Serialize;
use utoipa::ToSchema;

/// A histogram of an event, which a trigger `hist` of the tracer has set.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Histogram<'a> {
    /// Its line in the tracer's file `trigger`.
    #[schema(example = "hist:keys=count.log2:vals=hitcount:sort=count:size=2048 [active]")]
    pub trigger: &'a str,
    /// Fields whose values make the entries, each with its modifier.
    #[schema(example = json!(["count.log2"]))]
    pub keys: &'a [String],
    /// Fields that are summed up, each with its modifier.
    #[schema(example = json!(["count"]))]
    pub values: &'a [String],
    /// Hits that were counted, `dropped` ones among them.
    pub hits: u64,
    /// Hits for whose keys there was no room.
    pub dropped: u64,
    /// In the order that the trigger asks for.
    pub entries: Vec<HistogramEntry<'a>>,
}

/// The hits of one key.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct HistogramEntry<'a> {
    /// One for each of the histogram's keys.
    pub keys: Vec<HistogramKey<'a>>,
    /// How many they are.
    pub hits: u64,
    /// The sum of each of the histogram's values, modulo 2 to the power of 64.
    pub sums: Vec<HistogramNumber>,
}

/// A number of 64 bits, with a sign or without.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum HistogramNumber {
    /// Of a type without a sign.
    Unsigned(u64),
    /// Of a type with one.
    Signed(i64),
}

/// A value that all hits of an entry have.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum HistogramKey<'a> {
    /// A number.
    Number(HistogramNumber),
    /// All numbers from one to another (`.log2`, `.buckets=N`).
    Range {
        /// The first.
        from: u64,
        /// The last.
        to: u64,
    },
    /// A task (`.execname`).
    Task {
        /// Its name.
        comm: &'a str,
        /// Its number.
        pid: u32,
    },
    /// Text; also symbols, hexadecimal digits, `(fault)`, and `negative` for all negative numbers
    /// of `.log2`.
    Text(&'a str),
    /// A back-trace, the probed place first.
    Stack(&'a [StackFrame]),
}

impl From<trigger::HistogramNumber> for HistogramNumber {
    fn from(number: trigger::HistogramNumber) -> Self {
        match number {
            trigger::HistogramNumber::Unsigned(number) => Self::Unsigned(number),
            trigger::HistogramNumber::Signed(number) => Self::Signed(number),
        }
    }
}

impl<'a> From<&'a trigger::HistogramValue> for HistogramKey<'a> {
    fn from(value: &'a trigger::HistogramValue) -> Self {
        match value {
            trigger::HistogramValue::Number(number) => Self::Number((*number).into()),
            trigger::HistogramValue::Range(from, to) => Self::Range { from: *from, to: *to },
            trigger::HistogramValue::Task(comm, pid) => Self::Task { comm, pid: *pid },
            trigger::HistogramValue::Text(text) => Self::Text(text),
            trigger::HistogramValue::Stack(stack) => Self::Stack(stack),
        }
    }
}

impl<'a> From<&'a trigger::HistogramEntry> for HistogramEntry<'a> {
    fn from(entry: &'a trigger::HistogramEntry) -> Self {
        Self {
            keys: entry.keys.iter().map(HistogramKey::from).collect(),
            hits: entry.hits,
            sums: entry.sums.iter().map(|sum| (*sum).into()).collect(),
        }
    }
}

impl<'a> From<&'a trigger::Histogram> for Histogram<'a> {
    fn from(histogram: &'a trigger::Histogram) -> Self {
        let trigger::Histogram { trigger, keys, values, hits, dropped, entries } = histogram;
        let entries = entries.iter().map(HistogramEntry::from).collect();
        Self { trigger, keys, values, hits: *hits, dropped: *dropped, entries }
    }
}
