//! Recorded values, for text and JSON.

use std::borrow::Cow;
use std::sync::Arc;

use exoprobe_guest::{GuestTime, Gva};
use exoprobe_introspect::{SymbolOffset, SymbolTable};
use serde_json::Value;

use super::event::{Event, StackFrame};
use super::origin::Origin;
use super::ring::Record;
use crate::definition::{Argument, Fetch, ValueType};

/// Text of a value that could not be read.
pub const FAULT: &str = "(fault)";
/// Stands for the length of a text that could not be read.
const NO_TEXT: u16 = u16::MAX;

/// Texts of an array, adjacent: for each a length of 16 bits, and the bytes.
#[derive(Default)]
pub(crate) struct TextList(Vec<u8>);

impl TextList {
    /// Appends a text; `None` is one that could not be read.
    pub(crate) fn push(&mut self, text: Option<&[u8]>) {
        let len = text.and_then(|text| u16::try_from(text.len()).ok()).unwrap_or(NO_TEXT);
        self.0.extend_from_slice(&len.to_le_bytes());
        if len != NO_TEXT {
            self.0.extend_from_slice(text.unwrap_or_default());
        }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// The texts in such bytes.
    fn parse(mut bytes: &[u8]) -> Vec<Option<&[u8]>> {
        let mut found = Vec::new();
        while let Some((len, rest)) = bytes.split_first_chunk() {
            let len = u16::from_le_bytes(*len);
            let (text, rest) = match len {
                NO_TEXT => (None, rest),
                _ => match rest.split_at_checked(len.into()) {
                    Some((text, rest)) => (Some(text), rest),
                    None => break,
                },
            };
            found.push(text);
            bytes = rest;
        }
        found
    }
}

/// A recorded value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordedValue<'a> {
    /// It could not be read.
    Fault,
    /// A word, narrowed.
    Number(ValueType, u64),
    /// Text.
    Text(Cow<'a, str>),
    /// Several of one type.
    Array(Vec<RecordedValue<'a>>),
}

impl<'a> RecordedValue<'a> {
    /// Argument `index` of a record.
    pub(crate) fn of(arg: &'a Argument, record: &'a Record, index: usize) -> Self {
        let word = || record.args.get(index).copied().flatten();
        let bytes = || record.bytes(index);
        let shown = match &arg.fetch {
            Fetch::Comm => record.task.map(|task| Self::Text(task.name().into())),
            Fetch::ConstantText(text) => Some(Self::Text(text.into())),
            _ => match (arg.count, arg.kind.is_text()) {
                (None, true) => bytes().map(text),
                (Some(_), true) => bytes().map(|bytes| {
                    let each = TextList::parse(bytes).into_iter();
                    Self::Array(each.map(|one| one.map_or(Self::Fault, text)).collect())
                }),
                (Some(_), false) => bytes().map(|bytes| numbers(arg.kind, bytes)),
                (None, false) => word().map(|word| Self::Number(arg.kind, arg.kind.narrow(word))),
            },
        };
        shown.unwrap_or(Self::Fault)
    }

    /// The value as JSON. Hexadecimal values are text, because a double holds only 53 bits.
    pub(crate) fn json(&self, symbols: Option<&SymbolTable>) -> Value {
        match self {
            Self::Fault => FAULT.into(),
            Self::Text(text) => text.as_ref().into(),
            Self::Array(all) => all.iter().map(|one| one.json(symbols)).collect(),
            Self::Number(kind, number) => match kind {
                ValueType::Unsigned(_) | ValueType::Bits(_) => (*number).into(),
                ValueType::Signed(_) => number.cast_signed().into(),
                ValueType::Char => character(*number).to_string().into(),
                ValueType::Symbol | ValueType::SymbolText => show_symbol(symbols, *number).into(),
                ValueType::Hex(_) | ValueType::Text | ValueType::UserText => {
                    format!("{number:#x}").into()
                }
            },
        }
    }
}

/// Text; invalid UTF-8 is replaced.
fn text(bytes: &[u8]) -> RecordedValue<'_> {
    RecordedValue::Text(String::from_utf8_lossy(bytes))
}

fn numbers(kind: ValueType, bytes: &[u8]) -> RecordedValue<'static> {
    let each = bytes.chunks_exact(kind.width().bytes()).map(|bytes| {
        let mut word = [0; size_of::<u64>()];
        word[..bytes.len()].copy_from_slice(bytes);
        RecordedValue::Number(kind, kind.narrow(u64::from_le_bytes(word)))
    });
    RecordedValue::Array(each.collect())
}

fn character(number: u64) -> char {
    char::from(u8::try_from(number & 0xff).expect("8 bits"))
}

/// An address by its symbol, as the kernel's `%pS`: `SYM+0xOFF/0xSIZE`, of a module's with
/// ` [MODULE]` after it; without one, its digits.
#[must_use]
pub fn show_symbol(symbols: Option<&SymbolTable>, addr: u64) -> String {
    let place = |found: SymbolOffset<'_>| {
        let SymbolOffset { name, offset, size, .. } = found;
        format!("{name}+{offset:#x}/{size:#x}{}", in_module(&found))
    };
    symbols.and_then(|all| all.resolve(Gva(addr))).map_or_else(|| format!("{addr:#x}"), place)
}

/// The function at an address, as the kernel's `%ps`: `SYM`, of a module's with ` [MODULE]` after
/// it; without one, the address's digits.
#[must_use]
pub fn show_function(symbols: Option<&SymbolTable>, addr: u64) -> String {
    let function = |found: SymbolOffset<'_>| format!("{}{}", found.name, in_module(&found));
    symbols.and_then(|all| all.resolve(Gva(addr))).map_or_else(|| format!("{addr:#x}"), function)
}

fn in_module(found: &SymbolOffset<'_>) -> String {
    found.module.map(|module| format!(" [{module}]")).unwrap_or_default()
}

impl Origin {
    /// The event of a record.
    pub(crate) fn event(&self, seq: u64, vcpu: u8, record: &Record) -> Event {
        let args = self.fields.iter().enumerate().map(|(index, field)| {
            let shown = RecordedValue::of(field, record, index);
            (field.name.clone(), shown.json(self.symbols.as_ref()))
        });
        Event {
            seq,
            time: self.clock.seconds(GuestTime(record.time)),
            vcpu,
            pid: record.task.map(|task| task.pid),
            comm: record.task.map(|task| task.name()),
            group: Arc::clone(&self.group),
            event: Arc::clone(&self.event),
            symbol_name: self.symbol_name.clone(),
            offset: self.offset,
            addr: Arc::clone(&self.addr),
            ret_addr: record.returned.map(|returned| returned.to.to_string()),
            duration_ns: record.duration().map(|ticks| self.clock.nanos(ticks)),
            args: args.collect(),
            stack: (!record.stack.is_empty()).then(|| frames(self.symbols.as_ref(), &record.stack)),
        }
    }
}

/// The places of a back-trace, with symbols where known.
pub(crate) fn frames(symbols: Option<&SymbolTable>, stack: &[u64]) -> Vec<StackFrame> {
    let frame = |addr: &u64| {
        let found = symbols.and_then(|symbols| symbols.resolve(Gva(*addr)));
        StackFrame {
            addr: format!("{addr:#x}"),
            symbol_name: found.as_ref().map(SymbolOffset::qualified_name),
            offset: found.map_or(0, |found| found.offset),
        }
    };
    stack.iter().map(frame).collect()
}
