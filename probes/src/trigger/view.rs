//! Histograms for programs.

use exoprobe_guest::Gva;
use exoprobe_introspect::SymbolTable;

use super::command::Modifier;
use super::hist::{Found, KeyPart, Table, is_symbol};
use crate::definition::Argument;
use crate::events::{FAULT, StackFrame, frames, show_symbol};

/// A histogram at one time.
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

impl Table {
    /// The histogram for programs; `line` is its line in the file `trigger`.
    pub(crate) fn view(
        &self,
        line: &str,
        list: &[Argument],
        symbols: Option<&SymbolTable>,
    ) -> Histogram {
        let names = |all: &[Found]| all.iter().map(|found| found.field.to_string()).collect();
        let entries = self.sorted().into_iter().map(|(key, entry)| {
            let keys = self.keys.iter().zip(key);
            let sums =
                self.values.iter().zip(&entry.sums).map(|(value, sum)| match value.is_signed {
                    true => HistogramNumber::Signed(sum.cast_signed()),
                    false => HistogramNumber::Unsigned(*sum),
                });
            HistogramEntry {
                keys: keys.map(|(found, part)| found.view(part, list, symbols)).collect(),
                hits: entry.hits,
                sums: sums.collect(),
            }
        });
        Histogram {
            trigger: line.trim_end().to_owned(),
            keys: names(&self.keys),
            values: names(&self.values),
            hits: self.hits,
            dropped: self.dropped,
            entries: entries.collect(),
        }
    }
}

impl Found {
    fn view(
        &self,
        part: &KeyPart,
        list: &[Argument],
        symbols: Option<&SymbolTable>,
    ) -> HistogramValue {
        let number = match part {
            KeyPart::Number(number) => *number,
            KeyPart::Signed(number) => number.cast_unsigned(),
            KeyPart::Fault => return HistogramValue::Text(FAULT.to_owned()),
            KeyPart::Text(text) => return HistogramValue::Text(text.clone()),
            KeyPart::Task(comm, pid) => return HistogramValue::Task(comm.clone(), *pid),
            KeyPart::Stack(stack) => return HistogramValue::Stack(frames(symbols, stack)),
        };
        let resolved = || symbols.and_then(|symbols| symbols.resolve(Gva(number)));
        let digits = || format!("{number:#x}");
        let of_arg = list.iter().find(|arg| arg.name == self.field.name);
        match self.field.modifier {
            Modifier::Hex => HistogramValue::Text(digits()),
            Modifier::Sym => {
                HistogramValue::Text(resolved().map_or_else(digits, |found| found.qualified_name()))
            }
            Modifier::SymOffset => HistogramValue::Text(resolved().map_or_else(digits, |found| {
                format!("{}+{:#x}", found.qualified_name(), found.offset)
            })),
            Modifier::Log2 => self.power(number),
            Modifier::Buckets(size) => {
                HistogramValue::Range(number, number.saturating_add(size - 1))
            }
            Modifier::None if of_arg.is_some_and(|arg| is_symbol(arg.kind)) => {
                HistogramValue::Text(show_symbol(symbols, number))
            }
            Modifier::None | Modifier::Usecs | Modifier::Execname => {
                HistogramValue::Number(match part {
                    KeyPart::Signed(number) => HistogramNumber::Signed(*number),
                    _ => HistogramNumber::Unsigned(number),
                })
            }
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
