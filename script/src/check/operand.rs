//! Checked expressions before they become values: where they are, and whether they depend on
//! nothing but the hit.

use super::checker::{Checked, Checker};
use super::types::VALUE_MAX;
use crate::diagnostic::{Diagnostic, Span};
use crate::ir::{Expr, Load};
use crate::program::{Base, Chain, MemoryKind, Read};
use crate::syntax::ast::BinaryOp;
use crate::types::Type;
use crate::value::Value;

/// Longest chain of addresses.
const CHAIN_MAX: usize = 24;

/// A checked expression.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    pub(super) ty: Type,
    pub(super) form: Form,
    pub(super) span: Span,
}

#[derive(Clone, Debug)]
pub(super) enum Form {
    /// A value, and its chain if it is an address that depends on the hit alone.
    Value(Expr, Option<Chain>),
    /// A value that is a chain, not read yet.
    Chain(Chain),
    /// Memory of the guest.
    Place(Address, Option<Bits>),
    /// Bytes of a value, from an offset on.
    Inside(Expr, u32, Option<Bits>),
}

/// An address in the guest.
#[derive(Clone, Debug)]
pub(super) enum Address {
    Chain(Chain),
    Computed(Expr, i64),
}

/// A bit-field in its number: shift and width.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bits {
    pub(super) shift: u8,
    pub(super) width: u8,
}

impl Chain {
    pub(super) fn of(base: Base) -> Self {
        Self { base, offsets: vec![0] }
    }

    /// The address that is `bytes` further.
    pub(super) fn plus(&self, bytes: i64) -> Self {
        let mut moved = self.clone();
        if let Some(last) = moved.offsets.last_mut() {
            *last = last.wrapping_add(bytes);
        }
        moved
    }

    /// The address that is in memory at this one.
    pub(super) fn dereferenced(&self) -> Option<Self> {
        let mut deeper = self.clone();
        deeper.offsets.push(0);
        (deeper.offsets.len() <= CHAIN_MAX).then_some(deeper)
    }
}

impl Address {
    pub(super) fn plus(&self, bytes: i64) -> Self {
        match self {
            Self::Chain(chain) => Self::Chain(chain.plus(bytes)),
            Self::Computed(expr, offset) => {
                Self::Computed(expr.clone(), offset.wrapping_add(bytes))
            }
        }
    }
}

impl Operand {
    pub(super) fn value(ty: Type, expr: Expr, span: Span) -> Self {
        Self { ty, form: Form::Value(expr, None), span }
    }

    pub(super) fn int(value: i64, span: Span) -> Self {
        Self::value(Type::INT64, Expr::Constant(Value::Int(value)), span)
    }

    pub(super) fn unknown(span: Span) -> Self {
        Self::value(Type::Unknown, Expr::Constant(Value::Int(0)), span)
    }

    /// The number, if it is known already.
    pub(super) fn constant(&self) -> Option<i64> {
        match &self.form {
            Form::Value(Expr::Constant(Value::Int(value)), _) => Some(*value),
            _ => None,
        }
    }

    /// The text, if it is known already.
    pub(super) fn text(&self) -> Option<String> {
        match &self.form {
            Form::Value(Expr::Constant(Value::Bytes(bytes)), _) => {
                Some(String::from_utf8_lossy(bytes).into_owned())
            }
            _ => None,
        }
    }

    /// The chain that the value is, if it is one.
    pub(super) fn chain(&self) -> Option<Chain> {
        match &self.form {
            Form::Value(Expr::Constant(Value::Int(value)), _) => {
                Some(Chain::of(Base::Address(value.cast_unsigned())))
            }
            Form::Value(_, chain) => chain.clone(),
            Form::Chain(chain) => Some(chain.clone()),
            Form::Place(Address::Chain(chain), None) if self.ty.scalar_bytes() == Some(8) => {
                chain.dereferenced()
            }
            Form::Place(..) | Form::Inside(..) => None,
        }
    }
}

fn plus(expr: Expr, bytes: i64) -> Expr {
    match bytes {
        0 => expr,
        bytes => {
            let bytes = Expr::Constant(Value::Int(bytes));
            Expr::Binary(BinaryOp::Add, false, Box::new(expr), Box::new(bytes))
        }
    }
}

impl Checker<'_> {
    /// Makes the operand a value.
    pub(super) fn value(&mut self, operand: Operand) -> Checked<Expr> {
        let Operand { ty, form, span } = operand;
        match form {
            Form::Value(expr, _) => Ok(expr),
            Form::Chain(chain) => Ok(self.chain_value(&chain)),
            Form::Place(address, bits) => {
                let load = self.load_of(&ty, span)?;
                let loaded = self.load(&address, load, span);
                Ok(cut(loaded, bits, ty.is_signed()))
            }
            Form::Inside(bytes, offset, bits) => {
                let part = match self.load_of(&ty, span)? {
                    Load::Int(size, signed) => Expr::IntAt(Box::new(bytes), offset, size, signed),
                    Load::Bytes(len) => Expr::Part(Box::new(bytes), offset, len, false),
                    Load::Text(len) => Expr::Part(Box::new(bytes), offset, len, true),
                };
                Ok(cut(part, bits, ty.is_signed()))
            }
        }
    }

    /// How a type is in memory.
    fn load_of(&mut self, ty: &Type, span: Span) -> Checked<Load> {
        if let Some(bytes) = ty.scalar_bytes() {
            return Ok(Load::Int(bytes, ty.is_signed()));
        }
        if let Type::Text(max) = ty {
            return Ok(Load::Text(*max));
        }
        match self.size_of(ty) {
            Some(size) if size <= VALUE_MAX => Ok(Load::Bytes(size)),
            Some(size) => {
                let message = format!("a value of {size} bytes is too large: at most {VALUE_MAX}");
                self.fail(Diagnostic::new(span, message))
            }
            None => {
                let message = format!("`{ty}` has no value: its members are not known");
                self.fail(Diagnostic::new(span, message))
            }
        }
    }

    /// Reads memory: at the hit if its address depends on nothing else.
    pub(super) fn load(&mut self, address: &Address, load: Load, span: Span) -> Expr {
        match address {
            Address::Chain(chain) => {
                let what = match load {
                    Load::Int(bytes, signed) => MemoryKind::Int { bytes, signed },
                    Load::Bytes(len) => MemoryKind::Bytes(len),
                    Load::Text(max) => MemoryKind::Text(max),
                };
                let read = Read::Memory { address: chain.clone(), what };
                Expr::Read(self.body.read(&read))
            }
            Address::Computed(expr, offset) => {
                self.body.need_exit(span, "it reads memory at an address that it computes");
                Expr::Load(load, Box::new(plus(expr.clone(), *offset)))
            }
        }
    }

    /// The value of a chain.
    fn chain_value(&mut self, chain: &Chain) -> Expr {
        let Some((last, inner)) = chain.offsets.split_last() else {
            return Expr::Constant(Value::Int(0));
        };
        if inner.is_empty() {
            if let Base::Address(address) = chain.base {
                return Expr::Constant(Value::Int(address.cast_signed().wrapping_add(*last)));
            }
            let index = self.body.read(&Read::Base(chain.base.clone()));
            return plus(Expr::Read(index), *last);
        }
        let address = Chain { base: chain.base.clone(), offsets: inner.to_vec() };
        let what = MemoryKind::Int { bytes: 8, signed: false };
        let index = self.body.read(&Read::Memory { address, what });
        plus(Expr::Read(index), *last)
    }

    /// The address that a pointer or number is.
    pub(super) fn address(&mut self, pointer: Operand) -> Checked<Address> {
        match pointer.chain() {
            Some(chain) => Ok(Address::Chain(chain)),
            None => Ok(Address::Computed(self.value(pointer)?, 0)),
        }
    }
}

/// Cuts a bit-field from its number.
fn cut(expr: Expr, bits: Option<Bits>, signed: bool) -> Expr {
    match bits {
        Some(Bits { shift, width }) => Expr::Bits(shift, width, signed, Box::new(expr)),
        None => expr,
    }
}
