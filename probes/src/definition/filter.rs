//! Filters of hits: ftrace's filter language over the values of a hit (events.rst, "Event
//! filtering").
//!
//! | operator | of numbers, with sign where the field's type has one |
//! |---|---|
//! | `==` `!=` `<` `<=` `>` `>=` | the usual comparisons |
//! | `&` | some bit is in both |
//! | `==` `!=` `"text"` | a text is this one, or is not |
//! | `~` `!~` `"glob"` | a text matches, or not: `*` any text, `?` a character, `[a-z]` a set |
//! | `NAME.ustring ~ "glob"` | the same for user text, whose address is a number |
//! | `NAME.function == FUNCTION` | the number is an address in this function, or, by `!=`, is not |
//! | `!` `&&` `\|\|` `( )` | in this order of precedence |

use std::convert::Infallible;
use std::fmt;
use std::hash::Hash;
use std::ops::Range;

use super::filter_function::FilterFunction;
use super::value::ValueType;

/// Most comparisons of one filter.
pub(super) const TESTS_MAX: usize = 32;
/// Most nested parentheses and `!`.
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

    /// As written.
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

    /// Compares two numbers, as signed ones with `is_signed`.
    #[must_use]
    pub fn holds(self, value: u64, operand: u64, is_signed: bool) -> bool {
        let order = match is_signed {
            true => value.cast_signed().cmp(&operand.cast_signed()),
            false => value.cmp(&operand),
        };
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Below => order.is_lt(),
            Self::AtMost => order.is_le(),
            Self::Above => order.is_gt(),
            Self::AtLeast => order.is_ge(),
            Self::AnyBit => value & operand != 0,
        }
    }
}

/// A field of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// An argument.
    Arg {
        /// Its index.
        index: usize,
        /// Its type, which is a number's.
        kind: ValueType,
    },
    /// An argument that is text.
    Text {
        /// Its index.
        index: usize,
    },
    /// User text, whose address is an argument.
    UserText {
        /// Its index.
        index: usize,
    },
    /// `common_pid`: the number of the task that was current.
    Pid,
    /// `CPU`: the number of the vCPU.
    Cpu,
    /// `common_type`: the number of the event.
    Event,
    /// `comm`: the name of the current task.
    Comm,
    /// `__probe_ip`, of a return probe `__probe_func`: the probe's address.
    At,
    /// `__probe_ret_ip`: where a return probe's function returned to.
    ReturnedTo,
    /// A number that is known before the hit.
    Known(u64),
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldValue {
    /// A word, as it was fetched.
    Word(u64),
    /// Text.
    Text(Vec<u8>),
}

impl From<u64> for FieldValue {
    fn from(word: u64) -> Self {
        Self::Word(word)
    }
}

/// How text is compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TextTest {
    /// It is a pattern: `~`, not `==`.
    pub glob: bool,
    /// Inverts the match: `!=`, `!~`.
    pub not: bool,
    /// The operand.
    pub text: String,
}

impl TextTest {
    /// As written.
    #[must_use]
    pub fn sign(&self) -> &'static str {
        match (self.glob, self.not) {
            (false, false) => "==",
            (false, true) => "!=",
            (true, false) => "~",
            (true, true) => "!~",
        }
    }

    fn holds(&self, value: &[u8]) -> bool {
        let is_match = match self.glob {
            true => exoprobe_introspect::glob_matches(self.text.as_bytes(), value),
            false => self.text.as_bytes() == value,
        };
        is_match != self.not
    }
}

/// The reason why a filter does not fit its probe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// The field does not exist.
    #[error("the filter's `{0}` is no field of this probe")]
    NoSuch(String),
    /// It compares text with a number.
    #[error("the filter's `{0}` is text: compare it by `==`, `!=` or `~` with a \"text\"")]
    Text(String),
    /// It compares a number with text.
    #[error("the filter's `{0}` is a number: compare it with one")]
    Number(String),
    /// The field is not an address.
    #[error(
        "the filter's `{0}` is no 64-bit address, so neither `.ustring` nor `.function` can follow it"
    )]
    NoAddress(String),
    /// No function has the name or the address that the field is compared with.
    #[error("the filter compares `{0}` with a function that the kernel does not have")]
    NoFunction(String),
    /// The field has several values.
    #[error("the filter's `{0}` is an array, which cannot be compared")]
    Array(String),
}

impl FieldError {
    /// The field concerned.
    #[must_use]
    pub fn field(&self) -> &String {
        match self {
            Self::NoSuch(name)
            | Self::Text(name)
            | Self::Number(name)
            | Self::NoAddress(name)
            | Self::NoFunction(name)
            | Self::Array(name) => name,
        }
    }
}

impl Field {
    /// The number in a fetched word, and whether it is signed.
    fn number(self, word: u64) -> (u64, bool) {
        match self {
            Self::Arg { kind, .. } => (kind.narrow(word), kind.is_signed()),
            // As `int`s of the kernel's.
            Self::Pid | Self::Cpu => (word, true),
            _ => (word, false),
        }
    }
}

/// Use of a field in a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldUse {
    /// Compared with a number.
    Number,
    /// Compared with text.
    Text,
    /// Compared with a function, by `.function`.
    Function,
}

/// A field of a filter: by its name, or resolved.
pub trait FilterField {
    /// The function that such a field is compared with.
    type Function: Clone + fmt::Debug + PartialEq + Eq + Hash;
}

impl FilterField for String {
    type Function = FilterFunction;
}

/// Functions are resolved to addresses with the fields.
impl FilterField for Field {
    type Function = Infallible;
}

/// An expression over fields; by name as written, or by [`Field`] once they are known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Filter<F: FilterField = String> {
    /// One comparison.
    Test {
        /// The field.
        field: F,
        /// The comparison.
        comparison: Comparison,
        /// The operand.
        operand: u64,
    },
    /// One comparison of text.
    Match {
        /// The field.
        field: F,
        /// The comparison and its operand.
        test: TextTest,
    },
    /// `.function`: an address is in a function.
    Function {
        /// The field.
        field: F,
        /// It is not in it: `!=`.
        not: bool,
        /// The function.
        function: F::Function,
    },
    /// `!`
    Not(Box<Filter<F>>),
    /// `&&`: two or more.
    All(Vec<Filter<F>>),
    /// `||`: two or more.
    Any(Vec<Filter<F>>),
}

impl<F: FilterField> Filter<F> {
    /// The same filter over other fields, found by `find` for their use, with the addresses of
    /// functions that `function` finds for a field's name.
    ///
    /// # Errors
    /// The first error of `find` or `function`.
    pub fn resolve<G: FilterField + Clone, E>(
        &self,
        find: &mut impl FnMut(&F, FieldUse) -> Result<G, E>,
        function: &mut impl FnMut(&F, &F::Function) -> Result<Range<u64>, E>,
    ) -> Result<Filter<G>, E> {
        let mut each = |all: &[Self]| -> Result<Vec<Filter<G>>, E> {
            all.iter().map(|one| one.resolve(find, function)).collect()
        };
        Ok(match self {
            Self::All(all) => Filter::All(each(all)?),
            Self::Any(any) => Filter::Any(each(any)?),
            Self::Not(inner) => Filter::Not(Box::new(inner.resolve(find, function)?)),
            Self::Test { field, comparison, operand } => {
                let (comparison, operand) = (*comparison, *operand);
                Filter::Test { field: find(field, FieldUse::Number)?, comparison, operand }
            }
            Self::Match { field, test } => {
                Filter::Match { field: find(field, FieldUse::Text)?, test: test.clone() }
            }
            Self::Function { field, not, function: of } => {
                let found = find(field, FieldUse::Function)?;
                within(found, function(field, of)?, *not)
            }
        })
    }
}

/// A number is in a range, or, with `not`, is not.
fn within<F: FilterField + Clone>(field: F, range: Range<u64>, not: bool) -> Filter<F> {
    let test = |field, comparison, operand| Filter::Test { field, comparison, operand };
    let (first, end) = match not {
        false => (Comparison::AtLeast, Comparison::Below),
        true => (Comparison::Below, Comparison::AtLeast),
    };
    let both = vec![test(field.clone(), first, range.start), test(field, end, range.end)];
    if not { Filter::Any(both) } else { Filter::All(both) }
}

impl Filter<Field> {
    /// Returns true if the filter accepts a hit; `fetch` returns a field's value, `None` if it
    /// cannot be known. Every comparison with such a value is false.
    pub fn holds<V: Into<FieldValue>>(&self, fetch: &mut impl FnMut(Field) -> Option<V>) -> bool {
        match self {
            Self::Test { field, comparison, operand } => match fetch(*field).map(V::into) {
                Some(FieldValue::Word(word)) => {
                    let (value, is_signed) = field.number(word);
                    comparison.holds(value, *operand, is_signed)
                }
                _ => false,
            },
            Self::Match { field, test } => match fetch(*field).map(V::into) {
                Some(FieldValue::Text(text)) => test.holds(&text),
                _ => false,
            },
            Self::Function { function, .. } => match *function {},
            Self::Not(inner) => !inner.holds(fetch),
            Self::All(all) => all.iter().all(|one| one.holds(fetch)),
            Self::Any(any) => any.iter().any(|one| one.holds(fetch)),
        }
    }

    /// Returns true if it compares a field for which `is_one` returns true.
    #[must_use]
    pub fn asks_for(&self, is_one: &impl Fn(Field) -> bool) -> bool {
        match self {
            Self::Test { field, .. } | Self::Match { field, .. } => is_one(*field),
            Self::Function { function, .. } => match *function {},
            Self::Not(inner) => inner.asks_for(is_one),
            Self::All(all) | Self::Any(all) => all.iter().any(|one| one.asks_for(is_one)),
        }
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Writes only necessary parentheses: their nesting is limited.
        let joined = |f: &mut fmt::Formatter<'_>, all: &[Self], with: &str| {
            all.iter().enumerate().try_for_each(|(index, one)| {
                let between = if index == 0 { "" } else { with };
                match (self, one) {
                    (Self::Any(_), Self::Any(_)) | (Self::All(_), Self::Any(_) | Self::All(_)) => {
                        write!(f, "{between}({one})")
                    }
                    _ => write!(f, "{between}{one}"),
                }
            })
        };
        match self {
            Self::Test { field, comparison, operand } => {
                write!(f, "{field} {} {operand:#x}", comparison.sign())
            }
            Self::Match { field, test } => {
                // A text has at most one kind of quotes in it.
                let quote = if test.text.contains('"') { '\'' } else { '"' };
                write!(f, "{field} {} {quote}{}{quote}", test.sign(), test.text)
            }
            Self::Function { field, not, function } => {
                // A function's name ends at a blank.
                write!(f, "{field}.function {}= {function} ", if *not { '!' } else { '=' })
            }
            Self::Not(inner) => match &**inner {
                Self::All(_) | Self::Any(_) => write!(f, "!({inner})"),
                _ => write!(f, "!{inner}"),
            },
            Self::All(all) => joined(f, all, " && "),
            Self::Any(any) => joined(f, any, " || "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `a` is of the type, all else the task's number.
    fn typed(text: &str, kind: &str, a: Option<u64>, pid: u64) -> bool {
        let (filter, kind) = (text.parse::<Filter>().unwrap(), kind.parse().unwrap());
        let a_or_pid = |name: &String| match &**name {
            "a" => Field::Arg { index: 0, kind },
            _ => Field::Pid,
        };
        let mut function = |_: &String, _: &FilterFunction| Ok(0x100..0x200);
        let Ok(filter) =
            filter.resolve(&mut |name, _| Ok::<_, Infallible>(a_or_pid(name)), &mut function);
        filter.holds(&mut |field| if field == Field::Pid { Some(pid) } else { a })
    }

    fn holds(text: &str, a: Option<u64>, pid: u64) -> bool {
        typed(text, "x64", a, pid)
    }

    #[test]
    fn a_tasks_number_has_a_sign() {
        assert!(holds("common_pid > -1", None, 7) && !holds("common_pid < -1", None, 7));
    }

    #[test]
    fn types_say_how_wide_numbers_are_and_whether_they_have_signs() {
        let word = 0x1234_5678_ffff_ff9c;
        for (text, kind, expected) in [
            ("a == -100", "s32", true),
            ("a < 0", "s32", true),
            ("a >= -100", "s32", true),
            ("a > 5", "s32", false),
            ("a == 4294967196", "u32", true),
            ("a < 0", "u32", false),
            ("a == 0x9c", "x8", true),
            ("a == -100", "s8", true),
            ("a & 0x100", "u8", false),
            ("a & 0x8000000000000000", "s32", true),
        ] {
            assert_eq!(typed(text, kind, Some(word), 0), expected, "{text} of {kind}");
        }
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
    fn an_address_is_in_a_function_or_not() {
        for (value, is_in) in [(0xff, false), (0x100, true), (0x1ff, true), (0x200, false)] {
            assert_eq!(holds("a.function == f", Some(value), 0), is_in, "{value:#x}");
            assert_eq!(holds("a.function != f", Some(value), 0), !is_in, "{value:#x}");
            assert!(holds("a.function == f || common_pid == 7", Some(value), 7));
        }
        assert!(!holds("a.function != f", None, 0), "what is not known is in no relation");
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
