//! Lines that begin with `#`: what C's preprocessor does with them, as far as scripts use it.
//!
//! Lines are blanked, not removed, so that places of errors are those of the script.

use std::collections::HashSet;
use std::sync::Arc;

use super::ast::Name;
use super::token::is_name;
use crate::diagnostic::{Diagnostic, Span};

/// A macro that every script has: types are known from the guest's kernel.
const HAVE_BTF: &str = "BPFTRACE_HAVE_BTF";

/// A script without its directives.
pub(super) struct Preprocessed {
    pub(super) original: Arc<str>,
    /// As long as the original.
    pub(super) text: String,
    pub(super) defines: Vec<DefineText>,
}

/// `#define NAME value`
pub(super) struct DefineText {
    pub(super) name: Name,
    pub(super) value: Span,
}

/// Is the text of a branch taken, and was one of its `#if` yet?
struct Branch {
    taken: bool,
    was_taken: bool,
    span: Span,
}

pub(super) fn preprocess(original: &Arc<str>) -> Result<Preprocessed, Diagnostic> {
    let mut state = State { defined: HashSet::from([HAVE_BTF]), ..State::default() };
    let mut text = String::with_capacity(original.len());
    let mut at = 0;
    let mut inside = Inside::Code;
    for line in original.split_inclusive('\n') {
        let span = Span { start: at, end: at + line.trim_end().len() };
        at += line.len();
        if inside == Inside::Code && line.trim_start().starts_with('#') {
            state.directive(original, span)?;
            blank(line, &mut text);
        } else if state.branches.iter().all(|branch| branch.taken) {
            inside = scan(line, inside);
            text.push_str(line);
        } else {
            blank(line, &mut text);
        }
    }
    match state.branches.last() {
        Some(branch) => Err(Diagnostic::new(branch.span, "no #endif follows")),
        None => Ok(Preprocessed { original: Arc::clone(original), text, defines: state.defines }),
    }
}

/// Appends as many blanks as the line has bytes; ends of lines stay.
fn blank(line: &str, text: &mut String) {
    text.extend(line.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
}

/// Where a line begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    Code,
    Comment,
}

/// Finds out where the next line begins.
fn scan(line: &str, mut inside: Inside) -> Inside {
    let mut rest = line;
    loop {
        let found = match inside {
            Inside::Comment => rest.find("*/"),
            Inside::Code => rest.find(['"', '/', '\'']),
        };
        let Some(at) = found else { return inside };
        rest = &rest[at..];
        if inside == Inside::Comment {
            (inside, rest) = (Inside::Code, &rest[2..]);
        } else if rest.starts_with("/*") {
            (inside, rest) = (Inside::Comment, &rest[2..]);
        } else if rest.starts_with("//") {
            return inside;
        } else if rest.starts_with('"') {
            rest = after_text(&rest[1..]);
        } else {
            rest = &rest[1..];
        }
    }
}

/// The line after a text's closing `"`.
fn after_text(text: &str) -> &str {
    let mut escaped = false;
    for (at, char) in text.char_indices() {
        match char {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return &text[at + 1..],
            _ => {}
        }
    }
    ""
}

#[derive(Default)]
struct State<'a> {
    branches: Vec<Branch>,
    defined: HashSet<&'a str>,
    defines: Vec<DefineText>,
}

impl<'a> State<'a> {
    fn directive(&mut self, original: &'a str, span: Span) -> Result<(), Diagnostic> {
        let line = &original[span.start..span.end];
        let body = line.trim_start().trim_start_matches('#').trim_start();
        let word_len = body.find(|char: char| !char.is_alphanumeric()).unwrap_or(body.len());
        let (word, rest) = body.split_at(word_len);
        let rest = rest.trim();
        let live = self.branches.iter().all(|branch| branch.taken);
        let fail = |message: &str| Err(Diagnostic::new(span, message));
        match word {
            "ifdef" | "ifndef" => {
                let taken = self.defined.contains(rest) == (word == "ifdef");
                self.branches.push(Branch { taken, was_taken: taken, span });
            }
            "else" | "endif" => {
                let Some(branch) = self.branches.last_mut() else {
                    return fail("no #ifdef or #ifndef is before this");
                };
                branch.taken = !branch.was_taken;
                branch.was_taken = true;
                if word == "endif" {
                    self.branches.pop();
                }
            }
            "define" if live => self.define(rest, original, span),
            "undef" if live => {
                self.defined.remove(rest);
                self.defines.retain(|define| &*define.name.text != rest);
            }
            _ if !live => {}
            // The kernel's own types and constants stand for all headers.
            "include" | "pragma" | "define" | "undef" => {}
            _ if line.starts_with("#!") && span.start == 0 => {}
            "if" | "elif" => return fail("#if with a condition is not known here: use #ifdef"),
            _ => return fail("unknown directive"),
        }
        Ok(())
    }

    fn define(&mut self, rest: &'a str, original: &str, line: Span) {
        let len = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (name, value) = rest.split_at(len);
        self.defined.insert(name);
        let value = value.trim();
        // A function of the preprocessor, and an empty value, are no expressions.
        if !is_name(name) || value.is_empty() {
            return;
        }
        let place = |part: &str| {
            let start = part.as_ptr() as usize - original.as_ptr() as usize;
            Span { start, end: start + part.len() }
        };
        let name = Name { text: name.into(), span: place(name).to(line) };
        self.defines.retain(|define| define.name.text != name.text);
        self.defines.push(DefineText { name, value: place(value) });
    }
}
