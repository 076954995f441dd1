//! Statements.

use std::sync::Arc;

use winnow::stream::Stream;

use super::ast::{BinaryOp, Expr, ExprKind, Name, Statement, StatementKind};
use super::expression::{expression, map_name};
use super::token::{
    Input, Parsed, ahead, deeper, expect, expected, fault, here, keyword, name, since, take,
};
use super::type_name::expect_type_name;
use BinaryOp as Op;

/// Operators of assignments, the longer first.
const ASSIGNMENTS: [(&str, Option<BinaryOp>); 11] = [
    ("<<=", Some(Op::Shl)),
    (">>=", Some(Op::Shr)),
    ("+=", Some(Op::Add)),
    ("-=", Some(Op::Sub)),
    ("*=", Some(Op::Mul)),
    ("/=", Some(Op::Div)),
    ("%=", Some(Op::Mod)),
    ("&=", Some(Op::And)),
    ("|=", Some(Op::Or)),
    ("^=", Some(Op::Xor)),
    ("=", None),
];

/// Parses `{ statements }`.
pub(super) fn block(input: &mut Input<'_>) -> Parsed<Vec<Statement>> {
    expect(input, "{")?;
    let mut statements = Vec::new();
    loop {
        while take(input, ";")? {}
        if take(input, "}")? {
            return Ok(statements);
        }
        let statement = deeper(input, statement)?;
        end_statement(input, &statement)?;
        statements.push(statement);
    }
}

/// Parses `{ statements; value }`: the value is the last expression, if no `;` follows it.
pub(super) fn block_with_value(input: &mut Input<'_>) -> Parsed<(Vec<Statement>, Option<Expr>)> {
    expect(input, "{")?;
    let mut statements = Vec::new();
    loop {
        while take(input, ";")? {}
        if take(input, "}")? {
            return Ok((statements, None));
        }
        let statement = deeper(input, statement)?;
        if ahead(input)?.starts_with('}')
            && let StatementKind::Expr(value) = statement.kind
        {
            expect(input, "}")?;
            return Ok((statements, Some(value)));
        }
        end_statement(input, &statement)?;
        statements.push(statement);
    }
}

/// Takes the `;` after a statement that needs one.
fn end_statement(input: &mut Input<'_>, statement: &Statement) -> Parsed<()> {
    let has_block = matches!(
        statement.kind,
        StatementKind::If(..)
            | StatementKind::While(..)
            | StatementKind::Unroll(..)
            | StatementKind::ForMap(..)
            | StatementKind::ForRange(..)
            | StatementKind::Block(_)
    );
    if has_block || ahead(input)?.starts_with('}') || take(input, ";")? {
        return Ok(());
    }
    expected(input, "`;` or `}`")
}

fn statement(input: &mut Input<'_>) -> Parsed<Statement> {
    let start = here(input)?;
    let kind = match worded(input)? {
        Some(kind) => kind,
        None if ahead(input)?.starts_with('{') => StatementKind::Block(block(input)?),
        None => expression_or_assignment(input)?,
    };
    Ok(Statement { kind, span: since(input, start) })
}

/// A statement that begins with a word of the language.
fn worded(input: &mut Input<'_>) -> Parsed<Option<StatementKind>> {
    Ok(Some(if keyword(input, "if")? {
        if_else(input)?
    } else if keyword(input, "while")? {
        StatementKind::While(condition(input)?, block(input)?)
    } else if keyword(input, "unroll")? {
        StatementKind::Unroll(condition(input)?, block(input)?)
    } else if keyword(input, "for")? {
        for_loop(input)?
    } else if keyword(input, "let")? {
        declaration(input)?
    } else if keyword(input, "break")? {
        StatementKind::Break
    } else if keyword(input, "continue")? {
        StatementKind::Continue
    } else if keyword(input, "return")? {
        let has_value = !ahead(input)?.starts_with([';', '}']);
        StatementKind::Return(if has_value { Some(expression(input)?) } else { None })
    } else {
        return Ok(None);
    }))
}

/// A condition: in parentheses, or without.
fn condition(input: &mut Input<'_>) -> Parsed<Expr> {
    expression(input)
}

fn if_else(input: &mut Input<'_>) -> Parsed<StatementKind> {
    let test = condition(input)?;
    let yes = block(input)?;
    if !keyword(input, "else")? {
        return Ok(StatementKind::If(test, yes, Vec::new()));
    }
    if ahead(input)?.starts_with('{') {
        return Ok(StatementKind::If(test, yes, block(input)?));
    }
    let start = here(input)?;
    if !keyword(input, "if")? {
        return expected(input, "`{` or `if` after `else`");
    }
    let kind = deeper(input, if_else)?;
    let no = vec![Statement { kind, span: since(input, start) }];
    Ok(StatementKind::If(test, yes, no))
}

/// `for ($kv : @map) { }`, `for ($i : 0..10) { }`
fn for_loop(input: &mut Input<'_>) -> Parsed<StatementKind> {
    let has_parenthesis = take(input, "(")?;
    let variable = variable_name(input)?;
    expect(input, ":")?;
    let start = here(input)?;
    let from = expression(input)?;
    let kind = if take(input, "..")? {
        let to = expression(input)?;
        close(input, has_parenthesis)?;
        StatementKind::ForRange(variable, from, to, block(input)?)
    } else if let ExprKind::Map(name, None) = &from.kind {
        let map = Name { text: Arc::clone(name), span: from.span };
        close(input, has_parenthesis)?;
        StatementKind::ForMap(variable, map, block(input)?)
    } else {
        return fault(since(input, start), "a loop goes over a map or over a range `from..to`");
    };
    Ok(kind)
}

fn close(input: &mut Input<'_>, has_parenthesis: bool) -> Parsed<()> {
    if has_parenthesis { expect(input, ")") } else { Ok(()) }
}

fn variable_name(input: &mut Input<'_>) -> Parsed<Name> {
    let start = here(input)?;
    expect(input, "$")?;
    match name(input)? {
        Some(name) => {
            Ok(Name { text: format!("${}", name.text).into(), span: since(input, start) })
        }
        None => expected(input, "the name of a variable"),
    }
}

/// `let $x`, `let $x: type`, `let $x = value`
fn declaration(input: &mut Input<'_>) -> Parsed<StatementKind> {
    let variable = variable_name(input)?;
    let ty = if take(input, ":")? { Some(expect_type_name(input)?) } else { None };
    let value = if take(input, "=")? { Some(expression(input)?) } else { None };
    Ok(StatementKind::Let(variable, ty, value))
}

fn expression_or_assignment(input: &mut Input<'_>) -> Parsed<StatementKind> {
    let target = expression(input)?;
    let text = ahead(input)?;
    let found = ASSIGNMENTS.iter().find(|(mark, _)| text.starts_with(mark));
    let Some((mark, op)) = found else { return Ok(StatementKind::Expr(target)) };
    if !matches!(target.kind, ExprKind::Variable(_) | ExprKind::Map(..)) {
        return fault(target.span, "only variables ($x) and maps (@x) can be assigned to");
    }
    expect(input, mark)?;
    Ok(StatementKind::Assign(target, *op, expression(input)?))
}

/// `let @name = hash(100)` before the actions: the map and its number of entries.
pub(super) fn map_declaration(input: &mut Input<'_>) -> Parsed<Option<(Name, u64)>> {
    let checkpoint = input.checkpoint();
    if !keyword(input, "let")? {
        input.reset(&checkpoint);
        return Ok(None);
    }
    let map = map_name(input)?;
    expect(input, "=")?;
    let Some(kind) = name(input)? else { return expected(input, "a kind of map: hash(100)") };
    let known = ["hash", "lruhash", "percpuhash", "percpulruhash", "percpuarray"];
    if !known.contains(&&*kind.text) {
        return fault(kind.span, format!("unknown kind of map; known are {}", known.join(", ")));
    }
    expect(input, "(")?;
    let (entries, _) = super::token::number(input)?;
    expect(input, ")")?;
    take(input, ";")?;
    Ok(Some((map, entries)))
}
