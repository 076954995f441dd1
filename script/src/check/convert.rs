//! Casts, tuples, sizes and offsets.

use super::builtin::BUILTINS;
use super::checker::{Checked, Checker};
use super::operand::{Address, Form, Operand};
use crate::diagnostic::{Diagnostic, Span};
use crate::ir::Expr;
use crate::syntax::ast::{self, ExprKind, TypeName};
use crate::types::Type;

impl Checker<'_> {
    pub(super) fn cast(&mut self, ty: &TypeName, of: &ast::Expr, span: Span) -> Checked<Operand> {
        let ty = self.resolve(ty)?;
        let operand = self.expr(of)?;
        match (&ty, &operand.ty) {
            (_, Type::Unknown) => Ok(Operand { ty, ..Operand::unknown(span) }),
            (Type::Pointer(_), from) if from.is_scalar() => {
                if let Some(chain) = operand.chain() {
                    let form = match operand.form {
                        Form::Value(expr, _) => Form::Value(expr, Some(chain)),
                        _ => Form::Chain(chain),
                    };
                    return Ok(Operand { ty, form, span });
                }
                Ok(Operand::value(ty, self.value(operand)?, span))
            }
            (Type::Integer { .. } | Type::Enum { .. }, from) if from.is_scalar() => {
                self.cast_number(ty, operand, span)
            }
            // A symbol is its address.
            (Type::Integer { .. } | Type::Pointer(_), Type::KernelSymbol | Type::UserSymbol) => {
                Ok(Operand::value(ty, self.value(operand)?, span))
            }
            // An array's bytes as a number, and a number's as an array.
            (Type::Integer { bytes, signed }, Type::Array(..) | Type::Bytes(_)) => {
                let (bytes, signed) = (*bytes, *signed);
                let all = Box::new(self.value(operand)?);
                Ok(Operand::value(ty, Expr::IntAt(all, 0, bytes, signed), span))
            }
            // A struct at the address that a number is.
            (Type::Record(_), from) if from.is_scalar() => {
                let address = self.address(operand)?;
                Ok(Operand { ty, form: Form::Place(address, None), span })
            }
            (to, from) if std::mem::discriminant(to) == std::mem::discriminant(from) => {
                Ok(Operand { ty, ..operand })
            }
            (to, from) => {
                let message = format!("`{from}` cannot be cast to `{to}`");
                self.fail(Diagnostic::new(span, message))
            }
        }
    }

    fn cast_number(&mut self, ty: Type, operand: Operand, span: Span) -> Checked<Operand> {
        let bytes = ty.scalar_bytes().unwrap_or(8);
        if bytes == 8 {
            let chain = operand.chain();
            let form = match operand.form {
                Form::Value(expr, chain) => Form::Value(expr, chain),
                Form::Chain(chain) => Form::Chain(chain),
                // Its own sign extends a smaller number.
                _ if chain.is_none() => Form::Value(self.value(operand)?, None),
                other => other,
            };
            return Ok(Operand { ty, form, span });
        }
        let signed = ty.is_signed();
        if let Some(value) = operand.constant() {
            let value = crate::eval::narrow(value, bytes, signed);
            return Ok(Operand { ty, ..Operand::int(value, span) });
        }
        let value = Box::new(self.value(operand)?);
        Ok(Operand::value(ty, Expr::Cast(bytes, signed, value), span))
    }

    pub(super) fn tuple(&mut self, of: &[ast::Expr], span: Span) -> Checked<Operand> {
        let mut exprs = Vec::new();
        let mut types = Vec::new();
        for expr in of {
            let (value, ty) = self.any_value(expr)?;
            if matches!(ty, Type::Aggregate(_) | Type::Void) {
                let message = format!("`{ty}` cannot be a part of a tuple");
                return self.fail(Diagnostic::new(expr.span, message));
            }
            exprs.push(value);
            types.push(ty);
        }
        let is_unknown = types.contains(&Type::Unknown) && !self.is_last_pass;
        let ty = if is_unknown { Type::Unknown } else { Type::Tuple(types.into()) };
        Ok(Operand::value(ty, Expr::Tuple(exprs), span))
    }

    pub(super) fn tuple_field(
        &mut self,
        of: &ast::Expr,
        index: usize,
        span: Span,
    ) -> Checked<Operand> {
        let (value, ty) = self.any_value(of)?;
        match &ty {
            Type::Unknown => Ok(Operand::unknown(span)),
            Type::Tuple(types) => match types.get(index) {
                Some(ty) => {
                    Ok(Operand::value(ty.clone(), Expr::Field(Box::new(value), index), span))
                }
                None => {
                    let message = format!("the tuple has {} fields, from 0 on", types.len());
                    self.fail(Diagnostic::new(span, message))
                }
            },
            ty => self.fail(Diagnostic::new(of.span, format!("`{ty}` is no tuple"))),
        }
    }

    pub(super) fn sizeof(&mut self, expr: &ast::Expr) -> Checked<Operand> {
        let ty = match &expr.kind {
            ExprKind::SizeofType(name) => self.resolve(name)?,
            ExprKind::SizeofExpr(of) => self.type_of(of)?,
            _ => Type::Unknown,
        };
        match self.size_of(&ty) {
            Some(size) => Ok(Operand { ty: Type::UINT64, ..Operand::int(size.into(), expr.span) }),
            None if ty == Type::Unknown => Ok(Operand::unknown(expr.span)),
            None => {
                self.fail(Diagnostic::new(expr.span, format!("the size of `{ty}` is not known")))
            }
        }
    }

    /// The type of an expression, or a typedef of the kernel: to the parser both are names.
    fn type_of(&mut self, of: &ast::Expr) -> Checked<Type> {
        if let ExprKind::Ident(name) = &of.kind
            && !BUILTINS.contains(&&**name)
            && let Some(ty) = self.kernel.named_type(name)
        {
            return Ok(ty);
        }
        Ok(self.expr(of)?.ty)
    }

    pub(super) fn offsetof(&mut self, expr: &ast::Expr) -> Checked<Operand> {
        let (mut ty, path) = match &expr.kind {
            ExprKind::Offsetof(name, path) => (self.resolve(name)?, path),
            ExprKind::OffsetofExpr(of, path) => (self.type_of(of)?, path),
            _ => return Ok(Operand::unknown(expr.span)),
        };
        let mut bits = 0u32;
        for name in path {
            if let Type::Pointer(to) = &ty {
                ty = Type::clone(to);
            }
            let record = match &ty {
                Type::Record(reference) => self.record(reference),
                _ => None,
            };
            let member = record.as_ref().and_then(|record| self.find_member(record, &name.text, 0));
            let Some(member) = member else {
                let message = format!("`{ty}` has no member `{}`", name.text);
                return self.fail(Diagnostic::new(name.span, message));
            };
            bits = bits.saturating_add(member.bit_offset);
            ty = member.ty;
        }
        let offset = Operand::int((bits / 8).into(), expr.span);
        Ok(Operand { ty: Type::UINT64, ..offset })
    }

    /// The address of a member or pointer, for functions that read from it.
    pub(super) fn place_of(&mut self, operand: &Operand) -> Option<Address> {
        match &operand.form {
            Form::Place(address, None) => Some(address.clone()),
            _ => None,
        }
    }
}
