//! Which hits count: ftrace's filter language over the numbers of a hit (events.rst, "Event filtering").
//!
//! | operator | of numbers of 64 bits, without sign |
//! |---|---|
//! | `==` `!=` `<` `<=` `>` `>=` | as they say |
//! | `&` | some bit is in both |
//! | `!` `&&` `\|\|` `( )` | in this order of strength |

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{ParseError, filter_text};

/// Most comparisons of one filter.
pub(super) const TESTS_MAX: usize = 32;
/// Most parentheses and `!` in one another.
pub(super) const GROUPS_MAX: usize = 16;

/// How a number is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Below,
    /// `<=`
    AtMost,
    /// `>`
    Above,
    /// `>=`
    AtLeast,
    /// `&`
    AnyBit,
}

impl Comparison {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Equal,
        Self::NotEqual,
        Self::Below,
        Self::AtMost,
        Self::Above,
        Self::AtLeast,
        Self::AnyBit,
    ];

    /// As it is written.
    #[must_use]
    pub fn sign(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Below => "<",
            Self::AtMost => "<=",
            Self::Above => ">",
            Self::AtLeast => ">=",
            Self::AnyBit => "&",
        }
    }

    /// What it says of two numbers.
    #[must_use]
    pub fn holds(self, value: u64, operand: u64) -> bool {
        match self {
            Self::Equal => value == operand,
            Self::NotEqual => value != operand,
            Self::Below => value < operand,
            Self::AtMost => value <= operand,
            Self::Above => value > operand,
            Self::AtLeast => value >= operand,
            Self::AnyBit => value & operand != 0,
        }
    }
}

/// What a filter can look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// An argument, by its place among them.
    Arg(usize),
    /// `common_pid`: the number of the task that was current.
    Pid,
}

/// An expression over fields; by name as written, or by [`Field`] once they are known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Filter<F = String> {
    /// One comparison.
    Test {
        /// Of what.
        field: F,
        /// How.
        comparison: Comparison,
        /// With what.
        operand: u64,
    },
    /// `!`
    Not(Box<Filter<F>>),
    /// `&&`: two or more.
    All(Vec<Filter<F>>),
    /// `||`: two or more.
    Any(Vec<Filter<F>>),
}

impl<F> Filter<F> {
    /// Whether it lets a hit through; `value` gives a field's value, `None` where it cannot be known. A comparison
    /// with such a value is false, whichever it is.
    pub fn holds(&self, value: &mut impl FnMut(&F) -> Option<u64>) -> bool {
        match self {
            Self::Test { field, comparison, operand } => {
                value(field).is_some_and(|value| comparison.holds(value, *operand))
            }
            Self::Not(inner) => !inner.holds(value),
            Self::All(all) => all.iter().all(|one| one.holds(value)),
            Self::Any(any) => any.iter().any(|one| one.holds(value)),
        }
    }

    /// The same over other fields.
    ///
    /// # Errors
    /// The first that `find` gives.
    pub fn resolve<G, E>(&self, find: &mut impl FnMut(&F) -> Result<G, E>) -> Result<Filter<G>, E> {
        let mut each = |all: &[Self]| -> Result<Vec<Filter<G>>, E> {
            all.iter().map(|one| one.resolve(find)).collect()
        };
        Ok(match self {
            Self::All(all) => Filter::All(each(all)?),
            Self::Any(any) => Filter::Any(each(any)?),
            Self::Not(inner) => Filter::Not(Box::new(inner.resolve(find)?)),
            Self::Test { field, comparison, operand } => {
                let (comparison, operand) = (*comparison, *operand);
                Filter::Test { field: find(field)?, comparison, operand }
            }
        })
    }
}

impl Filter<Field> {
    /// Whether it looks at the current task.
    #[must_use]
    pub fn asks_for_pid(&self) -> bool {
        match self {
            Self::Test { field, .. } => *field == Field::Pid,
            Self::Not(inner) => inner.asks_for_pid(),
            Self::All(all) | Self::Any(all) => all.iter().any(Self::asks_for_pid),
        }
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |f: &mut fmt::Formatter<'_>, all: &[Self], with: &str| {
            all.iter().enumerate().try_for_each(|(index, one)| {
                let between = if index == 0 { "" } else { with };
                match one {
                    Self::Test { .. } | Self::Not(_) => write!(f, "{between}{one}"),
                    Self::All(_) | Self::Any(_) => write!(f, "{between}({one})"),
                }
            })
        };
        match self {
            Self::Test { field, comparison, operand } => {
                write!(f, "{field} {} {operand:#x}", comparison.sign())
            }
            Self::Not(inner) => write!(f, "!({inner})"),
            Self::All(all) => joined(f, all, " && "),
            Self::Any(any) => joined(f, any, " || "),
        }
    }
}

impl FromStr for Filter {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        filter_text::parse(text)
    }
}

impl Serialize for Filter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Filter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(text: &str, a: Option<u64>, pid: u64) -> bool {
        let filter: Filter = text.parse().unwrap();
        filter.holds(&mut |field| if field == "a" { a } else { Some(pid) })
    }

    #[test]
    fn comparisons_are_without_sign() {
        for (text, value, expected) in [
            ("a == 3", 3, true),
            ("a == 3", 4, false),
            ("a != 3", 4, true),
            ("a < 3", 2, true),
            ("a < -1", 2, true),
            ("a <= 3", 3, true),
            ("a > 0x10", u64::MAX, true),
            ("a >= 3", 2, false),
            ("a & 6", 2, true),
            ("a & 6", 1, false),
            ("a == -12", 0_u64.wrapping_sub(12), true),
        ] {
            assert_eq!(holds(text, Some(value), 0), expected, "{text} with {value:#x}");
        }
    }

    #[test]
    fn and_binds_closer_than_or_and_not_closest() {
        for (text, expected) in [
            ("a == 1 || a == 2 && common_pid == 9", true),
            ("(a == 1 || a == 2) && common_pid == 9", false),
            ("!a == 1 || common_pid == 7", true),
            ("!(a == 1 || common_pid == 7)", false),
            ("!!(a == 1)", true),
        ] {
            assert_eq!(holds(text, Some(1), 7), expected, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_compares_with_nothing() {
        assert!(!holds("a == 0", None, 1) && !holds("a != 0", None, 1));
        assert!(holds("!(a == 0)", None, 1) && holds("a == 0 || common_pid == 1", None, 1));
    }
}
