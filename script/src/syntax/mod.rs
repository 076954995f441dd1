//! The grammar.

pub(crate) mod ast;
mod expression;
mod preprocess;
mod script;
mod statement;
mod token;
mod type_name;

use std::sync::Arc;

use crate::diagnostic::{Diagnostic, Diagnostics, Span};

pub(crate) use token::parse_number;

/// Longest script, in bytes.
pub const SCRIPT_MAX: usize = 1 << 20;

/// A script that was parsed, and its parameters.
#[derive(Clone, Debug)]
pub struct Script {
    pub(crate) source: Arc<str>,
    pub(crate) tree: ast::Tree,
    pub(crate) params: Vec<String>,
}

impl Script {
    /// Parses a script. `params` are the values of `$1` and on.
    ///
    /// # Errors
    ///
    /// The first error of the grammar, with its place.
    pub fn parse(text: &str, params: &[String]) -> Result<Self, Diagnostics> {
        let source: Arc<str> = text.into();
        let fail = |error| Diagnostics::new(&source, vec![error]);
        if text.len() > SCRIPT_MAX {
            let message = format!("a script has at most {SCRIPT_MAX} bytes");
            let first = Span { start: 0, end: 1 };
            return Err(Diagnostics::new(&"".into(), vec![Diagnostic::new(first, message)]));
        }
        let preprocessed = preprocess::preprocess(&source).map_err(fail)?;
        let tree = script::parse(&preprocessed).map_err(fail)?;
        if tree.actions.is_empty() {
            let end = Span { start: text.len(), end: text.len() };
            let error = Diagnostic::new(end, "the script has no probe");
            return Err(fail(error.help("write a probe and its action: BEGIN { ... }")));
        }
        Ok(Self { source, tree, params: params.to_vec() })
    }
}
