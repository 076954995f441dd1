//! Expressions: operators, variables, casts, tuples.

use std::sync::Arc;

use super::checker::{Checked, Checker};
use super::common::{common, stored};
use super::operand::{Form, Operand};
use crate::diagnostic::{Diagnostic, Span};
use crate::ir::Expr;
use crate::syntax::ast::{self, BinaryOp, ExprKind, UnaryOp};
use crate::types::Type;
use crate::value::Value;

impl Checker<'_> {
    /// Checks an expression.
    pub(super) fn expr(&mut self, expr: &ast::Expr) -> Checked<Operand> {
        self.enter(expr.span)?;
        let checked = self.any_expr(expr);
        self.leave();
        checked
    }

    fn any_expr(&mut self, expr: &ast::Expr) -> Checked<Operand> {
        let span = expr.span;
        match &expr.kind {
            ExprKind::Int(value, unsigned) => {
                let operand = Operand::int(value.cast_signed(), span);
                Ok(if *unsigned { Operand { ty: Type::UINT64, ..operand } } else { operand })
            }
            ExprKind::Text(bytes) => Ok(text(Arc::clone(bytes), span)),
            ExprKind::Ident(name) => self.ident(name, span),
            ExprKind::Variable(name) => self.variable(name, span),
            ExprKind::Map(name, keys) => self.map_value(name, keys.as_deref(), span),
            ExprKind::Param(number) => self.param(*number, span),
            ExprKind::ParamCount => {
                Ok(Operand::int(i64::try_from(self.script.params.len()).unwrap_or(0), span))
            }
            ExprKind::Call(name, arguments) => self.call(name, arguments, span),
            ExprKind::Unary(op, of) => self.unary(*op, of, span),
            ExprKind::Step(step, before, of) => self.step(*step, *before, of, span),
            ExprKind::Binary(op, left, right) => self.binary(*op, left, right, span),
            ExprKind::Ternary(test, yes, no) => self.ternary(test, yes, no, span),
            ExprKind::Cast(ty, of) => self.cast(ty, of, span),
            ExprKind::Member(of, name, _) => self.member(of, name, span),
            ExprKind::Index(of, index) => self.index(of, index, span),
            ExprKind::TupleField(of, index) => self.tuple_field(of, *index, span),
            ExprKind::Tuple(of) => self.tuple(of, span),
            ExprKind::SizeofType(_) | ExprKind::SizeofExpr(_) => self.sizeof(expr),
            ExprKind::Offsetof(..) | ExprKind::OffsetofExpr(..) => self.offsetof(expr),
            ExprKind::Block(..) => {
                let help = "a block with a value is the body of a macro";
                self.fail(Diagnostic::new(span, "a block is no expression here").help(help))
            }
        }
    }

    /// A number or an address; what is not inferred yet counts as one.
    pub(super) fn number(&mut self, expr: &ast::Expr) -> Checked<Operand> {
        let operand = self.expr(expr)?;
        if operand.ty.is_scalar() || operand.ty == Type::Unknown {
            return Ok(operand);
        }
        let message = format!("expected a number, found `{}`", operand.ty);
        self.fail(Diagnostic::new(expr.span, message))
    }

    /// A number as a value.
    pub(super) fn number_value(&mut self, expr: &ast::Expr) -> Checked<Expr> {
        let operand = self.number(expr)?;
        self.value(operand)
    }

    /// An expression as a value.
    pub(super) fn any_value(&mut self, expr: &ast::Expr) -> Checked<(Expr, Type)> {
        let operand = self.expr(expr)?;
        let ty = operand.ty.clone();
        Ok((self.value(operand)?, ty))
    }

    pub(super) fn condition(&mut self, expr: &ast::Expr) -> Checked<Expr> {
        self.number_value(expr)
    }

    fn variable(&mut self, name: &Arc<str>, span: Span) -> Checked<Operand> {
        match self.body.variables.get(name) {
            Some(variable) => {
                let form = Form::Value(Expr::Variable(variable.slot), variable.chain.clone());
                Ok(Operand { ty: variable.ty.clone(), form, span })
            }
            None => {
                let error = Diagnostic::new(span, format!("variable `{name}` has no value yet"));
                let known: Vec<Arc<str>> = self.body.variables.keys().cloned().collect();
                self.fail(error.near(name, known.iter().map(|name| &**name)))
            }
        }
    }

    /// `$1` as a number.
    fn param(&mut self, number: u32, span: Span) -> Checked<Operand> {
        let Some(given) = self.script.params.get(number as usize - 1) else {
            return Ok(Operand::int(0, span));
        };
        let (sign, digits) = match given.strip_prefix('-') {
            Some(digits) => (-1i64, digits),
            None => (1, given.as_str()),
        };
        match crate::syntax::parse_number(digits) {
            Some((value, _)) => Ok(Operand::int(value.cast_signed().wrapping_mul(sign), span)),
            None => {
                let message = format!("${number} is used as a number, but is \"{given}\"");
                self.fail(Diagnostic::new(span, message).help(format!("use str(${number})")))
            }
        }
    }

    fn unary(&mut self, op: UnaryOp, of: &ast::Expr, span: Span) -> Checked<Operand> {
        match op {
            UnaryOp::Dereference => return self.dereference(of, span),
            UnaryOp::AddressOf => return self.address_of(of, span),
            _ => {}
        }
        let operand = self.number(of)?;
        // The result is as large as the operand, with its sign.
        let ty = match &operand.ty {
            Type::Integer { .. } => operand.ty.clone(),
            _ => Type::UINT64,
        };
        let (bytes, signed) = (ty.scalar_bytes().unwrap_or(8), ty.is_signed());
        if let Some(value) = operand.constant() {
            let (ty, value) = match op {
                UnaryOp::Negate => (ty, crate::eval::narrow(value.wrapping_neg(), bytes, signed)),
                UnaryOp::Invert => (ty, crate::eval::narrow(!value, bytes, signed)),
                UnaryOp::Not => (Type::INT64, i64::from(value == 0)),
                _ => (ty, value),
            };
            return Ok(Operand { ty, ..Operand::int(value, span) });
        }
        let value = Box::new(self.value(operand)?);
        let cut = |expr| match bytes {
            8 => expr,
            bytes => Expr::Cast(bytes, signed, Box::new(expr)),
        };
        Ok(match op {
            UnaryOp::Negate => Operand::value(ty, cut(Expr::Negate(value)), span),
            UnaryOp::Invert => Operand::value(ty, cut(Expr::Invert(value)), span),
            UnaryOp::Not => Operand::value(Type::INT64, Expr::Not(value), span),
            _ => Operand::value(ty, *value, span),
        })
    }

    /// `++` and `--`.
    fn step(&mut self, step: i64, before: bool, of: &ast::Expr, span: Span) -> Checked<Operand> {
        match &of.kind {
            ExprKind::Variable(name) => {
                let operand = self.number(of)?;
                let step = step.wrapping_mul(self.stride(&operand.ty));
                let Some(variable) = self.body.variables.get_mut(name) else {
                    return Ok(Operand::unknown(span));
                };
                variable.chain = None;
                variable.ty = stored(variable.ty.clone());
                let expr = Expr::StepVariable(variable.slot, step, !before);
                Ok(Operand::value(operand.ty, expr, span))
            }
            ExprKind::Map(name, keys) => {
                let (id, keys) = self.map_keys(name, keys.as_deref(), span)?;
                let ty = self.assign_map_type(id, &Type::INT64, span)?;
                if !ty.is_scalar() {
                    let message = format!("`{name}` holds `{ty}`: it cannot be counted up");
                    return self.fail(Diagnostic::new(span, message));
                }
                let step = step.wrapping_mul(self.stride(&ty));
                Ok(Operand::value(ty, Expr::StepMap(id, keys, step, !before), span))
            }
            _ => {
                let error = Diagnostic::new(of.span, "only variables and maps can be changed");
                self.fail(error.help("use $x++ or @x++"))
            }
        }
    }

    /// Bytes of a step of a pointer; 1 of a number.
    fn stride(&self, ty: &Type) -> i64 {
        match ty {
            Type::Pointer(to) => self.size_of(to).map_or(1, i64::from),
            _ => 1,
        }
    }

    fn binary(
        &mut self,
        op: BinaryOp,
        left: &ast::Expr,
        right: &ast::Expr,
        span: Span,
    ) -> Checked<Operand> {
        if matches!(op, BinaryOp::LogicAnd | BinaryOp::LogicOr) {
            let left = Box::new(self.condition(left)?);
            let right = Box::new(self.condition(right)?);
            let expr = match op {
                BinaryOp::LogicAnd => Expr::And(left, right),
                _ => Expr::Or(left, right),
            };
            return Ok(Operand::value(Type::INT64, expr, span));
        }
        let left = self.expr(left)?;
        let right = self.expr(right)?;
        self.combine(op, left, right, span)
    }

    /// Applies an operator to two operands.
    pub(super) fn combine(
        &mut self,
        op: BinaryOp,
        left: Operand,
        right: Operand,
        span: Span,
    ) -> Checked<Operand> {
        let is_unknown = left.ty == Type::Unknown || right.ty == Type::Unknown;
        let are_scalar = left.ty.is_scalar() && right.ty.is_scalar();
        if !is_unknown && !are_scalar {
            return self.compare(op, left, right, span);
        }
        if let Type::Pointer(_) = left.ty
            && matches!(op, BinaryOp::Add | BinaryOp::Sub)
            && right.ty.is_integer()
        {
            return self.move_pointer(op, left, right, span);
        }
        if let (BinaryOp::Add, Type::Pointer(_)) = (op, &right.ty)
            && left.ty.is_integer()
        {
            return self.move_pointer(op, right, left, span);
        }
        let signed = is_signed(&left, &right);
        let ty = match op {
            BinaryOp::Eq
            | BinaryOp::Ne
            | BinaryOp::Lt
            | BinaryOp::Le
            | BinaryOp::Gt
            | BinaryOp::Ge => Type::INT64,
            _ if signed => Type::INT64,
            _ => Type::UINT64,
        };
        if let (Some(one), Some(two)) = (left.constant(), right.constant()) {
            let value = crate::eval::arithmetic(op, signed, one, two);
            return Ok(Operand { ty, ..Operand::int(value, span) });
        }
        let (left, right) = match op {
            // So that a chain is moved, whichever of them it is.
            BinaryOp::Add if left.constant().is_some() => (right, left),
            _ => (left, right),
        };
        if let (BinaryOp::Add | BinaryOp::Sub, Some(by)) = (op, right.constant())
            && let Some(chain) = left.chain()
        {
            let by = if op == BinaryOp::Add { by } else { by.wrapping_neg() };
            let moved = chain.plus(by);
            let Form::Value(value, _) = left.form else {
                return Ok(Operand { ty, form: Form::Chain(moved), span });
            };
            let by = Box::new(Expr::Constant(Value::Int(by)));
            let sum = Expr::Binary(BinaryOp::Add, signed, Box::new(value), by);
            return Ok(Operand { ty, form: Form::Value(sum, Some(moved)), span });
        }
        let left = Box::new(self.value(left)?);
        let right = Box::new(self.value(right)?);
        Ok(Operand::value(ty, Expr::Binary(op, signed, left, right), span))
    }

    /// A pointer some elements further.
    fn move_pointer(
        &mut self,
        op: BinaryOp,
        pointer: Operand,
        by: Operand,
        span: Span,
    ) -> Checked<Operand> {
        let ty = pointer.ty.clone();
        let stride = self.stride(&ty);
        if let (Some(chain), Some(by)) = (pointer.chain(), by.constant()) {
            let bytes = by.wrapping_mul(stride);
            let bytes = if op == BinaryOp::Add { bytes } else { bytes.wrapping_neg() };
            return Ok(Operand { ty, form: Form::Chain(chain.plus(bytes)), span });
        }
        let by = Box::new(self.value(by)?);
        let stride = Box::new(Expr::Constant(Value::Int(stride)));
        let bytes = Box::new(Expr::Binary(BinaryOp::Mul, false, by, stride));
        let pointer = Box::new(self.value(pointer)?);
        Ok(Operand::value(ty, Expr::Binary(op, false, pointer, bytes), span))
    }

    /// `==` and `!=` of texts, bytes, arrays, tuples, addresses of networks.
    fn compare(
        &mut self,
        op: BinaryOp,
        left: Operand,
        right: Operand,
        span: Span,
    ) -> Checked<Operand> {
        let alike = match (&left.ty, &right.ty) {
            (Type::Text(_) | Type::Username, Type::Text(_) | Type::Username) => true,
            (
                Type::Bytes(_) | Type::Array(..) | Type::Inet,
                Type::Bytes(_) | Type::Array(..) | Type::Inet,
            ) => true,
            (one, two) => std::mem::discriminant(one) == std::mem::discriminant(two),
        };
        let is_equality = matches!(op, BinaryOp::Eq | BinaryOp::Ne);
        if !alike || !is_equality || matches!(left.ty, Type::Aggregate(_)) {
            let message = format!("`{}` and `{}` cannot be combined so", left.ty, right.ty);
            let error = Diagnostic::new(span, message);
            return self.fail(error.help("texts can be compared with == and !="));
        }
        let left = Box::new(self.value(left)?);
        let right = Box::new(self.value(right)?);
        Ok(Operand::value(Type::INT64, Expr::Same(op == BinaryOp::Ne, left, right), span))
    }

    fn ternary(
        &mut self,
        test: &ast::Expr,
        yes: &ast::Expr,
        no: &ast::Expr,
        span: Span,
    ) -> Checked<Operand> {
        let test = self.condition(test)?;
        let yes = self.expr(yes)?;
        let no = self.expr(no)?;
        let Some(ty) = common(&yes.ty, &no.ty) else {
            let message = format!("one side is `{}`, the other `{}`", yes.ty, no.ty);
            return self.fail(Diagnostic::new(span, message).help("both sides need one type"));
        };
        let yes = Box::new(self.value(yes)?);
        let no = Box::new(self.value(no)?);
        Ok(Operand::value(ty, Expr::Choose(Box::new(test), yes, no), span))
    }
}

/// A constant text.
pub(super) fn text(bytes: Arc<[u8]>, span: Span) -> Operand {
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX).saturating_add(1);
    Operand::value(Type::Text(len), Expr::Constant(Value::Bytes(bytes)), span)
}

/// Is an operation on two numbers one with signs?
fn is_signed(left: &Operand, right: &Operand) -> bool {
    left.ty.is_signed() && right.ty.is_signed()
}
