//! A value as text.

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::printer::Printer;
use crate::host::SymbolOffset;
use crate::ir::Shape;
use crate::types::{StackMode, Type};
use crate::value::Value;

/// Blanks before a frame in a key, and in a value.
pub(super) const KEY_INDENT: usize = 4;
pub(super) const VALUE_INDENT: usize = 8;

impl Printer<'_> {
    /// Appends a value to a text.
    pub(super) fn write_value(
        &self,
        value: &Value,
        shape: &Shape,
        indent: usize,
        out: &mut Vec<u8>,
    ) {
        match (&shape.ty, value) {
            (Type::Enum { .. }, value) => out.extend(enum_name(value, shape).bytes()),
            (Type::Username, value) => out.extend(self.username(value).bytes()),
            (Type::Text(_), value) => out.extend_from_slice(value.bytes()),
            (Type::Bytes(_), value) => out.extend(escaped(value.bytes()).bytes()),
            (Type::Inet, value) => out.extend(inet(value.bytes()).bytes()),
            (Type::Mac, value) => out.extend(mac(value.bytes()).bytes()),
            (Type::Array(..) | Type::Record(_), Value::Bytes(bytes)) => {
                self.write_memory(bytes, shape, indent, out);
            }
            (_, Value::Tuple(values)) => {
                out.push(b'(');
                for (index, (value, shape)) in values.iter().zip(shape.inner.iter()).enumerate() {
                    out.extend_from_slice(if index == 0 { b"" } else { b", " });
                    self.write_value(value, shape, indent, out);
                }
                out.push(b')');
            }
            (Type::Stack { mode, user }, Value::Stack(frames, pid)) => {
                let of = user.then_some(*pid);
                out.extend(self.stack(frames, of, *mode, indent).bytes());
            }
            (Type::KernelSymbol, value) => {
                let address = value.int().cast_unsigned();
                out.extend(symbol(self.host.symbol(address), address, false).bytes());
            }
            (_, Value::UserSymbol(address, pid)) => {
                let found = self.host.user_symbol(*pid, *address);
                out.extend(symbol(found, *address, false).bytes());
            }
            (_, Value::Timestamp(time, format)) => {
                out.extend(self.time(*time, format).bytes());
            }
            (Type::Pointer(_), value) => out.extend(pointer(value.int()).bytes()),
            (ty, value) => out.extend(number(value.int(), ty.is_signed()).bytes()),
        }
    }

    /// Appends an array or struct.
    fn write_memory(&self, bytes: &[u8], shape: &Shape, indent: usize, out: &mut Vec<u8>) {
        match (&shape.ty, shape.inner.first(), &shape.record) {
            (Type::Array(..), Some(element), _) => {
                out.push(b'[');
                for (index, value) in elements(bytes, shape).into_iter().enumerate() {
                    out.extend_from_slice(if index == 0 { b"" } else { b"," });
                    self.write_value(&value, element, indent, out);
                }
                out.push(b']');
            }
            (Type::Record(_), _, Some(record)) => {
                out.extend_from_slice(b"{ ");
                for (index, (member, shape)) in
                    record.members.iter().zip(shape.inner.iter()).enumerate()
                {
                    out.extend_from_slice(if index == 0 { b"" } else { b", " });
                    if !member.name.is_empty() {
                        out.extend(format!(".{} = ", member.name).bytes());
                    }
                    let value = member_value(bytes, member, shape);
                    self.write_value(&value, shape, indent, out);
                }
                out.extend_from_slice(b" }");
            }
            _ => out.extend(escaped(bytes).bytes()),
        }
    }

    pub(super) fn username(&self, value: &Value) -> String {
        let uid = u32::try_from(value.int()).unwrap_or(u32::MAX);
        self.host.username(uid).unwrap_or_else(|| uid.to_string())
    }

    /// A back-trace: an empty line, and a line for each frame.
    pub(super) fn stack(
        &self,
        frames: &[u64],
        pid: Option<u32>,
        mode: StackMode,
        indent: usize,
    ) -> String {
        let mut text = String::from("\n");
        for frame in frames {
            let found = match pid {
                Some(pid) => self.host.user_symbol(pid, *frame),
                None => self.host.symbol(*frame),
            };
            let line = match mode {
                StackMode::Bpftrace => {
                    format!("{}{}", " ".repeat(indent), symbol(found, *frame, true))
                }
                StackMode::Perf => {
                    let of = found.as_ref().and_then(|found| found.module.clone());
                    let of = of.map(|module| format!(" ({module})")).unwrap_or_default();
                    format!("\t{frame:16x} {}{of}", symbol(found, *frame, true))
                }
                StackMode::Raw => format!("{}{frame:x}", " ".repeat(indent)),
            };
            text.push_str(&line);
            text.push('\n');
        }
        text
    }
}

/// The elements of an array.
pub(super) fn elements(bytes: &[u8], shape: &Shape) -> Vec<Value> {
    let (Type::Array(_, len), Some(element)) = (&shape.ty, shape.inner.first()) else {
        return Vec::new();
    };
    let len = (*len as usize).max(1);
    let size = (bytes.len() / len).max(1);
    bytes.chunks(size).map(|part| memory_value(part, element)).collect()
}

/// The value of a member in the bytes of its struct.
pub(super) fn member_value(bytes: &[u8], member: &crate::types::Member, shape: &Shape) -> Value {
    let start = (member.bit_offset / 8) as usize;
    match (member.bits, shape.ty.scalar_bytes()) {
        (Some(width), Some(size)) => {
            let unit = u32::from(size) * 8;
            let first = (member.bit_offset / unit * unit) / 8;
            let part = bytes.get(first as usize..).unwrap_or_default();
            let whole = crate::eval::from_bytes(&part[..part.len().min(size.into())], false);
            let shift = u8::try_from(member.bit_offset - first * 8).unwrap_or(0);
            Value::Int(crate::eval::bits(whole, shift, width, shape.ty.is_signed()))
        }
        _ => memory_value(bytes.get(start..).unwrap_or_default(), shape),
    }
}

/// The value of a type in memory.
fn memory_value(bytes: &[u8], shape: &Shape) -> Value {
    match &shape.ty {
        Type::Text(max) => {
            let part = &bytes[..bytes.len().min(*max as usize)];
            let len = part.iter().position(|byte| *byte == 0).unwrap_or(part.len());
            Value::Bytes(part[..len].into())
        }
        Type::Array(_, len) => {
            let size = shape.inner.first().map_or(0, size_of).saturating_mul(*len as usize);
            Value::Bytes(bytes[..bytes.len().min(size)].into())
        }
        Type::Record(_) => {
            let size = size_of(shape);
            Value::Bytes(bytes[..bytes.len().min(size)].into())
        }
        ty => {
            let size = usize::from(ty.scalar_bytes().unwrap_or(8)).min(bytes.len());
            Value::Int(crate::eval::from_bytes(&bytes[..size], ty.is_signed()))
        }
    }
}

fn size_of(shape: &Shape) -> usize {
    match (&shape.ty, &shape.record) {
        (Type::Text(size), _) => *size as usize,
        (Type::Array(_, len), _) => {
            shape.inner.first().map_or(0, size_of).saturating_mul(*len as usize)
        }
        (_, Some(record)) => record.size as usize,
        (ty, None) => ty.scalar_bytes().unwrap_or(0).into(),
    }
}

pub(super) fn number(value: i64, signed: bool) -> String {
    if signed { value.to_string() } else { value.cast_unsigned().to_string() }
}

/// The name of an enum's constant, or its number.
pub(super) fn enum_name(value: &Value, shape: &Shape) -> String {
    let value = value.int();
    let found = shape.names.iter().find(|(_, constant)| *constant == value);
    found.map_or_else(|| number(value, shape.ty.is_signed()), |(name, _)| name.to_string())
}

/// An address as C++ shows a pointer.
pub(super) fn pointer(address: i64) -> String {
    match address.cast_unsigned() {
        0 => "0".to_owned(),
        address => format!("{address:#x}"),
    }
}

/// A symbol, or the address where none is known.
pub(super) fn symbol(found: Option<SymbolOffset>, address: u64, with_offset: bool) -> String {
    match found {
        Some(found) if with_offset => format!("{}+{}", found.name, found.offset),
        Some(found) => found.name,
        None => pointer(address.cast_signed()),
    }
}

/// Bytes that are printable as they are, others as `\xNN`.
pub(super) fn escaped(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        match byte {
            b' '..=b'~' => text.push(char::from(*byte)),
            _ => {
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
    }
    text
}

pub(super) fn inet(bytes: &[u8]) -> String {
    if let Ok(address) = <[u8; 4]>::try_from(bytes) {
        return Ipv4Addr::from(address).to_string();
    }
    match <[u8; 16]>::try_from(bytes) {
        Ok(address) => Ipv6Addr::from(address).to_string(),
        Err(_) => String::new(),
    }
}

pub(super) fn mac(bytes: &[u8]) -> String {
    let parts: Vec<String> = bytes.iter().take(6).map(|byte| format!("{byte:02X}")).collect();
    parts.join(":")
}
