//! Macros: their bodies with the arguments in place of the parameters, and with variables of
//! their own.

use std::sync::Arc;

use hashbrown::HashMap;

use super::checker::{Checked, Checker, Reported};
use super::operand::Operand;
use crate::diagnostic::{Diagnostic, Span};
use crate::ir;
use crate::syntax::ast::{Expr, ExprKind, Macro, Name, Statement, StatementKind};
use crate::types::Type;

/// Deepest nesting of macros in macros.
const NESTING_MAX: usize = 16;

impl Checker<'_> {
    /// Checks a macro's body with its arguments.
    pub(super) fn expand(
        &mut self,
        of: &Arc<Macro>,
        arguments: &[Expr],
        span: Span,
    ) -> Checked<Operand> {
        if self.body.macros >= NESTING_MAX {
            let message = format!("limit `macros` of {NESTING_MAX} reached: does it use itself?");
            return self.fail(Diagnostic::new(span, message));
        }
        let count = of.parameters.len();
        self.count_arguments(&of.name, arguments, count..=count, span)?;
        self.body.scopes += 1;
        let mut bound = Substitution { scope: self.body.scopes, ..Substitution::default() };
        for (parameter, argument) in of.parameters.iter().zip(arguments) {
            let fits = match (&parameter.kind, &argument.kind) {
                (ExprKind::Variable(_), ExprKind::Variable(_)) | (ExprKind::Ident(_), _) => true,
                (ExprKind::Map(..), ExprKind::Map(_, None)) => true,
                // A value that the macro may change needs a variable of its own.
                (ExprKind::Variable(_), _) => true,
                _ => false,
            };
            let (ExprKind::Variable(name) | ExprKind::Map(name, _) | ExprKind::Ident(name)) =
                &parameter.kind
            else {
                continue;
            };
            if !fits {
                let message = format!("the argument for `{name}` must be a map");
                return self.fail(Diagnostic::new(argument.span, message));
            }
            bound.arguments.insert(Arc::clone(name), argument.clone());
        }
        self.body.macros += 1;
        let checked = self.expanded(of, &bound, span);
        self.body.macros -= 1;
        checked
    }

    fn expanded(&mut self, of: &Macro, bound: &Substitution, span: Span) -> Checked<Operand> {
        let body: Vec<Statement> = of.body.iter().map(|it| bound.statement(it)).collect();
        let before = self.errors.len();
        let statements = self.statements(&body);
        if self.errors.len() > before {
            return Err(Reported);
        }
        let Some(value) = &of.value else {
            let value = Box::new(ir::Expr::Constant(crate::value::Value::Int(0)));
            return Ok(Operand::value(Type::Void, ir::Expr::Block(statements, value), span));
        };
        let value = bound.expr(value);
        if self.is_statement_call(&value) {
            let mut statements = statements;
            statements.extend(
                self.statements(&[Statement {
                    span: value.span,
                    kind: StatementKind::Expr(value),
                }]),
            );
            let value = Box::new(ir::Expr::Constant(crate::value::Value::Int(0)));
            return Ok(Operand::value(Type::Void, ir::Expr::Block(statements, value), span));
        }
        let value = self.expr(&value)?;
        if statements.is_empty() {
            return Ok(Operand { span, ..value });
        }
        let ty = value.ty.clone();
        let value = Box::new(self.value(value)?);
        Ok(Operand::value(ty, ir::Expr::Block(statements, value), span))
    }
}

/// Arguments by the names of their parameters; other variables become the macro's own.
#[derive(Default)]
struct Substitution {
    arguments: HashMap<Arc<str>, Expr>,
    scope: usize,
}

impl Substitution {
    fn own(&self, name: &Arc<str>) -> Arc<str> {
        match self.arguments.get(name).map(|argument| &argument.kind) {
            Some(ExprKind::Variable(other) | ExprKind::Map(other, _)) => Arc::clone(other),
            _ if name.starts_with('$') => format!("{name}#{}", self.scope).into(),
            _ => Arc::clone(name),
        }
    }

    fn name(&self, name: &Name) -> Name {
        Name { text: self.own(&name.text), span: name.span }
    }

    fn all(&self, exprs: &[Expr]) -> Vec<Expr> {
        exprs.iter().map(|expr| self.expr(expr)).collect()
    }

    fn boxed(&self, expr: &Expr) -> Box<Expr> {
        Box::new(self.expr(expr))
    }

    fn expr(&self, expr: &Expr) -> Expr {
        let kind = match &expr.kind {
            ExprKind::Ident(name) => match self.arguments.get(name) {
                Some(argument) => return argument.clone(),
                None => expr.kind.clone(),
            },
            ExprKind::Variable(name) => match self.arguments.get(name) {
                Some(argument) => return argument.clone(),
                None => ExprKind::Variable(self.own(name)),
            },
            ExprKind::Map(name, keys) => {
                ExprKind::Map(self.own(name), keys.as_ref().map(|keys| self.all(keys)))
            }
            ExprKind::Call(name, arguments) => ExprKind::Call(name.clone(), self.all(arguments)),
            ExprKind::Unary(op, of) => ExprKind::Unary(*op, self.boxed(of)),
            ExprKind::Step(step, before, of) => ExprKind::Step(*step, *before, self.boxed(of)),
            ExprKind::Binary(op, left, right) => {
                ExprKind::Binary(*op, self.boxed(left), self.boxed(right))
            }
            ExprKind::Ternary(test, yes, no) => {
                ExprKind::Ternary(self.boxed(test), self.boxed(yes), self.boxed(no))
            }
            ExprKind::Cast(ty, of) => ExprKind::Cast(ty.clone(), self.boxed(of)),
            ExprKind::Member(of, name, arrow) => {
                ExprKind::Member(self.boxed(of), name.clone(), *arrow)
            }
            ExprKind::Index(of, index) => ExprKind::Index(self.boxed(of), self.boxed(index)),
            ExprKind::TupleField(of, index) => ExprKind::TupleField(self.boxed(of), *index),
            ExprKind::Tuple(of) => ExprKind::Tuple(self.all(of)),
            ExprKind::SizeofExpr(of) => ExprKind::SizeofExpr(self.boxed(of)),
            ExprKind::OffsetofExpr(of, path) => {
                ExprKind::OffsetofExpr(self.boxed(of), path.clone())
            }
            ExprKind::Block(body, value) => ExprKind::Block(self.block(body), self.boxed(value)),
            other => other.clone(),
        };
        Expr { kind, ..*expr }
    }

    fn block(&self, statements: &[Statement]) -> Vec<Statement> {
        statements.iter().map(|statement| self.statement(statement)).collect()
    }

    fn statement(&self, statement: &Statement) -> Statement {
        let kind = match &statement.kind {
            StatementKind::Expr(expr) => StatementKind::Expr(self.expr(expr)),
            StatementKind::Assign(target, op, value) => {
                StatementKind::Assign(self.expr(target), *op, self.expr(value))
            }
            StatementKind::Let(name, ty, value) => {
                let value = value.as_ref().map(|value| self.expr(value));
                StatementKind::Let(self.name(name), ty.clone(), value)
            }
            StatementKind::If(test, yes, no) => {
                StatementKind::If(self.expr(test), self.block(yes), self.block(no))
            }
            StatementKind::While(test, body) => {
                StatementKind::While(self.expr(test), self.block(body))
            }
            StatementKind::Unroll(count, body) => {
                StatementKind::Unroll(self.expr(count), self.block(body))
            }
            StatementKind::ForMap(name, map, body) => {
                StatementKind::ForMap(self.name(name), self.name(map), self.block(body))
            }
            StatementKind::ForRange(name, from, to, body) => {
                let (from, to) = (self.expr(from), self.expr(to));
                StatementKind::ForRange(self.name(name), from, to, self.block(body))
            }
            StatementKind::Block(body) => StatementKind::Block(self.block(body)),
            other => other.clone(),
        };
        Statement { kind, span: statement.span }
    }
}
