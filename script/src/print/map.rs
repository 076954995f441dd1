//! Maps as text.

use super::histogram;
use super::printer::{Format, Printer, line};
use super::value::{KEY_INDENT, VALUE_INDENT, number};
use crate::aggregate::{Cell, average};
use crate::ir::{MapInfo, Shape};
use crate::maps::MapStore;
use crate::types::{Aggregate, Type};
use crate::value::Value;

/// An entry of a map.
pub(super) type Entry<'a> = (&'a [Value], &'a Cell);

/// How entries of a map are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A line each.
    Lines,
    /// A line each, and an empty line after all.
    Averages,
    /// Bars, and an empty line after each.
    Bars,
    Series,
}

pub(super) fn kind(info: &MapInfo) -> Kind {
    match &info.value.ty {
        Type::Aggregate(Aggregate::Avg { .. } | Aggregate::Stats { .. }) => Kind::Averages,
        Type::Aggregate(Aggregate::Hist { .. } | Aggregate::Lhist { .. }) => Kind::Bars,
        Type::Aggregate(Aggregate::Tseries { .. }) => Kind::Series,
        _ => Kind::Lines,
    }
}

/// The entries in the order in which bpftrace shows them: by value if that is a number, else by
/// key; the last `top` of them if that is not 0.
pub(super) fn sorted<'a>(info: &MapInfo, map: &'a MapStore, top: usize) -> Vec<Entry<'a>> {
    let mut entries: Vec<Entry<'a>> = map.cells().collect();
    entries.sort_by(|one, other| compare_keys(one.0, other.0, &info.keys));
    if let Some(signed) = order(info) {
        entries.sort_by_key(|(_, cell)| rank(cell, signed));
    }
    if top > 0 {
        entries.drain(..entries.len().saturating_sub(top));
    }
    entries
}

fn compare_keys(one: &[Value], other: &[Value], shapes: &[Shape]) -> std::cmp::Ordering {
    for ((one, other), shape) in one.iter().zip(other).zip(shapes) {
        let order = match (one, other) {
            // Keys are compared as numbers without signs, as bpftrace does.
            (Value::Int(one), Value::Int(other)) if !shape.ty.is_signed() => {
                one.cast_unsigned().cmp(&other.cast_unsigned())
            }
            (one, other) => one.cmp(other),
        };
        if order.is_ne() {
            return order;
        }
    }
    one.len().cmp(&other.len())
}

/// The sign of the numbers by which entries are sorted, if they are sorted so.
fn order(info: &MapInfo) -> Option<bool> {
    match &info.value.ty {
        Type::Aggregate(
            Aggregate::Sum { signed }
            | Aggregate::Min { signed }
            | Aggregate::Max { signed }
            | Aggregate::Avg { signed }
            | Aggregate::Stats { signed },
        ) => Some(*signed),
        Type::Aggregate(Aggregate::Tseries { .. }) => None,
        Type::Aggregate(_) => Some(true),
        ty => ty.is_integer().then(|| ty.is_signed()),
    }
}

/// The number by which an entry is sorted: its value, or how much a histogram counted.
fn rank(cell: &Cell, signed: bool) -> i128 {
    match cell {
        Cell::Hist { buckets, .. } | Cell::Lhist { buckets, .. } => {
            buckets.iter().map(|count| i128::from(*count)).sum()
        }
        cell => match cell.value().int() {
            value if signed => value.into(),
            value => value.cast_unsigned().into(),
        },
    }
}

impl Printer<'_> {
    /// A whole map: the last `top` entries if that is not 0, numbers divided by `div`.
    pub(crate) fn map(&self, info: &MapInfo, map: &MapStore, top: usize, div: u64) -> Vec<u8> {
        let entries = sorted(info, map, top);
        if self.format == Format::Json {
            return self.map_line(info, &entries, div);
        }
        let mut out = Vec::new();
        for (keys, cell) in &entries {
            self.write_entry(info, keys, cell, div.max(1), &mut out);
        }
        match kind(info) {
            Kind::Averages if entries.is_empty() => out.extend_from_slice(b"\n\n"),
            Kind::Averages => out.push(b'\n'),
            _ if entries.is_empty() => out.push(b'\n'),
            _ => {}
        }
        out
    }

    /// One entry of a map; nothing if it is not there.
    pub(crate) fn entry(&self, info: &MapInfo, map: &MapStore, keys: &[Value]) -> Vec<u8> {
        let Some(cell) = map.cell(keys) else { return Vec::new() };
        if self.format == Format::Json {
            return self.map_line(info, &[(keys, cell)], 1);
        }
        let mut out = Vec::new();
        self.write_entry(info, keys, cell, 1, &mut out);
        out
    }

    fn write_entry(
        &self,
        info: &MapInfo,
        keys: &[Value],
        cell: &Cell,
        div: u64,
        out: &mut Vec<u8>,
    ) {
        out.extend_from_slice(info.name.as_bytes());
        if !keys.is_empty() {
            out.push(b'[');
            for (index, (key, shape)) in keys.iter().zip(&info.keys).enumerate() {
                out.extend_from_slice(if index == 0 { b"" } else { b", " });
                self.write_value(key, shape, KEY_INDENT, out);
            }
            out.push(b']');
        }
        out.extend_from_slice(b": ");
        match cell {
            Cell::Value(value) if info.value.ty.is_integer() && div > 1 => {
                out.extend(divided(value.int(), info.value.ty.is_signed(), div).bytes());
            }
            Cell::Value(value) => self.write_value(value, &info.value, VALUE_INDENT, out),
            Cell::Hist { .. } | Cell::Lhist { .. } => {
                out.push(b'\n');
                out.extend(histogram::lines(cell, div).bytes());
            }
            Cell::Tseries(series) => {
                out.push(b'\n');
                out.extend(self.series(series).bytes());
            }
            Cell::Stats { total, count, signed } => {
                let average = number(average(*total, *count, *signed), *signed);
                let total = number(*total, *signed);
                out.extend(format!("count {count}, average {average}, total {total}").bytes());
            }
            cell => out.extend(divided(cell.value().int(), is_signed(cell), div).bytes()),
        }
        out.push(b'\n');
    }

    /// An expression's value on a line of its own.
    pub(crate) fn value_line(&self, value: &Value, shape: &Shape) -> Vec<u8> {
        if self.format == Format::Json {
            return line("value", &self.json(value, shape).to_string());
        }
        let mut out = Vec::new();
        self.write_value(value, shape, VALUE_INDENT, &mut out);
        out.push(b'\n');
        out
    }
}

pub(super) fn is_signed(cell: &Cell) -> bool {
    match cell {
        Cell::Avg { signed, .. } | Cell::Stats { signed, .. } | Cell::Extreme { signed, .. } => {
            *signed
        }
        _ => true,
    }
}

/// A number divided, as one with a sign or without.
pub(super) fn divided(value: i64, signed: bool, div: u64) -> String {
    let div = i128::from(div.max(1));
    let value = if signed { i128::from(value) } else { i128::from(value.cast_unsigned()) };
    (value / div).to_string()
}
