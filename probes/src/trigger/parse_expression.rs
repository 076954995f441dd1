//! Reads the expressions of histograms.

use super::expression::{Expression, Operator, Variable, VariableName};
use super::field::HistField;
use super::part::{Part, field};
use crate::definition::{ParseError, fault, parse_number};

/// Most variables of a histogram (TRACING_MAP_VARS_MAX).
pub(super) const VARIABLES_MAX: usize = 16;
/// Most operators of an expression.
const OPERATORS_MAX: u32 = 3;
/// A modifier that has the sign of an operator.
const SYM_OFFSET: &str = ".sym-offset";

/// The variables of a histogram as they are written: `NAME=EXPRESSION`.
#[derive(Default)]
pub(super) struct Definitions<'a>(Vec<(Part<'a>, Part<'a>)>);

impl<'a> Definitions<'a> {
    /// Adds the variables of a parameter.
    ///
    /// # Errors
    /// MALFORMED_ASSIGNMENT, TOO_MANY_VARS, DUPLICATE_VAR.
    pub(super) fn add(&mut self, list: Part<'a>) -> Result<(), ParseError> {
        for assignment in list.split(",") {
            let (name, Some(value)) = assignment.cut("=") else {
                let message = "write a variable as `NAME=EXPRESSION`";
                return Err(fault("MALFORMED_ASSIGNMENT", assignment.at, message));
            };
            if self.0.len() == VARIABLES_MAX {
                let message = format!("a histogram has at most {VARIABLES_MAX} variables");
                return Err(fault("TOO_MANY_VARS", name.at, message));
            }
            if let Some((other, _)) = self.0.iter().find(|(other, _)| other.text == name.text) {
                let message = "two variables of the histogram have this name";
                return Err(fault("DUPLICATE_VAR", other.at, message));
            }
            self.0.push((name, value));
        }
        Ok(())
    }

    /// Number of the variables.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Parses their values.
    pub(super) fn variables(&self) -> Result<Vec<Variable>, ParseError> {
        let variable = |(name, value): &(Part<'a>, Part<'a>)| {
            Ok(Variable { name: name.text.to_owned(), value: self.expression(*value)? })
        };
        self.0.iter().map(variable).collect()
    }

    /// Parses an expression of the histogram. As in the kernel, a variable of its own that is a
    /// field of the event stands for that field.
    pub(super) fn expression(&self, part: Part<'_>) -> Result<Expression, ParseError> {
        self.expression_within(part, &mut 0)
    }

    fn expression_within(
        &self,
        part: Part<'_>,
        operators: &mut u32,
    ) -> Result<Expression, ParseError> {
        let Some(root) = root(part.text) else { return self.operand(part) };
        *operators += 1;
        if *operators > OPERATORS_MAX {
            let message = format!("an expression has at most {OPERATORS_MAX} operators");
            return Err(fault("TOO_MANY_SUBEXPR", part.at, message));
        }
        let (at, operator) = match root {
            Root::Negation => return self.negated(part, operators),
            Root::Binary(at, operator) => (at, operator),
        };
        let (one, other) = (part.to(at), part.from(at + 1));
        if let Some(lacking) = [one, other].iter().find(|operand| operand.text.is_empty()) {
            let message = format!("an operand of the `{operator}` belongs here");
            return Err(fault("HIST_CREATE_FAIL", lacking.at, message));
        }
        let one = self.expression_within(one, operators)?;
        let other = self.expression_within(other, operators)?;
        Ok(match (&one, operator, &other) {
            // A division by 0 is refused with the event.
            (_, Operator::Divide, Expression::Constant(0)) => operation(one, operator, other),
            (Expression::Constant(first), _, Expression::Constant(second)) => {
                Expression::Constant(operator.apply(*first, *second))
            }
            _ => operation(one, operator, other),
        })
    }

    /// Parses `-(OPERAND)`.
    fn negated(&self, part: Part<'_>, operators: &mut u32) -> Result<Expression, ParseError> {
        let operand = part.from(1);
        let (true, Some(end)) = (operand.text.starts_with('('), operand.text.rfind(')')) else {
            let message = "after a `-` alone the operand is in brackets: `-(FIELD)`";
            return Err(fault("HIST_CREATE_FAIL", operand.at, message));
        };
        if end + 1 < operand.text.len() {
            let message = "a `-` alone is of a whole expression: nothing may follow its `)`";
            return Err(fault("UNARY_MINUS_SUBEXPR", operand.at + 1, message));
        }
        let operand = self.expression_within(operand.to(end).from(1), operators)?;
        Ok(Expression::Negated(Box::new(operand)))
    }

    /// Parses a number, a field or a variable.
    fn operand(&self, part: Part<'_>) -> Result<Expression, ParseError> {
        if part.text.starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(Expression::Constant(constant(part)?));
        }
        let (event, part) = event_of(part);
        let name = match part.text.strip_prefix('$') {
            Some(name) if !name.is_empty() => name,
            _ => return Ok(Expression::Field(field(part)?)),
        };
        match self.field_of(name).filter(|_| event.is_none()) {
            Some(found) => Ok(Expression::Field(found?)),
            None => Ok(Expression::Variable(VariableName { event, name: name.to_owned() })),
        }
    }

    /// The field that one of these variables stands for.
    fn field_of(&self, name: &str) -> Option<Result<HistField, ParseError>> {
        let is_it = |(own, value): &&(Part<'a>, Part<'a>)| own.text == name && is_field(*value);
        self.0.iter().find(is_it).map(|(_, value)| field(event_of(*value).1))
    }
}

pub(super) fn constant(part: Part<'_>) -> Result<u64, ParseError> {
    let message = "a number is decimal, 0x... hexadecimal or 0... octal, and has 64 bits";
    parse_number(part.text).ok_or_else(|| fault("EXPECT_NUMBER", part.at, message))
}

/// Returns true if an expression is a field alone.
fn is_field(part: Part<'_>) -> bool {
    let is_other = |text: &str| text.starts_with(|c: char| c == '$' || c.is_ascii_digit());
    root(part.text).is_none() && !is_other(part.text) && !is_other(event_of(part).1.text)
}

fn operation(one: Expression, operator: Operator, other: Expression) -> Expression {
    Expression::Operation(Box::new(one), operator, Box::new(other))
}

/// Splits off the event of `GROUP.EVENT.NAME`.
pub(super) fn event_of(part: Part<'_>) -> (Option<(String, String)>, Part<'_>) {
    let (group, rest) = part.cut(".");
    match rest.map(|rest| rest.cut(".")) {
        Some((event, Some(name))) => (Some((group.text.to_owned(), event.text.to_owned())), name),
        _ => (None, part),
    }
}

/// The operator of an expression that is applied last.
enum Root {
    Negation,
    Binary(usize, Operator),
}

/// Finds it as the kernel does: the last `-` or `+`, otherwise the last `/` or `*`. Brackets do not
/// count.
fn root(text: &str) -> Option<Root> {
    let last = |signs: [(char, Operator); 2]| {
        let found = signs.map(|(sign, operator)| text.rfind(sign).map(|at| (at, operator)));
        found.into_iter().flatten().max_by_key(|(at, _)| *at)
    };
    match text.rfind('-') {
        Some(0) => return Some(Root::Negation),
        Some(at) if text.get(at.saturating_sub(4)..).is_some_and(|t| t.starts_with(SYM_OFFSET)) => {
            return None;
        }
        _ => {}
    }
    let sum = last([('-', Operator::Minus), ('+', Operator::Plus)]);
    let found = sum.or_else(|| last([('/', Operator::Divide), ('*', Operator::Times)]));
    found.map(|(at, operator)| Root::Binary(at, operator))
}
