//! Expressions.

use std::sync::Arc;

use super::ast::{BinaryOp, Expr, ExprKind, Name, UnaryOp};
use super::token::{
    DEPTH_MAX, Input, Parsed, ahead, character, deeper, expect, expect_name, expected, fault, here,
    name, number, since, take, text, word,
};
use super::type_name::{cast_type, type_name};
use crate::diagnostic::Span;
use BinaryOp as Op;

/// Operators with two operands, those of the weakest first; of one level, the longer first.
const LEVELS: [&[(&str, BinaryOp)]; 10] = [
    &[("||", Op::LogicOr)],
    &[("&&", Op::LogicAnd)],
    &[("|", Op::Or)],
    &[("^", Op::Xor)],
    &[("&", Op::And)],
    &[("==", Op::Eq), ("!=", Op::Ne)],
    &[("<=", Op::Le), (">=", Op::Ge), ("<", Op::Lt), (">", Op::Gt)],
    &[("<<", Op::Shl), (">>", Op::Shr)],
    &[("+", Op::Add), ("-", Op::Sub)],
    &[("*", Op::Mul), ("/", Op::Div), ("%", Op::Mod)],
];

/// Makes an expression, if it is not too high a tree.
fn node(input: &Input<'_>, start: usize, kind: ExprKind) -> Parsed<Expr> {
    let expr = Expr { height: 1 + kind.height(), kind, span: since(input, start) };
    if expr.height > DEPTH_MAX {
        let message = format!("expression of more than {DEPTH_MAX} levels");
        return fault(expr.span, message);
    }
    Ok(expr)
}

/// Parses an expression.
pub(super) fn expression(input: &mut Input<'_>) -> Parsed<Expr> {
    deeper(input, ternary)
}

fn ternary(input: &mut Input<'_>) -> Parsed<Expr> {
    let start = here(input)?;
    let condition = binary(input, 0)?;
    if !take(input, "?")? {
        return Ok(condition);
    }
    let yes = expression(input)?;
    expect(input, ":")?;
    let no = expression(input)?;
    node(input, start, ExprKind::Ternary(Box::new(condition), Box::new(yes), Box::new(no)))
}

/// Parses operators of a level or a stronger one.
fn binary(input: &mut Input<'_>, weakest: usize) -> Parsed<Expr> {
    let start = here(input)?;
    let mut left = unary(input)?;
    while let Some((op, mark, level)) = operator(input, weakest)? {
        expect(input, mark)?;
        let right = deeper(input, |input| binary(input, level + 1))?;
        left = node(input, start, ExprKind::Binary(op, Box::new(left), Box::new(right)))?;
    }
    Ok(left)
}

/// The next operator, if its level is not weaker than `weakest`.
fn operator(
    input: &mut Input<'_>,
    weakest: usize,
) -> Parsed<Option<(BinaryOp, &'static str, usize)>> {
    let text = ahead(input)?;
    let all = LEVELS.iter().enumerate();
    let mut all = all.flat_map(|(level, ops)| ops.iter().map(move |(mark, op)| (level, mark, op)));
    // The longest: `<<` is not `<`, `&&` is not `&`.
    let found = all.clone().filter(|(_, mark, _)| text.starts_with(**mark));
    let Some(len) = found.map(|(_, mark, _)| mark.len()).max() else { return Ok(None) };
    let longest = all.find(|(_, mark, _)| mark.len() == len && text.starts_with(**mark));
    let Some((level, mark, op)) = longest else { return Ok(None) };
    let after = &text[len..];
    let is_assignment = after.starts_with('=') && !matches!(*mark, "==" | "!=" | "<=" | ">=");
    if level < weakest || is_assignment || (*mark == "/" && ends_filter(input, after)?) {
        return Ok(None);
    }
    Ok(Some((*op, mark, level)))
}

/// Is a `/` the end of a filter: does an action follow?
fn ends_filter(input: &Input<'_>, after: &str) -> Parsed<bool> {
    let mut rest = Input { input: winnow::stream::LocatingSlice::new(after), state: input.state };
    Ok(ahead(&mut rest)?.starts_with('{'))
}

fn unary(input: &mut Input<'_>) -> Parsed<Expr> {
    let start = here(input)?;
    for (mark, step) in [("++", 1), ("--", -1)] {
        if take(input, mark)? {
            let target = deeper(input, unary)?;
            return node(input, start, ExprKind::Step(step, true, Box::new(target)));
        }
    }
    let marks = [
        ("-", UnaryOp::Negate),
        ("!", UnaryOp::Not),
        ("~", UnaryOp::Invert),
        ("*", UnaryOp::Dereference),
        ("&", UnaryOp::AddressOf),
        ("+", UnaryOp::Plus),
    ];
    for (mark, op) in marks {
        if take(input, mark)? {
            let operand = deeper(input, unary)?;
            return node(input, start, ExprKind::Unary(op, Box::new(operand)));
        }
    }
    if let Some(ty) = cast_type(input)? {
        let operand = deeper(input, unary)?;
        return node(input, start, ExprKind::Cast(ty, Box::new(operand)));
    }
    postfix(input)
}

fn postfix(input: &mut Input<'_>) -> Parsed<Expr> {
    let start = here(input)?;
    let mut expr = primary(input)?;
    loop {
        let kind = if take(input, "->")? {
            let member = expect_name(input, "the name of a member")?;
            ExprKind::Member(Box::new(expr), member, true)
        } else if ahead(input)?.starts_with("..") {
            return Ok(expr);
        } else if take(input, ".")? {
            field(input, expr)?
        } else if take(input, "[")? {
            let index = expression(input)?;
            expect(input, "]")?;
            ExprKind::Index(Box::new(expr), Box::new(index))
        } else if take(input, "++")? {
            ExprKind::Step(1, false, Box::new(expr))
        } else if take(input, "--")? {
            ExprKind::Step(-1, false, Box::new(expr))
        } else {
            return Ok(expr);
        };
        expr = node(input, start, kind)?;
    }
}

/// Parses what follows the dot of `x.member` or `x.0`.
fn field(input: &mut Input<'_>, of: Expr) -> Parsed<ExprKind> {
    let text = ahead(input)?;
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        let member = expect_name(input, "the name of a member, or the number of a field")?;
        return Ok(ExprKind::Member(Box::new(of), member, false));
    }
    let start = here(input)?;
    winnow::Parser::parse_next(&mut winnow::token::take(digits), input)?;
    match text[..digits].parse() {
        Ok(index) => Ok(ExprKind::TupleField(Box::new(of), index)),
        Err(_) => fault(since(input, start), "no tuple has so many fields"),
    }
}

fn primary(input: &mut Input<'_>) -> Parsed<Expr> {
    let start = here(input)?;
    let kind = match ahead(input)?.chars().next() {
        Some('0'..='9') => {
            let (value, unsigned) = number(input)?;
            ExprKind::Int(value, unsigned)
        }
        Some('"') => {
            let mut all = text(input)?.to_vec();
            while ahead(input)?.starts_with('"') {
                all.extend(text(input)?.iter());
            }
            ExprKind::Text(all.into())
        }
        Some('\'') => ExprKind::Int(character(input)?, false),
        Some('$') => dollar(input)?,
        Some('@') => map(input)?,
        Some('(') => return parentheses(input),
        Some('{') => return block_expression(input),
        _ => match name(input)? {
            Some(name) => named(input, name)?,
            None => return expected(input, "an expression"),
        },
    };
    node(input, start, kind)
}

/// `{ statements; value }`: statements with a value.
fn block_expression(input: &mut Input<'_>) -> Parsed<Expr> {
    let start = here(input)?;
    let (body, value) = (input.state.block)(input)?;
    match value {
        Some(value) => node(input, start, ExprKind::Block(body, Box::new(value))),
        None => fault(since(input, start), "this block has no value: end it with an expression"),
    }
}

/// `$name`, `$1` or `$#`.
fn dollar(input: &mut Input<'_>) -> Parsed<ExprKind> {
    let start = here(input)?;
    expect(input, "$")?;
    let text: &str = input.input.as_ref();
    if text.starts_with('#') {
        expect(input, "#")?;
        return Ok(ExprKind::ParamCount);
    }
    if text.starts_with(|char: char| char.is_ascii_digit()) {
        let (value, _) = number(input)?;
        return match u32::try_from(value) {
            Ok(value @ 1..) => Ok(ExprKind::Param(value)),
            _ => fault(since(input, start), "parameters are $1, $2 and so on"),
        };
    }
    match winnow::Parser::parse_next(&mut winnow::combinator::opt(word), input)? {
        Some(name) => Ok(ExprKind::Variable(format!("${name}").into())),
        None => expected(input, "the name of a variable after `$`"),
    }
}

/// `@name` and its keys.
fn map(input: &mut Input<'_>) -> Parsed<ExprKind> {
    let name = map_name(input)?;
    if !take(input, "[")? {
        return Ok(ExprKind::Map(name.text, None));
    }
    let keys = list(input, "]")?;
    Ok(ExprKind::Map(name.text, Some(keys)))
}

/// `@name`
pub(super) fn map_name(input: &mut Input<'_>) -> Parsed<Name> {
    let start = here(input)?;
    expect(input, "@")?;
    let name = winnow::Parser::parse_next(&mut winnow::combinator::opt(word), input)?;
    let text: Arc<str> = format!("@{}", name.unwrap_or_default()).into();
    Ok(Name { text, span: since(input, start) })
}

/// Expressions with commas between, up to and with `close`.
fn list(input: &mut Input<'_>, close: &'static str) -> Parsed<Vec<Expr>> {
    let mut exprs = Vec::new();
    if take(input, close)? {
        return Ok(exprs);
    }
    loop {
        exprs.push(expression(input)?);
        if take(input, close)? {
            return Ok(exprs);
        }
        if !take(input, ",")? {
            return expected(input, &format!("`,` or `{close}`"));
        }
    }
}

/// `(a)` or a tuple: `(a, b)`, `(a,)`.
fn parentheses(input: &mut Input<'_>) -> Parsed<Expr> {
    let start = here(input)?;
    expect(input, "(")?;
    if take(input, ")")? {
        return node(input, start, ExprKind::Tuple(Vec::new()));
    }
    let first = expression(input)?;
    if take(input, ")")? {
        return Ok(Expr { span: since(input, start), ..first });
    }
    if !take(input, ",")? {
        return expected(input, "`,` or `)`");
    }
    let mut of = vec![first];
    of.extend(list(input, ")")?);
    node(input, start, ExprKind::Tuple(of))
}

/// A call, or a name alone.
fn named(input: &mut Input<'_>, name: Name) -> Parsed<ExprKind> {
    if !ahead(input)?.starts_with('(') {
        return Ok(ExprKind::Ident(name.text));
    }
    expect(input, "(")?;
    match &*name.text {
        "sizeof" => sizeof(input),
        "offsetof" => offsetof(input, name.span),
        _ => Ok(ExprKind::Call(name, list(input, ")")?)),
    }
}

fn sizeof(input: &mut Input<'_>) -> Parsed<ExprKind> {
    let kind = match type_name(input)? {
        Some(ty) => ExprKind::SizeofType(ty),
        None => ExprKind::SizeofExpr(Box::new(expression(input)?)),
    };
    expect(input, ")")?;
    Ok(kind)
}

fn offsetof(input: &mut Input<'_>, _: Span) -> Parsed<ExprKind> {
    let ty = type_name(input)?;
    let of = if ty.is_none() { Some(expression(input)?) } else { None };
    expect(input, ",")?;
    let mut path = vec![expect_name(input, "the name of a member")?];
    while take(input, ".")? {
        path.push(expect_name(input, "the name of a member")?);
    }
    expect(input, ")")?;
    match (ty, of) {
        (Some(ty), _) => Ok(ExprKind::Offsetof(ty, path)),
        (None, Some(of)) => Ok(ExprKind::OffsetofExpr(Box::new(of), path)),
        (None, None) => expected(input, "a struct"),
    }
}
