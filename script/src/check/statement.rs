//! Statements.

use std::sync::Arc;

use super::aggregate::aggregate_call;
use super::body::{assigned, jumps};
use super::checker::{Checked, Checker};
use super::common::common;
use super::common::stored;
use super::operand::Operand;
use super::state::Variable;
use crate::diagnostic::{Diagnostic, Span};
use crate::ir::{Expr, Statement};
use crate::syntax::ast::{self, BinaryOp, ExprKind, Name, StatementKind, TypeName};
use crate::types::Type;
use crate::value::Value;

/// Most rounds of `unroll`, as in bpftrace.
const UNROLL_MAX: i64 = 100;
/// Rounds up to which a loop is written out, so that what each reads is known.
const WRITTEN_OUT_MAX: i64 = 16;

impl Checker<'_> {
    /// Checks statements; those that are wrong are reported and left out.
    pub(super) fn statements(&mut self, all: &[ast::Statement]) -> Vec<Statement> {
        let mut checked = Vec::new();
        for statement in all {
            if self.enter(statement.span).is_err() {
                break;
            }
            if let Ok(statement) = self.statement(statement) {
                checked.push(statement);
            }
            self.leave();
        }
        checked
    }

    fn statement(&mut self, statement: &ast::Statement) -> Checked<Statement> {
        let span = statement.span;
        match &statement.kind {
            StatementKind::Expr(expr) => self.expression_statement(expr),
            StatementKind::Assign(target, op, value) => self.assign(target, *op, value, span),
            StatementKind::Let(name, ty, value) => self.declare(name, ty.as_ref(), value.as_ref()),
            StatementKind::If(test, yes, no) => self.branch(test, yes, no),
            StatementKind::While(test, body) => {
                self.forget_assigned(body);
                let mut in_test = Vec::new();
                assigned(
                    &[ast::Statement { kind: StatementKind::Expr(test.clone()), span }],
                    &mut in_test,
                );
                self.body.forget(&in_test);
                let test = self.condition(test)?;
                Ok(Statement::While(test, self.loop_body(body)))
            }
            StatementKind::Unroll(count, body) => self.unroll(count, body),
            StatementKind::ForRange(name, from, to, body) => {
                let from = self.number_value(from)?;
                let to = self.number_value(to)?;
                self.forget_assigned(body);
                let slot = self.loop_variable(name, Type::INT64);
                Ok(Statement::ForRange(slot, from, to, self.loop_body(body)))
            }
            StatementKind::ForMap(name, map, body) => self.for_map(name, map, body),
            StatementKind::Block(body) => Ok(Statement::Block(self.statements(body))),
            StatementKind::Break | StatementKind::Continue => {
                if self.body.loops == 0 {
                    return self.fail(Diagnostic::new(span, "there is no loop around this"));
                }
                Ok(match statement.kind {
                    StatementKind::Break => Statement::Break,
                    _ => Statement::Continue,
                })
            }
            StatementKind::Return(None) => Ok(Statement::Return),
            StatementKind::Return(Some(value)) => {
                let error = Diagnostic::new(value.span, "a probe's action returns no value");
                self.fail(error.help("write return; alone"))
            }
        }
    }

    /// An expression whose value is not used.
    fn expression_statement(&mut self, expr: &ast::Expr) -> Checked<Statement> {
        match &expr.kind {
            ExprKind::Call(name, arguments) => {
                if let Some(statement) = self.statement_call(name, arguments, expr.span)? {
                    return Ok(statement);
                }
            }
            // `test ? print(1) : print(2)`
            ExprKind::Ternary(test, yes, no)
                if self.is_statement_call(yes) || self.is_statement_call(no) =>
            {
                let test = self.condition(test)?;
                let yes = self.expression_statement(yes)?;
                let no = self.expression_statement(no)?;
                return Ok(Statement::If(test, vec![yes], vec![no]));
            }
            _ => {}
        }
        let operand = self.expr(expr)?;
        Ok(Statement::Expr(self.value(operand)?))
    }

    fn assign(
        &mut self,
        target: &ast::Expr,
        op: Option<BinaryOp>,
        value: &ast::Expr,
        span: Span,
    ) -> Checked<Statement> {
        match &target.kind {
            ExprKind::Map(name, keys) => {
                let (id, keys) = self.map_keys(name, keys.as_deref(), target.span)?;
                if let (None, Some((function, arguments))) = (op, aggregate_call(value)) {
                    return self.add((id, keys), function, arguments, span);
                }
                let value = match op {
                    Some(op) => self.map_changed(id, keys.clone(), op, value, span)?,
                    None => self.expr(value)?,
                };
                self.check_stored(&value, span)?;
                let ty = self.assign_map_type(id, &value.ty, span)?;
                if matches!(ty, Type::Aggregate(_)) && value.ty != Type::Unknown {
                    let message = format!("map `{name}` is one of {ty}(): it takes no other value");
                    return self.fail(Diagnostic::new(span, message));
                }
                let value = self.value(value)?;
                Ok(Statement::SetMap(id, keys, value))
            }
            ExprKind::Variable(name) => {
                let value = match op {
                    Some(op) => {
                        let old = self.expr(target)?;
                        let new = self.expr(value)?;
                        self.combine(op, old, new, span)?
                    }
                    None => self.expr(value)?,
                };
                self.set_variable(name, value, span)
            }
            _ => self.fail(Diagnostic::new(target.span, "this cannot be assigned to")),
        }
    }

    /// `@map OP= value`: a map without a value counts as 0.
    fn map_changed(
        &mut self,
        id: usize,
        keys: Vec<Expr>,
        op: BinaryOp,
        value: &ast::Expr,
        span: Span,
    ) -> Checked<Operand> {
        let new = self.expr(value)?;
        let ty = match self.maps.value_type(id) {
            Type::Unknown if new.ty.is_integer() => stored(new.ty.clone()),
            known => known.clone(),
        };
        let old = Operand::value(ty, Expr::Map(id, keys), span);
        self.combine(op, old, new, span)
    }

    /// Fails for what no map and no variable holds.
    fn check_stored(&mut self, value: &Operand, span: Span) -> Checked<()> {
        match &value.ty {
            Type::Void => self.fail(Diagnostic::new(span, "this has no value")),
            Type::Aggregate(aggregate) => {
                let message = format!("the value of {aggregate}() cannot be stored");
                self.fail(Diagnostic::new(span, message))
            }
            _ => Ok(()),
        }
    }

    fn set_variable(&mut self, name: &Arc<str>, value: Operand, span: Span) -> Checked<Statement> {
        self.check_stored(&value, span)?;
        let ty = value.ty.clone();
        let chain = value.chain().filter(|_| value.ty.scalar_bytes() == Some(8));
        let known = self.body.variables.get(name).map(|variable| variable.ty.clone());
        let ty = match known {
            None => ty,
            Some(known) => {
                // Numbers of different sizes make it one of 8 bytes.
                let Some(joined) = common(&known, &ty) else {
                    let message = format!("variable `{name}` holds `{known}`, this is `{ty}`");
                    let error = Diagnostic::new(span, message);
                    return self.fail(error.help("a variable holds values of one type"));
                };
                joined
            }
        };
        let value = self.value(value)?;
        let slot = self.slot(name, ty);
        if let Some(variable) = self.body.variables.get_mut(name) {
            variable.chain = chain;
        }
        Ok(Statement::Set(slot, value))
    }

    /// The slot of a variable, which is new or gets another type.
    fn slot(&mut self, name: &Arc<str>, ty: Type) -> usize {
        if let Some(variable) = self.body.variables.get_mut(name) {
            variable.ty = ty;
            return variable.slot;
        }
        let slot = self.body.new_slot();
        let variable = Variable { slot, ty, chain: None };
        self.body.variables.insert(Arc::clone(name), variable);
        slot
    }

    /// The variable of a loop: a new one, whatever had its name before.
    fn loop_variable(&mut self, name: &Name, ty: Type) -> usize {
        let slot = self.body.new_slot();
        let variable = Variable { slot, ty, chain: None };
        self.body.variables.insert(Arc::clone(&name.text), variable);
        slot
    }

    /// `let $x: type = value`
    fn declare(
        &mut self,
        name: &Name,
        ty: Option<&TypeName>,
        value: Option<&ast::Expr>,
    ) -> Checked<Statement> {
        // A new variable: in a loop or a block it may be declared again.
        self.body.variables.remove(&name.text);
        let declared = match ty {
            Some(ty) => Some(self.resolve(ty)?),
            None => None,
        };
        let Some(value) = value else {
            let ty = declared.map_or(Type::Unknown, stored);
            let empty = match &ty {
                Type::Text(_) => Value::text(""),
                _ => Value::Int(0),
            };
            let slot = self.slot(&name.text, ty);
            return Ok(Statement::Set(slot, Expr::Constant(empty)));
        };
        let value = self.expr(value)?;
        if let Some(declared) = declared {
            if common(&declared, &value.ty).is_none() {
                let message = format!("`{}` is no `{declared}`", value.ty);
                return self.fail(Diagnostic::new(value.span, message));
            }
            self.slot(&name.text, stored(declared));
        }
        self.set_variable(&name.text, value, name.span)
    }

    fn branch(
        &mut self,
        test: &ast::Expr,
        yes: &[ast::Statement],
        no: &[ast::Statement],
    ) -> Checked<Statement> {
        let test = self.condition(test)?;
        let before = self.body.chains();
        let yes = self.statements(yes);
        let after_yes = self.body.chains();
        self.body.restore(&before);
        let no = self.statements(no);
        self.body.join(&after_yes);
        Ok(Statement::If(test, yes, no))
    }

    fn forget_assigned(&mut self, body: &[ast::Statement]) {
        let mut changed = Vec::new();
        assigned(body, &mut changed);
        self.body.forget(&changed);
    }

    fn loop_body(&mut self, body: &[ast::Statement]) -> Vec<Statement> {
        self.body.loops += 1;
        let before = self.body.chains();
        let statements = self.statements(body);
        self.body.join(&before);
        self.body.loops -= 1;
        statements
    }

    fn unroll(&mut self, count: &ast::Expr, body: &[ast::Statement]) -> Checked<Statement> {
        let rounds = self.number(count)?;
        match rounds.constant() {
            Some(rounds) if !(1..=UNROLL_MAX).contains(&rounds) => {
                let message = format!("unroll() takes 1 to {UNROLL_MAX} rounds");
                self.fail(Diagnostic::new(count.span, message))
            }
            // Written out, the chains of pointers of each round are known.
            Some(rounds) if rounds <= WRITTEN_OUT_MAX && self.body.loops == 0 && !jumps(body) => {
                let all = (0..rounds).flat_map(|_| self.statements(body)).collect();
                Ok(Statement::Block(all))
            }
            _ => {
                self.forget_assigned(body);
                let rounds = self.value(rounds)?;
                Ok(Statement::Unroll(rounds, self.loop_body(body)))
            }
        }
    }

    /// `for ($kv : @map)`: a tuple of the key and the value.
    fn for_map(&mut self, name: &Name, map: &Name, body: &[ast::Statement]) -> Checked<Statement> {
        let id = self.named_map(&map.text);
        let value = match self.map_type_as_value(id) {
            Some(value) => value,
            None => {
                let message =
                    format!("values of `{}` are no numbers: a loop cannot show them", map.text);
                return self.fail(Diagnostic::new(map.span, message));
            }
        };
        let keys = self.maps.key_types(id).map(<[Type]>::to_vec);
        let ty = match keys {
            Some(keys) if keys.is_empty() => {
                let error = Diagnostic::new(map.span, "this map has one value, not several");
                return self.fail(error.help("a loop goes over a map with keys"));
            }
            None if self.is_last_pass => {
                let message = format!("nothing is ever assigned to map `{}`", map.text);
                return self.fail(Diagnostic::new(map.span, message));
            }
            None => Type::Unknown,
            Some(_) if value == Type::Unknown => Type::Unknown,
            Some(keys) => {
                let key = match keys.as_slice() {
                    [key] => key.clone(),
                    keys => Type::Tuple(keys.into()),
                };
                Type::Tuple([key, value].into())
            }
        };
        self.forget_assigned(body);
        let slot = self.loop_variable(name, ty);
        Ok(Statement::ForMap(slot, id, self.loop_body(body)))
    }
}
