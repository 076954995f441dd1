//! Definitions whose function is a pattern: one probe for each function that matches.

use std::collections::BTreeSet;

use exoprobe_introspect::{SymbolKind, SymbolTable};

use crate::definition::ProbeDefinition;
use crate::engine::control::register::Member;
use crate::engine::facade::batch::Batch;
use crate::engine::facade::engine::Engine;
use crate::error::{BatchError, ProbeError};

/// Symbols of the padding before functions (objtool), which is never executed.
const PADDING: [&str; 2] = ["__pfx_", "__cfi_"];

/// Probes of definitions, those of patterns written out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expansion {
    /// The definitions, in order.
    pub definitions: Vec<ExpandedDefinition>,
}

/// A definition without a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpandedDefinition {
    /// The definition.
    pub definition: ProbeDefinition,
    /// Index of the definition that it comes from.
    pub source: usize,
    /// That one is a pattern.
    pub is_match: bool,
}

impl Expansion {
    /// A batch of which no probe may be left out.
    #[must_use]
    pub fn all_or_none(self) -> Batch {
        let definitions = self.definitions.into_iter().map(|one| one.definition);
        Batch::from(definitions.collect::<Vec<_>>())
    }
}

impl From<Expansion> for Batch {
    /// Probes of patterns are optional.
    fn from(expansion: Expansion) -> Self {
        let member = |one: ExpandedDefinition| Member {
            probe: one.definition.into(),
            is_optional: one.is_match,
        };
        Self::of(expansion.definitions.into_iter().map(member).collect())
    }
}

impl Engine {
    /// Writes out the definitions that are patterns ([`ProbeDefinition::is_pattern`]): one
    /// definition for each function whose name matches, in order of their names, at most `most` of
    /// one pattern. Functions with one name give one definition, which registration refuses.
    ///
    /// ```no_run
    /// use exoprobe_probes::{Engine, parse_line};
    ///
    /// # fn example(engine: &Engine) -> Result<(), Box<dyn std::error::Error>> {
    /// let expansion = engine.expand(vec![parse_line("p:vfs/* vfs_*")?], 1000)?;
    /// println!("{} functions match", expansion.definitions.len());
    /// let admission = engine.admit(expansion)?;
    /// println!("{} probes are armed", admission.registered.len());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BatchError`] of the first definition with [`ProbeError::NoMatch`],
    /// [`ProbeError::ManyMatches`], [`ProbeError::PatternName`], or as [`Self::symbols`].
    pub fn expand(
        &self,
        definitions: Vec<ProbeDefinition>,
        most: usize,
    ) -> Result<Expansion, BatchError> {
        let mut symbols = None;
        let mut expansion = Expansion::default();
        for (source, definition) in definitions.into_iter().enumerate() {
            let refused = |error| BatchError { index: source, name: definition.place(), error };
            let is_match = definition.is_pattern();
            let found = match is_match {
                false => vec![definition],
                true => {
                    let symbols = match &symbols {
                        Some(symbols) => symbols,
                        None => symbols.insert(self.symbols().map_err(refused)?),
                    };
                    matching(symbols, &definition, most).map_err(refused)?
                }
            };
            let one = |definition| ExpandedDefinition { definition, source, is_match };
            expansion.definitions.extend(found.into_iter().map(one));
        }
        Ok(expansion)
    }
}

fn matching(
    symbols: &SymbolTable,
    definition: &ProbeDefinition,
    most: usize,
) -> Result<Vec<ProbeDefinition>, ProbeError> {
    let pattern = definition.symbol_name.as_deref().unwrap_or_default();
    if definition.event.as_ref().is_some_and(|event| !event.contains('*')) {
        return Err(ProbeError::PatternName(pattern.to_owned()));
    }
    let is_code = |name: &str| !PADDING.iter().any(|prefix| name.starts_with(prefix));
    let found = symbols.search(pattern);
    let found = found.filter(|s| s.kind == SymbolKind::Function && is_code(s.name));
    let qualified = |symbol: exoprobe_introspect::Symbol<'_>| match symbol.module {
        Some(module) => format!("{module}:{}", symbol.name),
        None => symbol.name.to_owned(),
    };
    let names: BTreeSet<String> = found.map(qualified).collect();
    match names.len() {
        0 => Err(ProbeError::NoMatch(pattern.to_owned())),
        found if found > most => {
            Err(ProbeError::ManyMatches { pattern: pattern.to_owned(), found, most })
        }
        _ => Ok(names.into_iter().map(|name| definition.for_function(name)).collect()),
    }
}
