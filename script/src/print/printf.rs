//! `printf`, as the C library has it.

use super::printer::Printer;
use super::value::{VALUE_INDENT, enum_name, escaped};
use crate::ir::{Conversion, Format, Letter, Piece, Shape};
use crate::types::Type;
use crate::value::Value;

impl Printer<'_> {
    /// The text of a format with values.
    pub(crate) fn format(&self, format: &Format, values: &[Value]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut values = values.iter();
        for piece in &format.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Convert(conversion, shape) => {
                    let value = values.next().cloned().unwrap_or(Value::Int(0));
                    self.convert(*conversion, &value, shape, &mut out);
                }
            }
        }
        out
    }

    fn convert(&self, conversion: Conversion, value: &Value, shape: &Shape, out: &mut Vec<u8>) {
        let body = match conversion.letter {
            Letter::Text => {
                let mut text = Vec::new();
                match &shape.ty {
                    Type::Enum { .. } => text.extend(enum_name(value, shape).bytes()),
                    _ => self.write_value(value, shape, VALUE_INDENT, &mut text),
                }
                text.truncate(conversion.precision.unwrap_or(usize::MAX));
                text
            }
            Letter::Bytes => escaped(value.bytes()).into_bytes(),
            Letter::HexBytes => {
                let parts = value.bytes().iter().map(|byte| format!("\\x{byte:02x}"));
                parts.collect::<String>().into_bytes()
            }
            Letter::BareHex => {
                let parts: Vec<String> =
                    value.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
                parts.join(" ").into_bytes()
            }
            Letter::Char => {
                let [byte, ..] = value.int().to_le_bytes();
                vec![byte]
            }
            Letter::Address => match value.int() {
                0 => b"(nil)".to_vec(),
                address => format!("{address:#x}").into_bytes(),
            },
            _ => {
                let (sign, digits) = digits(conversion, value.int());
                pad_number(conversion, &sign, &digits, out);
                return;
            }
        };
        pad(conversion, &body, out);
    }
}

/// Appends text in its field.
fn pad(conversion: Conversion, body: &[u8], out: &mut Vec<u8>) {
    let blanks = conversion.width.saturating_sub(body.len());
    if !conversion.left {
        out.extend(std::iter::repeat_n(b' ', blanks));
    }
    out.extend_from_slice(body);
    if conversion.left {
        out.extend(std::iter::repeat_n(b' ', blanks));
    }
}

/// Appends a number in its field: zeros go between its sign and its digits.
fn pad_number(conversion: Conversion, sign: &str, digits: &str, out: &mut Vec<u8>) {
    let has_zeros = conversion.zero && !conversion.left && conversion.precision.is_none();
    let len = sign.len() + digits.len();
    let zeros = if has_zeros { conversion.width.saturating_sub(len) } else { 0 };
    let body = format!("{sign}{}{digits}", "0".repeat(zeros));
    pad(conversion, body.as_bytes(), out);
}

/// Sign or prefix, and digits, of a number. Without a length, 4 bytes of it count, as in C.
fn digits(conversion: Conversion, value: i64) -> (String, String) {
    /// Bytes of C's `int`.
    const INT: u8 = 4;
    let bytes = conversion.bytes.unwrap_or(INT);
    let is_signed = conversion.letter == Letter::Signed;
    let cut = crate::eval::narrow(value, bytes, is_signed);
    let magnitude = if is_signed { cut.unsigned_abs() } else { cut.cast_unsigned() };
    let digits = match conversion.letter {
        Letter::Hex => format!("{magnitude:x}"),
        Letter::UpperHex => format!("{magnitude:X}"),
        Letter::Octal => format!("{magnitude:o}"),
        _ => magnitude.to_string(),
    };
    let digits = match conversion.precision {
        Some(0) if magnitude == 0 => String::new(),
        Some(precision) => {
            format!("{}{digits}", "0".repeat(precision.saturating_sub(digits.len())))
        }
        None => digits,
    };
    let sign = match conversion.letter {
        Letter::Signed if cut < 0 => "-",
        Letter::Signed if conversion.plus => "+",
        Letter::Signed if conversion.space => " ",
        Letter::Hex if conversion.alternate && magnitude != 0 => "0x",
        Letter::UpperHex if conversion.alternate && magnitude != 0 => "0X",
        Letter::Octal if conversion.alternate && !digits.starts_with('0') => "0",
        _ => "",
    };
    (sign.to_owned(), digits)
}
