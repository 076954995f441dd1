//! Histograms at one time: as they are counted, and for programs.

use std::sync::Arc;

use exoprobe_introspect::SymbolTable;

use super::column::{HistColumn, is_symbol};
use super::entries::{HistogramKey, KeySums, SnapshotTaken, Tracked};
use super::field::{HistField, Modifier};
use super::handler::Handler;
use super::hist::HistTable;
use super::sort::Entry;
use super::syscalls::syscall_name;
use crate::definition::Argument;
use crate::events::{FAULT, StackFrame, frames, show_function, show_symbol};

/// A histogram at one time, as its hits are counted.
#[derive(Clone, Debug)]
pub struct HistogramTable {
    /// Its line in the file `trigger`, without the line's end.
    pub trigger: String,
    /// Its keys.
    pub keys: Vec<HistogramField>,
    /// The values that are summed up.
    pub values: Vec<HistogramField>,
    /// The count of hits is not shown.
    pub no_hitcount: bool,
    /// Hits that were counted, those without room among them.
    pub hits: u64,
    /// Hits of keys for which there was no room.
    pub dropped: u64,
    /// In the order that the trigger asks for.
    pub entries: Vec<CountedEntry>,
    /// Its handlers.
    pub handlers: Vec<Handler>,
    /// The last snapshot that one of them took.
    pub snapshot: Option<SnapshotTaken>,
    /// The kernel's symbols, for addresses; `None` before the kernel has begun.
    pub symbols: Option<SymbolTable>,
}

/// The hits of one key, as they are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedEntry {
    /// One for each of the histogram's keys.
    pub keys: Arc<[HistogramKey]>,
    /// Number of hits.
    pub hits: u64,
    /// The sum of each of the histogram's values, modulo 2^64.
    pub sums: Vec<HistogramNumber>,
    /// Values that the handlers keep; `None` without handlers.
    pub tracked: Option<Arc<Tracked>>,
}

/// A field of a histogram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramField {
    /// Its name and modifier.
    pub field: HistField,
    /// Its numbers have a sign.
    pub is_signed: bool,
    /// Its type has its numbers shown as symbols.
    pub is_symbol: bool,
    /// It is an expression with an operator: the file `hist` leaves such values out.
    pub is_operation: bool,
}

/// A histogram at one time, for programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// Its line in the file `trigger`.
    pub trigger: String,
    /// Its keys, each with its modifier.
    pub keys: Vec<String>,
    /// The values that are summed up, each with its modifier.
    pub values: Vec<String>,
    /// Number of hits counted, including those without room.
    pub hits: u64,
    /// Hits of keys that had no room.
    pub dropped: u64,
    /// In the order that the trigger requests.
    pub entries: Vec<HistogramEntry>,
}

/// The hits of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramEntry {
    /// One for each of the histogram's keys.
    pub keys: Vec<HistogramValue>,
    /// Number of hits.
    pub hits: u64,
    /// The sum of each of the histogram's values, modulo 2^64.
    pub sums: Vec<HistogramNumber>,
}

/// A number, signed or unsigned by its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistogramNumber {
    /// An unsigned number.
    Unsigned(u64),
    /// A signed number.
    Signed(i64),
}

/// A key of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistogramValue {
    /// A number.
    Number(HistogramNumber),
    /// All numbers from the first to the second (`.log2`, `.buckets=N`).
    Range(u64, u64),
    /// A task by name and number (`.execname`).
    Task(String, u32),
    /// Text; also symbols, hexadecimal digits, `(fault)`, and `negative` for all negative numbers
    /// of `.log2`.
    Text(String),
    /// A back-trace, the probed place first.
    Stack(Vec<StackFrame>),
}

impl HistTable {
    /// The histogram now; `line` is its line in the file `trigger`.
    pub(crate) fn at_once(
        &self,
        line: &str,
        list: &[Argument],
        symbols: Option<&SymbolTable>,
    ) -> HistogramTable {
        let fields =
            |all: &[HistColumn]| all.iter().map(|found| found.shown(list)).collect::<Vec<_>>();
        let (mut entries, hits, dropped, snapshot) = {
            let counted = self.counted();
            let entry = |(keys, sums): (&Arc<_>, &KeySums)| (Arc::clone(keys), sums.clone());
            let entries: Vec<Entry> = counted.entries.iter().map(entry).collect();
            (entries, counted.hits, counted.dropped, counted.snapshot.clone())
        };
        // Not under any lock: there may be much to sort.
        self.sort(&mut entries);
        let entries = entries.into_iter().map(|(keys, entry)| {
            let number = |(value, sum): (&HistColumn, &u64)| match value.is_signed {
                true => HistogramNumber::Signed(sum.cast_signed()),
                false => HistogramNumber::Unsigned(*sum),
            };
            let sums = self.values.iter().zip(&entry.sums).map(number).collect();
            CountedEntry { keys, hits: entry.hits, sums, tracked: entry.tracked }
        });
        HistogramTable {
            trigger: line.to_owned(),
            keys: fields(&self.keys),
            values: fields(&self.values),
            no_hitcount: self.hist.no_hitcount,
            hits,
            dropped,
            entries: entries.collect(),
            handlers: self.hist.handlers.clone(),
            snapshot,
            symbols: symbols.cloned(),
        }
    }
}

impl HistColumn {
    fn shown(&self, list: &[Argument]) -> HistogramField {
        let is_it = |arg: &&Argument| self.is_arg() && arg.name == self.field.name;
        let of_arg = list.iter().find(is_it);
        HistogramField {
            field: self.field.clone(),
            is_signed: self.is_signed,
            is_symbol: of_arg.is_some_and(|arg| is_symbol(arg.kind)),
            is_operation: self.is_operation(),
        }
    }
}

impl HistogramTable {
    /// All of it for programs, except its entries.
    #[must_use]
    pub fn head(&self) -> Histogram {
        let names =
            |all: &[HistogramField]| all.iter().map(|field| field.field.to_string()).collect();
        let (keys, values) = (names(&self.keys), names(&self.values));
        let Self { hits, dropped, .. } = *self;
        let trigger = self.trigger.clone();
        Histogram { trigger, keys, values, hits, dropped, entries: Vec::new() }
    }

    /// One of its entries for programs.
    #[must_use]
    pub fn entry(&self, CountedEntry { keys, hits, sums, .. }: &CountedEntry) -> HistogramEntry {
        let keys = self.keys.iter().zip(&**keys);
        let keys = keys.map(|(field, key)| field.value(key, self.symbols.as_ref())).collect();
        HistogramEntry { keys, hits: *hits, sums: sums.clone() }
    }
}

impl From<&HistogramTable> for Histogram {
    fn from(table: &HistogramTable) -> Self {
        let entries = table.entries.iter().map(|entry| table.entry(entry)).collect();
        Self { entries, ..table.head() }
    }
}

impl HistogramField {
    fn value(&self, key: &HistogramKey, symbols: Option<&SymbolTable>) -> HistogramValue {
        let number = match key {
            HistogramKey::Number(number) => *number,
            HistogramKey::Signed(number) => number.cast_unsigned(),
            HistogramKey::Fault => return HistogramValue::Text(FAULT.to_owned()),
            HistogramKey::Text(text) => return HistogramValue::Text(text.clone()),
            HistogramKey::Task(comm, pid) => return HistogramValue::Task(comm.clone(), *pid),
            HistogramKey::Stack(stack) => return HistogramValue::Stack(frames(symbols, stack)),
        };
        match self.field.modifier {
            Modifier::Hex => HistogramValue::Text(format!("{number:#x}")),
            Modifier::Sym => HistogramValue::Text(show_function(symbols, number)),
            Modifier::SymOffset => HistogramValue::Text(show_symbol(symbols, number)),
            Modifier::Log2 => self.power(number),
            Modifier::Buckets(size) => {
                HistogramValue::Range(number, number.saturating_add(size - 1))
            }
            Modifier::None if self.is_symbol => HistogramValue::Text(show_symbol(symbols, number)),
            Modifier::Syscall => HistogramValue::Text(syscall_name(number)),
            // The last three are of values and back-traces, which have no keys that are numbers.
            Modifier::None
            | Modifier::Usecs
            | Modifier::Execname
            | Modifier::Percent
            | Modifier::Graph
            | Modifier::Stacktrace => HistogramValue::Number(match key {
                HistogramKey::Signed(number) => HistogramNumber::Signed(*number),
                _ => HistogramNumber::Unsigned(number),
            }),
        }
    }

    /// The numbers above half of a power of two, up to it; for power 0, the numbers 0 and 1.
    fn power(&self, power: u64) -> HistogramValue {
        let below =
            |power: u64| u32::try_from(power).ok().and_then(|power| 1_u64.checked_shl(power));
        match (power, below(power)) {
            (0, _) => HistogramValue::Range(0, 1),
            (_, None) if self.is_signed => HistogramValue::Text("negative".to_owned()),
            (_, last) => {
                let first = below(power - 1).unwrap_or(u64::MAX).saturating_add(1);
                HistogramValue::Range(first, last.unwrap_or(u64::MAX))
            }
        }
    }
}
