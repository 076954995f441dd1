//! Expressions of histograms (histogram.rst, "Histogram Variables"): keys, values and variables are
//! computed by them.

use std::fmt;

use super::field::{HITCOUNT_FIELD, HistField, Modifier, TIME_FIELD};

/// Computes a number for a hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// A field of the event.
    Field(HistField),
    /// A constant.
    Constant(u64),
    /// A variable of another histogram.
    Variable(VariableName),
    /// `-(OPERAND)`.
    Negated(Box<Expression>),
    /// Two operands.
    Operation(Box<Expression>, Operator, Box<Expression>),
}

/// Name of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariableName {
    /// Group and name of its event, as in `GROUP.EVENT.$NAME`.
    pub event: Option<(String, String)>,
    /// Its name, without the `$`.
    pub name: String,
}

/// A variable of a histogram, which has a value in each entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value at a hit.
    pub value: Expression,
}

/// Operator of an expression. Numbers have 64 bits and no sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `+`, modulo 2^64.
    Plus,
    /// `-`, modulo 2^64.
    Minus,
    /// `*`, modulo 2^64.
    Times,
    /// `/`; by 0 it is 2^64 - 1, as in the kernel.
    Divide,
}

impl Operator {
    pub(crate) fn apply(self, one: u64, other: u64) -> u64 {
        match self {
            Self::Plus => one.wrapping_add(other),
            Self::Minus => one.wrapping_sub(other),
            Self::Times => one.wrapping_mul(other),
            Self::Divide => one.checked_div(other).unwrap_or(u64::MAX),
        }
    }
}

impl Expression {
    /// Its name in listings and as a sort key: of a variable without the `$`.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Field(field) => field.name.clone(),
            Self::Variable(VariableName { event: None, name }) => name.clone(),
            _ => self.to_string(),
        }
    }

    /// A field's modifier.
    #[must_use]
    pub fn modifier(&self) -> Modifier {
        match self {
            Self::Field(field) => field.modifier,
            _ => Modifier::None,
        }
    }

    /// Its name and modifier.
    pub(crate) fn shown(&self) -> HistField {
        HistField { name: self.name(), modifier: self.modifier() }
    }

    /// Returns true for the count of hits as it is.
    pub(crate) fn is_hitcount(&self) -> bool {
        matches!(self, Self::Field(field) if field.is_hitcount())
    }

    /// Returns true if a sort key can have this name. That of the count of hits is nothing else's,
    /// also where a variable has it.
    pub(crate) fn is_sorted_as(&self, name: &str) -> bool {
        match self {
            _ if name == HITCOUNT_FIELD => false,
            Self::Field(field) => field.name == name,
            Self::Variable(VariableName { event: None, name: own }) => {
                // The file lists it with the `$`.
                name == own || name.strip_prefix('$') == Some(own)
            }
            _ => self.to_string() == name,
        }
    }

    /// Returns true if it has the time of a hit.
    pub(crate) fn has_time(&self) -> bool {
        match self {
            Self::Field(field) => field.name == TIME_FIELD,
            Self::Constant(_) | Self::Variable(_) => false,
            Self::Negated(operand) => operand.has_time(),
            Self::Operation(one, _, other) => one.has_time() || other.has_time(),
        }
    }

    /// Returns true if it refers to a variable.
    pub(crate) fn has_variable(&self) -> bool {
        match self {
            Self::Variable(_) => true,
            Self::Field(_) | Self::Constant(_) => false,
            Self::Negated(operand) => operand.has_variable(),
            Self::Operation(one, _, other) => one.has_variable() || other.has_variable(),
        }
    }

    /// Changes its fields, constants and variables.
    pub(crate) fn change_operands(&mut self, change: &impl Fn(&mut Self)) {
        match self {
            Self::Field(_) | Self::Constant(_) | Self::Variable(_) => change(self),
            Self::Negated(operand) => operand.change_operands(change),
            Self::Operation(one, _, other) => {
                one.change_operands(change);
                other.change_operands(change);
            }
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plus => "+",
            Self::Minus => "-",
            Self::Times => "*",
            Self::Divide => "/",
        })
    }
}

impl fmt::Display for VariableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((group, event)) = &self.event {
            write!(f, "{group}.{event}.")?;
        }
        write!(f, "${}", self.name)
    }
}

/// The expression as it can be written: operators of one rank associate to the left.
impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(field) => field.fmt(f),
            Self::Constant(number) => number.fmt(f),
            Self::Variable(name) => name.fmt(f),
            Self::Negated(operand) => write!(f, "-({operand})"),
            Self::Operation(one, operator, other) => write!(f, "{one}{operator}{other}"),
        }
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}
