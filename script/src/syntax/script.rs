//! A whole script: definitions and actions.

use std::sync::Arc;

use winnow::stream::Stream;

use super::ast::{Action, Composite, EnumDef, Expr, ExprKind, Field, FieldType, Macro, Name, Tree};
use super::expression::expression;
use super::preprocess::{DefineText, Preprocessed};
use super::statement::{block, block_with_value, map_declaration};
use super::token::{
    Fault, Input, Parsed, ahead, deeper, expect, expect_name, expected, fault, here, keyword, name,
    number, since, take,
};
use super::type_name::{base_name, lengths, stars};
use crate::diagnostic::{Diagnostic, Span};
use winnow::error::ErrMode;

/// Parses the text that the preprocessor left.
pub(super) fn parse(text: &Preprocessed) -> Result<Tree, Diagnostic> {
    let mut input = super::token::input(&text.text, block_with_value);
    let mut tree = items(&mut input).map_err(diagnostic)?;
    for define in &text.defines {
        // A macro that is no expression may be for structs alone: an error only where it is used.
        if let Ok(value) = define_value(&text.original, define) {
            tree.defines.push(super::ast::Define { name: define.name.clone(), value });
        }
    }
    Ok(tree)
}

fn diagnostic(error: ErrMode<Fault>) -> Diagnostic {
    match error {
        ErrMode::Backtrack(fault) | ErrMode::Cut(fault) => fault.0,
        ErrMode::Incomplete(_) => Diagnostic::new(Span::default(), "the script is not whole"),
    }
}

/// The value of `#define NAME value`, with places in the script.
fn define_value(original: &str, define: &DefineText) -> Result<Expr, Diagnostic> {
    // All before the value counts as blanks, so that places are right.
    let end = define.value.end;
    let mut input = super::token::input(&original[..end], block_with_value);
    input.next_slice(define.value.start);
    let value = expression(&mut input).map_err(diagnostic)?;
    match ahead(&mut input) {
        Ok("") => Ok(value),
        _ => Err(Diagnostic::new(define.value, "not an expression")),
    }
}

fn items(input: &mut Input<'_>) -> Parsed<Tree> {
    let mut tree = Tree::default();
    while !ahead(input)?.is_empty() {
        item(input, &mut tree)?;
    }
    Ok(tree)
}

fn item(input: &mut Input<'_>, tree: &mut Tree) -> Parsed<()> {
    let checkpoint = input.checkpoint();
    for (tag, is_union) in [("struct", false), ("union", true)] {
        if keyword(input, tag)? {
            let name = expect_name(input, "a name")?;
            let composite = composite(input, name, is_union)?;
            tree.composites.push(Arc::new(composite));
            take(input, ";")?;
            return Ok(());
        }
    }
    if keyword(input, "enum")? {
        tree.enums.push(enumeration(input)?);
        take(input, ";")?;
    } else if keyword(input, "macro")? {
        tree.macros.push(Arc::new(macro_definition(input)?));
    } else if let Some(size) = map_declaration(input)? {
        tree.map_sizes.push(size);
    } else if keyword(input, "config")? && take(input, "=")? {
        tree.config.extend(config(input)?);
    } else {
        input.reset(&checkpoint);
        tree.actions.push(action(input)?);
    }
    Ok(())
}

/// `{ name = value; ... }`
fn config(input: &mut Input<'_>) -> Parsed<Vec<(Name, Expr)>> {
    expect(input, "{")?;
    let mut settings = Vec::new();
    loop {
        while take(input, ";")? {}
        if take(input, "}")? {
            return Ok(settings);
        }
        let name = expect_name(input, "the name of a setting")?;
        expect(input, "=")?;
        settings.push((name, expression(input)?));
        if !ahead(input)?.starts_with('}') {
            expect(input, ";")?;
        }
    }
}

/// `name($x, @y) { ... }`
fn macro_definition(input: &mut Input<'_>) -> Parsed<Macro> {
    let name = expect_name(input, "the name of the macro")?;
    expect(input, "(")?;
    let mut parameters = Vec::new();
    while !take(input, ")")? {
        let start = here(input)?;
        let parameter = expression(input)?;
        let is_name = matches!(
            parameter.kind,
            ExprKind::Variable(_) | ExprKind::Map(_, None) | ExprKind::Ident(_)
        );
        if !is_name {
            return fault(since(input, start), "a macro's parameters are $x, @x, or a name");
        }
        parameters.push(parameter);
        if !ahead(input)?.starts_with(')') {
            expect(input, ",")?;
        }
    }
    let (body, value) = block_with_value(input)?;
    Ok(Macro { name, parameters, body, value })
}

/// Members of a struct: `{ int x; struct y *z; }`.
fn composite(input: &mut Input<'_>, name: Name, is_union: bool) -> Parsed<Composite> {
    expect(input, "{")?;
    let mut fields = Vec::new();
    while !take(input, "}")? {
        deeper(input, |input| field_line(input, &mut fields))?;
    }
    Ok(Composite { name, is_union, fields })
}

/// One declaration, of one or more members.
fn field_line(input: &mut Input<'_>, fields: &mut Vec<Field>) -> Parsed<()> {
    let inner = inner_composite(input)?;
    let base = match inner {
        Some(_) => None,
        None => match base_name(input)? {
            Some((name, _)) => Some(name),
            None => return expected(input, "a member, or `}`"),
        },
    };
    loop {
        let start = here(input)?;
        let pointers = stars(input)?;
        if ahead(input)?.starts_with('(') {
            return fault(since(input, start), "members that are functions are not known here");
        }
        let member = name(input)?;
        let lengths = lengths(input)?;
        let bits = if take(input, ":")? { u8::try_from(number(input)?.0).ok() } else { None };
        let span = since(input, start);
        let member = member.unwrap_or(Name { text: "".into(), span });
        let ty = match (&inner, &base) {
            (Some(inner), _) => FieldType::Inner(Arc::clone(inner), pointers, lengths),
            (None, base) => {
                let name = base.clone().unwrap_or_else(|| "".into());
                FieldType::Named(super::ast::TypeName { name, pointers, lengths, span })
            }
        };
        fields.push(Field { name: member, ty, bits });
        if take(input, ";")? {
            return Ok(());
        }
        expect(input, ",")?;
    }
}

/// A struct or union that is written within another.
fn inner_composite(input: &mut Input<'_>) -> Parsed<Option<Arc<Composite>>> {
    let checkpoint = input.checkpoint();
    let start = here(input)?;
    for (tag, is_union) in [("struct", false), ("union", true)] {
        if keyword(input, tag)? {
            let found = name(input)?;
            if ahead(input)?.starts_with('{') {
                let span = since(input, start);
                let name = found.unwrap_or(Name { text: "".into(), span });
                let inner = deeper(input, |input| composite(input, name, is_union))?;
                return Ok(Some(Arc::new(inner)));
            }
        }
    }
    input.reset(&checkpoint);
    Ok(None)
}

/// `name { A, B = 2 }`
fn enumeration(input: &mut Input<'_>) -> Parsed<EnumDef> {
    let start = here(input)?;
    let name = name(input)?.unwrap_or(Name { text: "".into(), span: since(input, start) });
    expect(input, "{")?;
    let mut values = Vec::new();
    while !take(input, "}")? {
        let constant = expect_name(input, "the name of a constant")?;
        let value = if take(input, "=")? { Some(expression(input)?) } else { None };
        values.push((constant, value));
        if !ahead(input)?.starts_with('}') {
            expect(input, ",")?;
        }
    }
    Ok(EnumDef { name, values })
}

/// Probes, a filter and a body.
fn action(input: &mut Input<'_>) -> Parsed<Action> {
    let start = here(input)?;
    let mut points = vec![point(input)?];
    while take(input, ",")? {
        points.push(point(input)?);
    }
    let filter = if take(input, "/")? {
        let filter = expression(input)?;
        expect(input, "/")?;
        Some(filter)
    } else {
        None
    };
    let span = since(input, start);
    if !ahead(input)?.starts_with('{') {
        return expected(input, "`{`, the start of the action");
    }
    Ok(Action { points, filter, body: block(input)?, span })
}

/// Kinds of probes whose places are files.
const OF_FILES: [&str; 8] = ["u", "uprobe", "ur", "uretprobe", "usdt", "U", "w", "watchpoint"];

/// The text of a probe.
fn point(input: &mut Input<'_>) -> Parsed<Name> {
    let start = here(input)?;
    let kind = ahead(input)?;
    if !kind.starts_with(|char: char| char.is_ascii_alphabetic() || "*_".contains(char)) {
        return expected(input, "a probe, such as `kprobe:vfs_read`");
    }
    let is_of_file = {
        let rest = ahead(input)?;
        let kind = rest.split(':').next().unwrap_or_default();
        OF_FILES.contains(&kind) || kind == "asyncwatchpoint"
    };
    let mut text = String::new();
    let mut is_quoted = false;
    while let Some(char) = input.input.as_ref().chars().next() {
        let ends = char.is_whitespace() || char == ',' || char == '{';
        if !is_quoted && (ends || (char == '/' && !is_of_file)) {
            break;
        }
        match char {
            '"' => is_quoted = !is_quoted,
            '\n' => return fault(since(input, start), "text without its closing `\"`"),
            _ => text.push(char),
        }
        input.next_token();
    }
    let span = since(input, start);
    Ok(Name { text: text.into(), span })
}
