//! Parses filters in the kernel's order: first quotes and parentheses, then from left to right,
//! each field before its operator and operand. So of several faults the same one is found.

use std::str::FromStr;

use super::error::ParseError;
use super::field_kind::{FieldKind, FieldKinds};
use super::filter::{Comparison, Filter, GROUPS_MAX, TESTS_MAX, TextTest};
use super::filter_balance::check_balance;
use super::filter_cpus::Cpus;
use super::filter_fault::{FilterError, FilterFault};
use super::filter_function::FilterFunction;
use super::names::USER_TEXT;
use super::number::parse_signed;

/// Suffix of an address in a filter of the kernel's: the function that has it.
const FUNCTION: &str = ".function";
/// Begin of a list of CPUs.
const CPUS: &str = "CPUS";
/// Longest text of a comparison, in bytes (MAX_FILTER_STR_VAL).
const TEXT_MAX: usize = 255;
/// Bytes that a filter is shorter than: the kernel's tracer takes a page of text.
pub const FILTER_MAX: usize = 4096;
/// Most characters of a number.
const NUMBER_MAX: usize = 23;

/// The longer of two operators with the same beginning comes first.
const OPERATORS: [(&str, Operator); 9] = [
    ("~", Operator::Glob(false)),
    ("!~", Operator::Glob(true)),
    ("!=", Operator::Compare(Comparison::NotEqual)),
    ("==", Operator::Compare(Comparison::Equal)),
    ("<=", Operator::Compare(Comparison::AtMost)),
    ("<", Operator::Compare(Comparison::Below)),
    (">=", Operator::Compare(Comparison::AtLeast)),
    (">", Operator::Compare(Comparison::Above)),
    ("&", Operator::Compare(Comparison::AnyBit)),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Compare(Comparison),
    /// `~`, or, with `true`, `!~`.
    Glob(bool),
}

/// Parses a whole filter over these fields.
///
/// # Errors
/// [`FilterError`]: the first fault that the kernel's tracer finds.
pub(super) fn parse(text: &str, fields: &FieldKinds) -> Result<Filter, FilterError> {
    check_balance(text)?;
    let mut parser = Parser { text, at: 0, fields, tests: 0 };
    let filter = parser.any(GROUPS_MAX)?;
    match parser.rest().is_empty() {
        true => Ok(filter),
        false => parser.fail(FilterFault::NoParenthesis, parser.at),
    }
}

struct Parser<'a> {
    text: &'a str,
    /// Column of what is parsed next.
    at: usize,
    fields: &'a FieldKinds,
    tests: usize,
}

/// A field, its operator, and where its operand begins.
struct Begun {
    name: String,
    kind: FieldKind,
    /// `.function` follows the field.
    is_function: bool,
    operator: Operator,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_blanks(&mut self) {
        self.at = self.text.len() - self.rest().trim_ascii_start().len();
    }

    fn takes(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    /// Takes characters as long as they are such.
    fn take(&mut self, is_such: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let taken = &rest[..rest.find(|c| !is_such(c)).unwrap_or(rest.len())];
        self.at += taken.len();
        taken
    }

    /// A fault with the caret at a column.
    fn fail<T>(&self, fault: FilterFault, caret: usize) -> Result<T, FilterError> {
        Err(FilterError { fault, position: self.at, caret })
    }

    /// A fault within a comparison, whose caret is one column after the place.
    fn fail_after<T>(&self, fault: FilterFault, position: usize) -> Result<T, FilterError> {
        Err(FilterError { fault, position, caret: self.at + 1 })
    }

    fn any(&mut self, groups: usize) -> Result<Filter, FilterError> {
        let mut all = vec![self.all(groups)?];
        while self.takes("||") {
            all.push(self.all(groups)?);
        }
        Ok(joined(all, Filter::Any))
    }

    fn all(&mut self, groups: usize) -> Result<Filter, FilterError> {
        let mut all = vec![self.joint(groups)?];
        while self.takes("&&") {
            all.push(self.joint(groups)?);
        }
        Ok(joined(all, Filter::All))
    }

    /// One operand of `&&` or `||`, up to what joins it with the next.
    fn joint(&mut self, groups: usize) -> Result<Filter, FilterError> {
        let one = self.one(groups)?;
        self.skip_blanks();
        let rest = self.rest();
        match rest.is_empty() || ["&&", "||", ")"].iter().any(|join| rest.starts_with(join)) {
            true => Ok(one),
            false => self.fail(FilterFault::NotJoined, self.at),
        }
    }

    /// `groups`: number of parentheses and `!` that may still be opened.
    fn one(&mut self, groups: usize) -> Result<Filter, FilterError> {
        self.skip_blanks();
        let deeper = || match groups.checked_sub(1) {
            Some(left) => Ok(left),
            None => self.fail(FilterFault::TooDeep, self.at),
        };
        match self.rest().as_bytes() {
            [] if self.tests == 0 => self.fail(FilterFault::NoComparison, self.at),
            [] => self.fail(FilterFault::Incomplete, self.at),
            [b'!', b'=' | b'~', ..] => self.fail(FilterFault::NoField, 0),
            [b'!', ..] => {
                let left = deeper()?;
                self.at += 1;
                Ok(Filter::Not(Box::new(self.one(left)?)))
            }
            [b'(', ..] => {
                let (begin, left) = (self.at, deeper()?);
                self.at += 1;
                let inner = self.any(left)?;
                match self.takes(")") {
                    true => Ok(inner),
                    false => self.fail(FilterFault::OpenParenthesis, begin),
                }
            }
            _ => self.test(),
        }
    }

    fn test(&mut self) -> Result<Filter, FilterError> {
        if self.tests >= TESTS_MAX {
            return self.fail(FilterFault::TooMany, self.at);
        }
        self.tests += 1;
        let begun = self.begin()?;
        let begin = self.at;
        match self.rest().chars().next() {
            _ if begun.is_function => self.function(begun),
            _ if self.rest().starts_with(CPUS) => self.cpus(begun),
            Some(quote @ ('"' | '\'')) => self.quoted(begun, quote),
            Some('0'..='9' | '-') => self.number(begun),
            _ => self.fail_after(FilterFault::NoOperand, begin),
        }
    }

    /// The field and operator of a comparison.
    fn begin(&mut self) -> Result<Begun, FilterError> {
        let begin = self.at;
        let name = self.take(|c| c.is_ascii_alphanumeric() || c == '_');
        if name.is_empty() {
            return self.fail(FilterFault::NoField, 0);
        }
        let Some(mut kind) = self.fields.find(name) else {
            return self.fail_after(FilterFault::UnknownField, begin);
        };
        let mut name = name.to_owned();
        if self.takes(USER_TEXT) {
            name += USER_TEXT;
            kind = FieldKind::Text;
        }
        let is_function = self.takes(FUNCTION);
        self.skip_blanks();
        let Some((sign, operator)) =
            OPERATORS.iter().find(|(sign, _)| self.rest().starts_with(sign))
        else {
            return self.fail_after(FilterFault::NoOperator, self.at);
        };
        self.at += sign.len();
        self.skip_blanks();
        Ok(Begun { name, kind, is_function, operator: *operator })
    }

    /// The rest of a comparison with a function, whose name ends at a blank.
    fn function(&mut self, begun: Begun) -> Result<Filter, FilterError> {
        let Begun { name: field, kind, operator, .. } = begun;
        let begin = self.at;
        if !matches!(kind, FieldKind::Unknown | FieldKind::Number { is_quad: true, .. }) {
            return self.fail_after(FilterFault::WrongOperator, begin);
        }
        let not = match operator {
            Operator::Compare(Comparison::Equal) => false,
            Operator::Compare(Comparison::NotEqual) => true,
            _ => return self.fail_after(FilterFault::NoOperator, begin),
        };
        let is_number = self.rest().starts_with(|c: char| c.is_ascii_digit());
        let function = if is_number {
            let number = self.take(|c| c.is_ascii_alphanumeric());
            if number.len() > NUMBER_MAX {
                return self.fail_after(FilterFault::LongOperand, begin);
            }
            match parse_signed(number) {
                Some(at) => FilterFunction::At(at),
                None => return self.fail_after(FilterFault::NoOperand, begin),
            }
        } else {
            FilterFunction::Named(self.take(|c| !c.is_ascii_whitespace()).into())
        };
        let is_empty = function == FilterFunction::Named(Box::default());
        if is_empty || !self.fields.has_function(&function) {
            return self.fail_after(FilterFault::NoFunction, begin);
        }
        // It is two comparisons: with the begin and the end.
        self.tests += 1;
        if self.tests > TESTS_MAX {
            return self.fail(FilterFault::TooMany, begin);
        }
        Ok(Filter::Function { field, not, function })
    }

    /// The rest of a comparison with a list of CPUs.
    fn cpus(&mut self, begun: Begun) -> Result<Filter, FilterError> {
        let Begun { name, kind, operator, .. } = begun;
        let begin = self.at;
        let comparison = match operator {
            Operator::Compare(
                of @ (Comparison::Equal | Comparison::NotEqual | Comparison::AnyBit),
            ) if kind != FieldKind::Text => of,
            _ => return self.fail_after(FilterFault::WrongOperator, begin),
        };
        self.at += CPUS.len();
        if !self.takes("{") {
            let (position, caret) = (self.at, self.at + 2);
            return Err(FilterError { fault: FilterFault::NoBrace, position, caret });
        }
        let list = self.take(|c| c != '}');
        if self.rest().is_empty() {
            return self.fail_after(FilterFault::OpenBrace, begin);
        }
        let found = Cpus::parse(list, self.fields.last_cpu()).filter(|_| !list.is_empty());
        let Some(cpus) = found else {
            return self.fail_after(FilterFault::WrongCpus, begin);
        };
        self.tests += cpus.tests() - 1;
        if self.tests > TESTS_MAX {
            return self.fail(FilterFault::TooMany, begin);
        }
        self.at += "}".len();
        Ok(cpus.filter(&name, comparison))
    }

    /// The rest of a comparison with a number.
    fn number(&mut self, begun: Begun) -> Result<Filter, FilterError> {
        let Begun { name: field, kind, operator, .. } = begun;
        let begin = self.at;
        if kind == FieldKind::Text {
            return self.fail_after(FilterFault::Text, begin);
        }
        let Operator::Compare(comparison) = operator else {
            return self.fail_after(FilterFault::WrongOperator, begin);
        };
        let is_negative = self.takes("-");
        self.take(|c| c.is_ascii_alphanumeric());
        let number = &self.text[begin..self.at];
        if number.len() > NUMBER_MAX {
            return self.fail_after(FilterFault::LongOperand, begin);
        }
        let has_sign = matches!(kind, FieldKind::Number { is_signed: true, .. });
        // Without a sign in the text, a number of a field with one has 63 bits.
        let fits = |number: &u64| is_negative || !has_sign || *number <= i64::MAX.cast_unsigned();
        match parse_signed(number).filter(fits) {
            Some(operand) => Ok(Filter::Test { field, comparison, operand }),
            None => Err(FilterError {
                fault: FilterFault::WrongNumber,
                position: begin,
                caret: begin + 1,
            }),
        }
    }

    /// The rest of a comparison with text.
    fn quoted(&mut self, begun: Begun, quote: char) -> Result<Filter, FilterError> {
        let Begun { name: field, kind, operator, .. } = begun;
        let begin = self.at;
        let (glob, not) = match operator {
            Operator::Glob(not) => (true, not),
            Operator::Compare(Comparison::Equal) => (false, false),
            Operator::Compare(Comparison::NotEqual) => (false, true),
            Operator::Compare(_) => return self.fail_after(FilterFault::WrongOperator, begin),
        };
        if matches!(kind, FieldKind::Number { .. }) {
            return self.fail_after(FilterFault::Number, begin);
        }
        self.at += quote.len_utf8();
        let text = self.take(|c| c != quote).to_owned();
        if self.rest().is_empty() {
            return self.fail_after(FilterFault::OpenQuote, begin);
        }
        if text.len() > TEXT_MAX {
            return self.fail_after(FilterFault::LongOperand, begin);
        }
        self.at += quote.len_utf8();
        Ok(Filter::Match { field, test: TextTest { glob, not, text } })
    }
}

fn joined(mut all: Vec<Filter>, join: impl Fn(Vec<Filter>) -> Filter) -> Filter {
    match all.pop() {
        Some(one) if all.is_empty() => one,
        Some(last) => {
            all.push(last);
            join(all)
        }
        None => join(all),
    }
}

impl FromStr for Filter {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        if text.len() >= FILTER_MAX {
            let message = format!("a filter has less than {FILTER_MAX} bytes");
            return Err(ParseError { message, position: FILTER_MAX, id: "TOO_LONG" });
        }
        Ok(parse(text, &FieldKinds::Unknown)?)
    }
}

#[cfg(test)]
mod tests;
