//! Parses filters. Positions are columns of the text, identifiers those of the tracer (error_log).

use std::str::FromStr;

use winnow::ascii::multispace0;
use winnow::combinator::{alt, eof, opt, preceded, repeat_till, terminated};
use winnow::prelude::*;
use winnow::stream::{AsChar, LocatingSlice, Location};
use winnow::token::{self, take_while};

use super::error::ParseError;
use super::filter::{Comparison, Filter, GROUPS_MAX, TESTS_MAX, TextTest};
use super::names::{USER_TEXT, is_event_name};
use super::number::parse_signed;

/// Syntax of a filter, for error messages.
const FORM: &str =
    "write `NAME == 5` or `NAME ~ \"text*\"`, and `&&`, `||`, `!`, `( )` between such";
/// Longest text of a comparison, in bytes (MAX_FILTER_STR_VAL).
const TEXT_MAX: usize = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenKind {
    Word,
    Comparison(Comparison),
    /// `~`, or, with `true`, `!~`.
    Glob(bool),
    /// Quoted text; `text` is without the quotes.
    Quoted,
    /// A quote whose text does not end.
    OpenQuote,
    And,
    Or,
    Not,
    Open,
    Close,
    /// A character that begins no token.
    Other,
}

#[derive(Clone, Copy)]
struct Token<'a> {
    kind: TokenKind,
    text: &'a str,
    at: usize,
}

type Input<'a> = LocatingSlice<&'a str>;

/// The longer of two operators with the same beginning comes first.
fn sign(input: &mut Input<'_>) -> winnow::ModalResult<TokenKind> {
    alt((
        alt((
            "&&".value(TokenKind::And),
            "||".value(TokenKind::Or),
            "(".value(TokenKind::Open),
            ")".value(TokenKind::Close),
        )),
        "==".value(TokenKind::Comparison(Comparison::Equal)),
        "!=".value(TokenKind::Comparison(Comparison::NotEqual)),
        alt(("!~".value(TokenKind::Glob(true)), "~".value(TokenKind::Glob(false)))),
        "<=".value(TokenKind::Comparison(Comparison::AtMost)),
        ">=".value(TokenKind::Comparison(Comparison::AtLeast)),
        alt((
            "<".value(TokenKind::Comparison(Comparison::Below)),
            ">".value(TokenKind::Comparison(Comparison::Above)),
        )),
        "&".value(TokenKind::Comparison(Comparison::AnyBit)),
        "!".value(TokenKind::Not),
    ))
    .parse_next(input)
}

/// Text between two quotes of one kind.
fn quoted<'a>(input: &mut Input<'a>) -> winnow::ModalResult<(TokenKind, &'a str)> {
    let quote = token::one_of(['"', '\'']).parse_next(input)?;
    let text = token::take_till(0.., quote).parse_next(input)?;
    let is_closed = opt(quote).parse_next(input)?.is_some();
    Ok((if is_closed { TokenKind::Quoted } else { TokenKind::OpenQuote }, text))
}

fn lex<'a>(input: &mut Input<'a>) -> winnow::ModalResult<Token<'a>> {
    let at = input.current_token_start();
    let word = take_while(1.., |c: char| c.is_alphanum() || matches!(c, '_' | '-' | '.'));
    let (kind, text) = alt((
        quoted,
        word.value(TokenKind::Word).with_taken(),
        sign.with_taken(),
        token::any.value(TokenKind::Other).with_taken(),
    ))
    .parse_next(input)?;
    Ok(Token { kind, text, at })
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let each = terminated(lex, multispace0);
    let mut all = preceded(multispace0, repeat_till(0.., each, eof));
    let found: winnow::ModalResult<(Vec<_>, &str)> = all.parse_next(&mut LocatingSlice::new(text));
    found.map(|(tokens, _)| tokens).unwrap_or_default()
}

/// Parses a whole filter.
///
/// # Errors
/// [`ParseError`] with the column at fault.
fn parse(text: &str) -> Result<Filter, ParseError> {
    let tokens = tokens(text);
    let mut parser = Grammar { tokens: &tokens, end: text.len(), tests: 0 };
    let filter = parser.any(GROUPS_MAX)?;
    match parser.tokens.first() {
        None => Ok(filter),
        Some(token) if token.kind == TokenKind::Close => {
            fail(token.at, "TOO_MANY_CLOSE", "this `)` closes nothing".to_owned())
        }
        Some(token) => {
            let message = format!("`{}` is too much: {FORM}", token.text);
            fail(token.at, "INVALID_FILTER", message)
        }
    }
}

fn fail<T>(position: usize, id: &'static str, message: String) -> Result<T, ParseError> {
    Err(ParseError { message, position, id })
}

struct Grammar<'t, 'a> {
    tokens: &'t [Token<'a>],
    /// Length of the text.
    end: usize,
    tests: usize,
}

impl<'a> Grammar<'_, 'a> {
    fn next(&mut self) -> Option<Token<'a>> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(*first)
    }

    fn takes(&mut self, kind: TokenKind) -> bool {
        let found = self.tokens.first().is_some_and(|token| token.kind == kind);
        if found {
            self.tokens = &self.tokens[1..];
        }
        found
    }

    /// Position of the next token, or of the end.
    fn position(&self) -> usize {
        self.tokens.first().map_or(self.end, |token| token.at)
    }

    fn any(&mut self, groups: usize) -> Result<Filter, ParseError> {
        let mut all = vec![self.all(groups)?];
        while self.takes(TokenKind::Or) {
            all.push(self.all(groups)?);
        }
        Ok(joined(all, Filter::Any))
    }

    fn all(&mut self, groups: usize) -> Result<Filter, ParseError> {
        let mut all = vec![self.one(groups)?];
        while self.takes(TokenKind::And) {
            all.push(self.one(groups)?);
        }
        Ok(joined(all, Filter::All))
    }

    /// `groups`: number of parentheses and `!` that may still be opened.
    fn one(&mut self, groups: usize) -> Result<Filter, ParseError> {
        let position = self.position();
        let deeper = || match groups.checked_sub(1) {
            Some(left) => Ok(left),
            None => {
                let message = format!("more than {GROUPS_MAX} `(` and `!` in one another");
                fail(position, "TOO_MANY_OPEN", message)
            }
        };
        if self.takes(TokenKind::Not) {
            return Ok(Filter::Not(Box::new(self.one(deeper()?)?)));
        }
        if self.takes(TokenKind::Open) {
            let inner = self.any(deeper()?)?;
            if !self.takes(TokenKind::Close) {
                let message = "the `)` of this is missing".to_owned();
                return fail(position, "TOO_MANY_OPEN", message);
            }
            return Ok(inner);
        }
        self.test()
    }

    fn test(&mut self) -> Result<Filter, ParseError> {
        let position = self.position();
        let is_field = |text: &str| is_event_name(text.strip_suffix(USER_TEXT).unwrap_or(text));
        let field = match self.next() {
            Some(Token { kind: TokenKind::Word, text, .. }) if is_field(text) => text.to_owned(),
            Some(token) => {
                let message = format!("`{}` is no field's name: {FORM}", token.text);
                return fail(position, "FIELD_NOT_FOUND", message);
            }
            None => return fail(position, "NO_FILTER", format!("a comparison is missing: {FORM}")),
        };
        if self.tests == TESTS_MAX {
            return fail(position, "TOO_MANY_PREDS", format!("more than {TESTS_MAX} comparisons"));
        }
        self.tests += 1;
        let position = self.position();
        let sign = self.next().map(|token| token.kind);
        match (sign, self.tokens.first().map(|token| token.kind)) {
            (Some(TokenKind::Glob(not)), _) => self.matching(field, true, not),
            (
                Some(TokenKind::Comparison(Comparison::Equal)),
                Some(TokenKind::Quoted | TokenKind::OpenQuote),
            ) => self.matching(field, false, false),
            (
                Some(TokenKind::Comparison(Comparison::NotEqual)),
                Some(TokenKind::Quoted | TokenKind::OpenQuote),
            ) => self.matching(field, false, true),
            (Some(TokenKind::Comparison(comparison)), _) => self.number(field, comparison),
            _ => {
                let message = format!(
                    "after `{field}` comes `==`, `!=`, `<`, `<=`, `>`, `>=`, `&`, `~` or `!~`"
                );
                fail(position, "INVALID_OP", message)
            }
        }
    }

    /// The rest of a comparison with a number.
    fn number(&mut self, field: String, comparison: Comparison) -> Result<Filter, ParseError> {
        let position = self.position();
        let operand = self.next().filter(|token| token.kind == TokenKind::Word);
        match operand.and_then(|token| parse_signed(token.text)) {
            Some(operand) => Ok(Filter::Test { field, comparison, operand }),
            None => {
                let message = "a number belongs here: `5`, `0x1f` or `-12`".to_owned();
                fail(position, "ILLEGAL_INTVAL", message)
            }
        }
    }

    /// The rest of a comparison with text.
    fn matching(&mut self, field: String, glob: bool, not: bool) -> Result<Filter, ParseError> {
        let position = self.position();
        match self.next() {
            Some(Token { kind: TokenKind::Quoted, text, .. }) if text.len() > TEXT_MAX => {
                let message = format!("a text of a filter has at most {TEXT_MAX} bytes");
                fail(position, "OPERAND_TOO_LONG", message)
            }
            Some(Token { kind: TokenKind::Quoted, text, .. }) => {
                let test = TextTest { glob, not, text: text.to_owned() };
                Ok(Filter::Match { field, test })
            }
            Some(Token { kind: TokenKind::OpenQuote, .. }) => {
                fail(position, "MISSING_QUOTE", "the quote at the text's end is missing".to_owned())
            }
            _ => {
                let message = "a text belongs here, between quotes: `\"file*\"`".to_owned();
                fail(position, "MISSING_QUOTE", message)
            }
        }
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
        parse(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_fault_has_its_identifier_and_column() {
        for (text, id, position) in [
            ("", "NO_FILTER", 0),
            ("  ", "NO_FILTER", 2),
            ("a", "INVALID_OP", 1),
            ("a = 5", "INVALID_OP", 2),
            ("a < \"x\"", "ILLEGAL_INTVAL", 4),
            ("a ~ x*", "MISSING_QUOTE", 4),
            ("a ~", "MISSING_QUOTE", 3),
            ("a == \"x", "MISSING_QUOTE", 5),
            ("a !~ 'x\" && b == 1", "MISSING_QUOTE", 5),
            ("a ==", "ILLEGAL_INTVAL", 4),
            ("a == x", "ILLEGAL_INTVAL", 5),
            ("a == 0x10000000000000000", "ILLEGAL_INTVAL", 5),
            ("a == -9223372036854775809", "ILLEGAL_INTVAL", 5),
            ("a == 5 &&", "NO_FILTER", 9),
            ("a == 5 b == 6", "INVALID_FILTER", 7),
            ("a == 5)", "TOO_MANY_CLOSE", 6),
            ("a == 1 && (a == 5", "TOO_MANY_OPEN", 10),
            ("a.ustrin ~ \"x\"", "FIELD_NOT_FOUND", 0),
            (".ustring ~ \"x\"", "FIELD_NOT_FOUND", 0),
            ("5 == a", "FIELD_NOT_FOUND", 0),
            ("&& a == 5", "FIELD_NOT_FOUND", 0),
            ("ä == 5", "FIELD_NOT_FOUND", 0),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!((error.id, error.position), (id, position), "{text}: {error}");
        }
        let many = vec!["a == 1"; TESTS_MAX + 1].join(" || ");
        assert_eq!(parse(&many).unwrap_err().id, "TOO_MANY_PREDS");
        let deep = format!("{}a == 1{}", "(".repeat(17), ")".repeat(17));
        assert_eq!(parse(&deep).unwrap_err().id, "TOO_MANY_OPEN");
        assert_eq!(
            parse(&format!("{}a == 1", "!".repeat(100_000))).unwrap_err().id,
            "TOO_MANY_OPEN"
        );
    }

    fn any_filter() -> impl Strategy<Value = Filter> {
        let number = ("[a-z_][a-z0-9_]{0,5}", 0..Comparison::ALL.len(), any::<u64>()).prop_map(
            |(field, which, operand)| Filter::Test {
                field,
                comparison: Comparison::ALL[which],
                operand,
            },
        );
        let text =
            ("[a-z_][a-z0-9_]{0,5}(\\.ustring)?", any::<[bool; 2]>(), "[^\"]{0,60}|[^']{0,60}")
                .prop_map(|(field, [glob, not], text)| Filter::Match {
                    field,
                    test: TextTest { glob, not, text },
                });
        let test = prop_oneof![number, text];
        test.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                inner.clone().prop_map(|one| Filter::Not(Box::new(one))),
                prop::collection::vec(inner.clone(), 2..4).prop_map(Filter::All),
                prop::collection::vec(inner, 2..4).prop_map(Filter::Any),
            ]
        })
    }

    fn tests(filter: &Filter) -> usize {
        match filter {
            Filter::Test { .. } | Filter::Match { .. } => 1,
            Filter::Not(inner) => tests(inner),
            Filter::All(all) | Filter::Any(all) => all.iter().map(tests).sum(),
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text: String) {
            let _ = parse(&text);
        }

        #[test]
        fn what_is_printed_parses_to_the_same(filter in any_filter()) {
            prop_assume!(tests(&filter) <= TESTS_MAX);
            prop_assert_eq!(parse(&filter.to_string()).unwrap(), filter);
        }
    }
}
