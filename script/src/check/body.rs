//! A body: its filter and statements, and its variables.

use std::sync::Arc;

use super::checker::{Checked, Checker, Reported};
use super::place::Place;
use super::state::BodyState;
use crate::diagnostic::{Diagnostic, Span};
use crate::program::Body;
use crate::syntax::ast::{Action, Expr, ExprKind, Statement, StatementKind};

/// Most expressions of a script, with all macros and loops expanded.
const WORK_MAX: usize = 500_000;
/// Deepest nesting of expressions with macros expanded.
const DEPTH_MAX: usize = 200;

impl Checker<'_> {
    /// Checks an action at a place. Returns the body, and whether it uses the place's arguments.
    pub(super) fn body(&mut self, action: &Action, place: &Place) -> Option<(Body, bool)> {
        self.body = BodyState { place: Some(place.clone()), ..BodyState::default() };
        let before = self.errors.len();
        let filter = action.filter.as_ref().map(|filter| self.condition(filter));
        let statements = self.statements(&action.body);
        let filter = match filter {
            Some(Err(Reported)) => return None,
            Some(Ok(filter)) => Some(filter),
            None => None,
        };
        if self.errors.len() > before && self.is_last_pass {
            return None;
        }
        let state = std::mem::take(&mut self.body);
        let BodyState { mut reads, needs_exit, slots, uses_args, .. } = state;
        let (mut filter, mut statements) = (filter, statements);
        super::prune::prune(&mut filter, &mut statements, &mut reads);
        let span = action.span;
        let body = Body { span, reads, needs_exit, filter, statements, variables: slots };
        Some((body, uses_args))
    }

    /// Counts an expression or statement. Fails where a script is too large or too deep.
    pub(super) fn enter(&mut self, span: Span) -> Checked<()> {
        self.work += 1;
        if self.work > WORK_MAX {
            let message = format!("limit `expressions` of {WORK_MAX} reached");
            return self.fail(Diagnostic::new(span, message));
        }
        if self.body.depth >= DEPTH_MAX {
            let message = format!("limit `depth` of {DEPTH_MAX} reached");
            return self.fail(Diagnostic::new(span, message));
        }
        self.body.depth += 1;
        Ok(())
    }

    pub(super) fn leave(&mut self) {
        self.body.depth -= 1;
    }
}

/// Variables that statements assign to.
pub(super) fn assigned(statements: &[Statement], found: &mut Vec<Arc<str>>) {
    for statement in statements {
        match &statement.kind {
            StatementKind::Expr(expr) => assigned_in(expr, found),
            StatementKind::Assign(target, _, value) => {
                if let ExprKind::Variable(name) = &target.kind {
                    found.push(Arc::clone(name));
                }
                assigned_in(value, found);
            }
            StatementKind::Let(name, _, _) => found.push(Arc::clone(&name.text)),
            StatementKind::If(_, yes, no) => {
                assigned(yes, found);
                assigned(no, found);
            }
            StatementKind::ForMap(name, _, body) | StatementKind::ForRange(name, _, _, body) => {
                found.push(Arc::clone(&name.text));
                assigned(body, found);
            }
            StatementKind::While(test, body) => {
                assigned_in(test, found);
                assigned(body, found);
            }
            StatementKind::Unroll(_, body) | StatementKind::Block(body) => assigned(body, found),
            StatementKind::Break | StatementKind::Continue | StatementKind::Return(_) => {}
        }
    }
}

/// Variables that an expression changes by `++` and `--`, also as an argument of a macro.
fn assigned_in(expr: &Expr, found: &mut Vec<Arc<str>>) {
    match &expr.kind {
        ExprKind::Step(_, _, of) => {
            if let ExprKind::Variable(name) = &of.kind {
                found.push(Arc::clone(name));
            }
        }
        ExprKind::Call(_, arguments) => {
            for argument in arguments {
                if let ExprKind::Variable(name) = &argument.kind {
                    found.push(Arc::clone(name));
                }
                assigned_in(argument, found);
            }
        }
        ExprKind::Tuple(of) => of.iter().for_each(|expr| assigned_in(expr, found)),
        ExprKind::Unary(_, of)
        | ExprKind::Cast(_, of)
        | ExprKind::Member(of, ..)
        | ExprKind::TupleField(of, _) => assigned_in(of, found),
        ExprKind::Binary(_, left, right) | ExprKind::Index(left, right) => {
            assigned_in(left, found);
            assigned_in(right, found);
        }
        ExprKind::Ternary(one, two, three) => {
            [one, two, three].into_iter().for_each(|expr| assigned_in(expr, found));
        }
        ExprKind::Block(statements, value) => {
            assigned(statements, found);
            assigned_in(value, found);
        }
        ExprKind::Map(_, keys) => {
            keys.iter().flatten().for_each(|key| assigned_in(key, found));
        }
        _ => {}
    }
}

/// Do statements leave a loop: `break`, `continue`?
pub(super) fn jumps(statements: &[Statement]) -> bool {
    statements.iter().any(|statement| match &statement.kind {
        StatementKind::Break | StatementKind::Continue => true,
        StatementKind::If(_, yes, no) => jumps(yes) || jumps(no),
        StatementKind::Block(body) => jumps(body),
        _ => false,
    })
}
