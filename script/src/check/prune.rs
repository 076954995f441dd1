//! Leaves out what a body does not need: variables that nothing reads, and values of the hit that
//! only these would have taken.

use hashbrown::HashSet;

use crate::ir::{Call, Expr, Slot, Statement};
use crate::program::Read;

/// Prunes a body. What is left means the same.
pub(super) fn prune(filter: &mut Option<Expr>, body: &mut Vec<Statement>, reads: &mut Vec<Read>) {
    loop {
        let mut used = HashSet::new();
        visit_all(body, &mut |expr| {
            if let Expr::Variable(slot) | Expr::StepVariable(slot, ..) = expr {
                used.insert(*slot);
            }
        });
        if !remove_unused(body, &used) {
            break;
        }
    }
    let mut used = HashSet::new();
    let mut note = |expr: &mut Expr| {
        if let Expr::Read(index) = expr {
            used.insert(*index);
        }
    };
    filter.iter_mut().for_each(|filter| visit(filter, &mut note));
    visit_all(body, &mut note);
    let kept: Vec<usize> = (0..reads.len()).filter(|index| used.contains(index)).collect();
    let mut renumber = |expr: &mut Expr| {
        if let Expr::Read(index) = expr {
            *index = kept.binary_search(index).unwrap_or(0);
        }
    };
    filter.iter_mut().for_each(|filter| visit(filter, &mut renumber));
    visit_all(body, &mut renumber);
    let mut index = 0;
    reads.retain(|_| {
        index += 1;
        used.contains(&(index - 1))
    });
}

/// Removes assignments to variables that nothing reads. Returns true if there were any.
fn remove_unused(body: &mut Vec<Statement>, used: &HashSet<Slot>) -> bool {
    let before = body.len();
    body.retain_mut(|statement| match statement {
        Statement::Set(slot, value) => used.contains(slot) || !is_pure(value),
        _ => true,
    });
    let mut removed = body.len() < before;
    for statement in body {
        for inner in blocks(statement) {
            removed |= remove_unused(inner, used);
        }
    }
    removed
}

/// Returns true if evaluating the value has no effect.
fn is_pure(value: &mut Expr) -> bool {
    let mut pure = true;
    visit(value, &mut |expr| {
        let changes = matches!(
            expr,
            Expr::StepMap(..)
                | Expr::StepVariable(..)
                | Expr::Block(..)
                | Expr::Call(Call::DeleteKey(_), _)
        );
        pure &= !changes;
    });
    pure
}

/// Visits all expressions of statements, and their parts.
fn visit_all(body: &mut [Statement], with: &mut dyn FnMut(&mut Expr)) {
    for statement in body {
        for expr in exprs(statement) {
            visit(expr, with);
        }
        for inner in blocks(statement) {
            visit_all(inner, with);
        }
    }
}

/// Visits an expression and its parts.
fn visit(expr: &mut Expr, with: &mut dyn FnMut(&mut Expr)) {
    with(expr);
    match expr {
        Expr::Negate(of) | Expr::Invert(of) | Expr::Not(of) | Expr::Field(of, _) => visit(of, with),
        Expr::Cast(_, _, of) | Expr::Bits(_, _, _, of) | Expr::Load(_, of) => visit(of, with),
        Expr::IntAt(of, ..) | Expr::Part(of, ..) => visit(of, with),
        Expr::Binary(_, _, one, two) | Expr::And(one, two) | Expr::Or(one, two) => {
            visit(one, with);
            visit(two, with);
        }
        Expr::Same(_, one, two) | Expr::Element(one, two, _) => {
            visit(one, with);
            visit(two, with);
        }
        Expr::Choose(test, yes, no) => [test, yes, no].into_iter().for_each(|it| visit(it, with)),
        Expr::Map(_, all) | Expr::Tuple(all) | Expr::StepMap(_, all, ..) | Expr::Call(_, all) => {
            all.iter_mut().for_each(|expr| visit(expr, with));
        }
        Expr::Block(body, value) => {
            visit_all(body, with);
            visit(value, with);
        }
        Expr::Constant(_)
        | Expr::Variable(_)
        | Expr::Read(_)
        | Expr::Time(_)
        | Expr::Cpu
        | Expr::Random
        | Expr::ProbeName
        | Expr::FunctionName
        | Expr::StepVariable(..) => {}
    }
}

/// The expressions of a statement itself.
fn exprs(statement: &mut Statement) -> Vec<&mut Expr> {
    match statement {
        Statement::Expr(one) | Statement::Set(_, one) | Statement::Override(one) => vec![one],
        Statement::If(one, ..) | Statement::While(one, _) | Statement::Unroll(one, _) => vec![one],
        Statement::PrintValue(one, _) | Statement::Join(one, _) => vec![one],
        Statement::ForRange(_, from, to, _) => vec![from, to],
        Statement::SetMap(_, keys, value) => keys.iter_mut().chain([value]).collect(),
        Statement::Add(_, keys, values) => keys.iter_mut().chain(values).collect(),
        Statement::Printf(_, all)
        | Statement::Errorf(_, all)
        | Statement::Cat(_, all)
        | Statement::System(_, all)
        | Statement::PrintEntry(_, all)
        | Statement::Delete(_, all) => all.iter_mut().collect(),
        Statement::PrintMap(_, top, div) => top.iter_mut().chain(div).collect(),
        Statement::Exit(code) => code.iter_mut().collect(),
        Statement::ForMap(..)
        | Statement::Block(_)
        | Statement::Break
        | Statement::Continue
        | Statement::Return
        | Statement::Clear(_)
        | Statement::Zero(_)
        | Statement::Time(_) => Vec::new(),
    }
}

/// The statements within a statement.
fn blocks(statement: &mut Statement) -> Vec<&mut Vec<Statement>> {
    match statement {
        Statement::If(_, yes, no) => vec![yes, no],
        Statement::While(_, body)
        | Statement::Unroll(_, body)
        | Statement::ForRange(_, _, _, body)
        | Statement::ForMap(_, _, body)
        | Statement::Block(body) => vec![body],
        _ => Vec::new(),
    }
}
