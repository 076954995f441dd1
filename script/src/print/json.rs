//! Values and maps as JSON, in the form of bpftrace's lines.

use serde_json::{Map, Number, Value as Json};

use super::histogram;
use super::map::{Entry, Kind, divided, is_signed, kind, sorted};
use super::printer::{Printer, line, quoted};
use super::value::{KEY_INDENT, VALUE_INDENT, elements, member_value};
use crate::aggregate::{Cell, average};
use crate::ir::{MapInfo, Shape};
use crate::maps::MapStore;
use crate::types::Type;
use crate::value::Value;

fn number(value: i64, signed: bool) -> Json {
    if signed { value.into() } else { value.cast_unsigned().into() }
}

impl Printer<'_> {
    /// A value.
    pub(super) fn json(&self, value: &Value, shape: &Shape) -> Json {
        match (&shape.ty, value) {
            (Type::Tuple(_), Value::Tuple(values)) => {
                let both = values.iter().zip(shape.inner.iter());
                Json::Array(both.map(|(value, shape)| self.json(value, shape)).collect())
            }
            (Type::Array(..), Value::Bytes(bytes)) => match shape.inner.first() {
                Some(element) => {
                    let all = elements(bytes, shape);
                    Json::Array(all.iter().map(|value| self.json(value, element)).collect())
                }
                None => Json::Array(Vec::new()),
            },
            (Type::Record(_), Value::Bytes(bytes)) => match &shape.record {
                Some(record) => {
                    let members = record.members.iter().zip(shape.inner.iter());
                    let member = |(member, shape): (&crate::types::Member, &Shape)| {
                        let value = member_value(bytes, member, shape);
                        (member.name.to_string(), self.json(&value, shape))
                    };
                    Json::Object(members.map(member).collect())
                }
                None => Json::Null,
            },
            (Type::Integer { .. }, value) => number(value.int(), shape.ty.is_signed()),
            _ => {
                let mut text = Vec::new();
                self.write_value(value, shape, VALUE_INDENT, &mut text);
                Json::from(String::from_utf8_lossy(&text).into_owned())
            }
        }
    }

    /// The content of an entry.
    fn cell(&self, cell: &Cell, shape: &Shape, div: u64) -> Json {
        match cell {
            Cell::Value(value) if shape.ty.is_integer() && div > 1 => {
                whole(&divided(value.int(), shape.ty.is_signed(), div))
            }
            Cell::Value(value) => self.json(value, shape),
            Cell::Stats { total, count, signed } => {
                let mut members = Map::new();
                members.insert("count".to_owned(), (*count).into());
                let average = average(*total, *count, *signed);
                members.insert("average".to_owned(), number(average, *signed));
                members.insert("total".to_owned(), number(*total, *signed));
                Json::Object(members)
            }
            Cell::Hist { .. } | Cell::Lhist { .. } => {
                let bucket = |bucket: histogram::Bucket| {
                    let mut members = Map::new();
                    if let Some(min) = bucket.min {
                        members.insert("min".to_owned(), whole(&min.to_string()));
                    }
                    if let Some(end) = bucket.end {
                        members.insert("max".to_owned(), whole(&(end - 1).to_string()));
                    }
                    members.insert("count".to_owned(), (bucket.count / div.max(1)).into());
                    Json::Object(members)
                };
                Json::Array(histogram::buckets(cell).into_iter().map(bucket).collect())
            }
            Cell::Tseries(series) => {
                let point = |(time, value): (u64, i64)| {
                    let mut members = Map::new();
                    let clock = self.time(time, "%H:%M:%S%.3f");
                    members.insert("interval_start".to_owned(), clock.into());
                    members.insert("value".to_owned(), number(value, series.signed));
                    Json::Object(members)
                };
                Json::Array(series.values().map(point).collect())
            }
            cell => whole(&divided(cell.value().int(), is_signed(cell), div)),
        }
    }

    /// The keys of an entry as one text.
    fn key(&self, keys: &[Value], shapes: &[Shape]) -> String {
        let mut text = Vec::new();
        for (index, (key, shape)) in keys.iter().zip(shapes).enumerate() {
            text.extend_from_slice(if index == 0 { b"" } else { b"," });
            self.write_value(key, shape, KEY_INDENT, &mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// A map's content: of one value that, of several an object by key.
    fn entries(&self, info: &MapInfo, entries: &[Entry<'_>], div: u64) -> Option<Json> {
        if info.keys.is_empty() {
            return entries.first().map(|(_, cell)| self.cell(cell, &info.value, div));
        }
        let member = |(keys, cell): &Entry<'_>| {
            (self.key(keys, &info.keys), self.cell(cell, &info.value, div))
        };
        Some(Json::Object(entries.iter().map(member).collect()))
    }

    /// A map as a line; nothing if it is empty.
    pub(super) fn map_line(&self, info: &MapInfo, entries: &[Entry<'_>], div: u64) -> Vec<u8> {
        let name = match kind(info) {
            Kind::Bars => "hist",
            Kind::Series => "tseries",
            Kind::Averages => "stats",
            Kind::Lines => "map",
        };
        match self.entries(info, entries, div) {
            Some(content) if !entries.is_empty() => {
                line(name, &format!("{{{}: {}}}", quoted(&info.name), spaced(&content)))
            }
            _ => Vec::new(),
        }
    }

    /// A map for a client, as a member of an object. It is written entry by entry: there may be
    /// many.
    pub(crate) fn push_map(&self, info: &MapInfo, map: &MapStore, text: &mut String) {
        let member = |name: &str, value: &Json| format!("{}:{value}", Json::from(name));
        let entries = sorted(info, map, 0);
        if info.keys.is_empty() {
            let content = self.entries(info, &entries, 1).unwrap_or(Json::Null);
            return text.push_str(&member(&info.name, &content));
        }
        text.push_str(&format!("{}:{{", Json::from(&*info.name)));
        for (index, (keys, cell)) in entries.iter().enumerate() {
            text.push_str(if index > 0 { "," } else { "" });
            let content = self.cell(cell, &info.value, 1);
            text.push_str(&member(&self.key(keys, &info.keys), &content));
        }
        text.push('}');
    }
}

/// A number of any size as JSON.
fn whole(digits: &str) -> Json {
    let signed = digits.parse::<i64>().map(Number::from);
    let parsed = signed.or_else(|_| digits.parse::<u64>().map(Number::from));
    parsed.map_or_else(|_| Json::from(digits), Json::Number)
}

/// JSON with a blank after each `:` and `,` of objects, as bpftrace writes it.
fn spaced(json: &Json) -> String {
    match json {
        Json::Object(members) => {
            let members: Vec<String> = members
                .iter()
                .map(|(name, value)| format!("{}: {}", quoted(name), spaced(value)))
                .collect();
            format!("{{{}}}", members.join(", "))
        }
        Json::Array(values) if values.iter().any(Json::is_object) => {
            let values: Vec<String> = values.iter().map(spaced).collect();
            format!("[{}]", values.join(", "))
        }
        other => other.to_string(),
    }
}
