//! Formats of `printf`.

use std::sync::Arc;

use super::checker::{Checked, Checker};
use crate::diagnostic::{Diagnostic, Span};
use crate::ir::{Conversion, Expr, Format, Letter, Piece};
use crate::syntax::ast::{self, ExprKind};
use crate::types::Type;

/// Widest field, and most digits.
const WIDTH_MAX: usize = 4096;

impl Checker<'_> {
    /// A format and its arguments: those of `printf`, `cat`, `system` and the like.
    pub(super) fn format(
        &mut self,
        of: &str,
        arguments: &[ast::Expr],
        span: Span,
    ) -> Checked<(Arc<Format>, Vec<Expr>)> {
        let Some((first, arguments)) = arguments.split_first() else {
            return self.fail(Diagnostic::new(span, format!("`{of}` needs a format")));
        };
        let text = match self.constant_text(first) {
            Some(text) => text,
            None => {
                let error =
                    Diagnostic::new(first.span, format!("the format of `{of}` must be a text"));
                return self.fail(error.help(format!("write {of}(\"%d\\n\", VALUE)")));
            }
        };
        let parts = match parse(&text) {
            Ok(parts) => parts,
            Err(message) => return self.fail(Diagnostic::new(first.span, message)),
        };
        let wanted = parts.iter().filter(|part| matches!(part, Part::Convert(_))).count();
        if wanted != arguments.len() {
            let message = format!(
                "the format has {wanted} conversions, {} values are given",
                arguments.len()
            );
            return self.fail(Diagnostic::new(span, message));
        }
        let mut values = Vec::new();
        let mut pieces = Vec::new();
        for part in parts {
            let conversion = match part {
                Part::Text(text) => {
                    pieces.push(Piece::Text(text.into()));
                    continue;
                }
                Part::Convert(conversion) => conversion,
            };
            let argument = &arguments[values.len()];
            let (value, ty) = self.any_value(argument)?;
            self.check_conversion(conversion, &ty, argument.span)?;
            values.push(value);
            pieces.push(Piece::Convert(conversion, self.shape(&ty)));
        }
        Ok((Arc::new(Format { pieces }), values))
    }

    /// The text that an expression is, without a run: a literal, or a `#define` of one.
    pub(super) fn constant_text(&mut self, expr: &ast::Expr) -> Option<String> {
        match &expr.kind {
            ExprKind::Text(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            ExprKind::Ident(_) => self.expr(expr).ok()?.text(),
            ExprKind::Call(name, _) if *name.text == *"str" => self.expr(expr).ok()?.text(),
            _ => None,
        }
    }

    fn check_conversion(&mut self, conversion: Conversion, ty: &Type, span: Span) -> Checked<()> {
        let fits = match (conversion.letter, ty) {
            (_, Type::Unknown) => !self.is_last_pass,
            (Letter::Text, ty) => matches!(
                ty,
                Type::Text(_)
                    | Type::KernelSymbol
                    | Type::UserSymbol
                    | Type::Inet
                    | Type::Mac
                    | Type::Timestamp
                    | Type::Username
                    | Type::Stack { .. }
                    | Type::Enum { .. }
                    | Type::Bytes(_)
            ),
            (Letter::Bytes | Letter::HexBytes | Letter::BareHex, ty) => {
                matches!(ty, Type::Bytes(_) | Type::Array(..))
            }
            (_, ty) => ty.is_scalar() || matches!(ty, Type::KernelSymbol | Type::UserSymbol),
        };
        if fits {
            return Ok(());
        }
        let (shown, help) = match conversion.letter {
            Letter::Text => ("%s", "texts and symbols are shown by %s, numbers by %d"),
            Letter::Bytes | Letter::HexBytes | Letter::BareHex => {
                ("%r", "%r shows what buf() returns")
            }
            _ => ("this conversion", "numbers are shown by %d, %u or %x, texts by %s"),
        };
        self.fail(Diagnostic::new(span, format!("{shown} does not show `{ty}`")).help(help))
    }
}

/// A part of a format.
enum Part {
    Text(String),
    Convert(Conversion),
}

/// Parses a format.
fn parse(text: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        literal.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            literal.push('%');
            rest = after;
            continue;
        }
        let (conversion, after) = parse_conversion(rest)?;
        if !literal.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut literal)));
        }
        parts.push(Part::Convert(conversion));
        rest = after;
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        parts.push(Part::Text(literal));
    }
    Ok(parts)
}

/// Parses what follows a `%`.
fn parse_conversion(text: &str) -> Result<(Conversion, &str), String> {
    let mut conversion = Conversion::default();
    let mut rest = text;
    while let Some(flag) = rest.chars().next().filter(|char| "-+ 0#".contains(*char)) {
        match flag {
            '-' => conversion.left = true,
            '+' => conversion.plus = true,
            ' ' => conversion.space = true,
            '0' => conversion.zero = true,
            _ => conversion.alternate = true,
        }
        rest = &rest[1..];
    }
    (conversion.width, rest) = digits(rest)?;
    if let Some(after) = rest.strip_prefix('.') {
        let (precision, after) = digits(after)?;
        conversion.precision = Some(precision);
        rest = after;
    }
    let lengths = [("hh", 1), ("h", 2), ("ll", 8), ("l", 8), ("j", 8), ("z", 8), ("t", 8)];
    if let Some((name, bytes)) = lengths.iter().find(|(name, _)| rest.starts_with(name)) {
        conversion.bytes = Some(*bytes);
        rest = &rest[name.len()..];
    }
    let letters = [
        ("rx", Letter::HexBytes),
        ("rh", Letter::BareHex),
        ("r", Letter::Bytes),
        ("d", Letter::Signed),
        ("i", Letter::Signed),
        ("u", Letter::Unsigned),
        ("x", Letter::Hex),
        ("X", Letter::UpperHex),
        ("o", Letter::Octal),
        ("c", Letter::Char),
        ("s", Letter::Text),
        ("p", Letter::Address),
    ];
    let Some((name, letter)) = letters.iter().find(|(name, _)| rest.starts_with(name)) else {
        let shown: String = text.chars().take(8).collect();
        return Err(format!("unknown conversion `%{shown}`: known are d i u x X o c s p r rx rh"));
    };
    conversion.letter = *letter;
    Ok((conversion, &rest[name.len()..]))
}

fn digits(text: &str) -> Result<(usize, &str), String> {
    let len = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at(len);
    let number = if digits.is_empty() { 0 } else { digits.parse().unwrap_or(usize::MAX) };
    if number > WIDTH_MAX {
        return Err(format!("a field has at most {WIDTH_MAX} characters"));
    }
    Ok((number, rest))
}
