//! The values that a probe fetches at each hit: its definition's arguments, with names resolved by
//! the kernel's symbols and types.

use std::collections::BTreeSet;
use std::sync::Arc;

use exoprobe_introspect::SymbolTable;

use super::filter;
use super::finder::{self, Finder, ResolveContext};
use crate::definition::{
    Argument, Fetch, Field, Filter, ProbeDefinition, ProbeKind, RECORD_MAX, WrittenFilter,
};
use crate::error::ProbeError;

/// Maximum number of values of a hit.
const VALUES_MAX: usize = crate::definition::ARGS_MAX;

/// All of a hit's values.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    pub(crate) list: Arc<[Argument]>,
    /// Some argument may fault; records then contain which did.
    pub(crate) may_fault: bool,
    /// Some argument is text or an array.
    pub(crate) has_bytes: bool,
    /// For a return probe: the arguments of the call, from 1, that are kept at its entry.
    pub(crate) kept: Box<[u16]>,
}

impl Arguments {
    /// Checks everything that can be checked before the kernel is known.
    ///
    /// # Errors
    /// [`ProbeError::EventTooBig`], [`ProbeError::Filter`].
    pub(crate) fn check(
        definition: &ProbeDefinition,
        filter: Option<&WrittenFilter>,
    ) -> Result<(), ProbeError> {
        let mut room = Room::default();
        for (index, arg) in definition.args.iter().enumerate() {
            room.take(index, arg.least_record_bytes())?;
        }
        let given = Self::given(definition);
        if given.iter().any(|arg| arg.fetch == Fetch::AllParameters) {
            // Their names depend on the kernel.
            return Ok(());
        }
        filter::check(filter, Some(definition.kind), &given)
    }

    /// A definition's arguments without knowledge of the kernel.
    pub(crate) fn given(definition: &ProbeDefinition) -> Vec<Argument> {
        let args = definition.args.iter().enumerate();
        let given = args.map(|(index, arg)| Argument {
            name: definition.arg_name(index),
            fetch: arg.body.clone(),
            kind: arg.kind.unwrap_or_else(|| finder::default_kind(&arg.body)),
            count: finder::count(arg.kind, arg.count),
        });
        given.collect()
    }

    /// Returns true if a definition's arguments need the kernel's types.
    pub(crate) fn ask_for_types(definition: &ProbeDefinition) -> bool {
        definition.args.iter().any(|arg| arg.body.asks_for_types())
    }

    /// Resolves the arguments of a definition at its place.
    ///
    /// # Errors
    /// [`ProbeError::Parameter`], [`ProbeError::Types`], [`ProbeError::Symbol`],
    /// [`ProbeError::DuplicateArg`], [`ProbeError::EventTooBig`].
    pub(crate) fn find(
        definition: &ProbeDefinition,
        context: &ResolveContext<'_>,
    ) -> Result<Self, ProbeError> {
        let finder = Finder::new(definition.kind, context);
        let (mut list, mut room) = (Vec::new(), Room::default());
        for (index, arg) in definition.args.iter().enumerate() {
            let before = list.len();
            match arg.body {
                Fetch::AllParameters => list.extend(finder.all()?),
                _ => list.push(finder.argument(definition.arg_name(index), arg)?),
            }
            let bytes = list[before..].iter().map(Argument::record_bytes).sum();
            room.take(index, bytes)?;
        }
        if list.len() > VALUES_MAX {
            return Err(ProbeError::TooManyArgs(list.len()));
        }
        if let Some(twice) = duplicate(&list) {
            return Err(ProbeError::DuplicateArg(twice.to_owned()));
        }
        let has_bytes = list.iter().any(Argument::is_in_bytes);
        let may_fault = list.iter().any(|arg| arg.fetch.may_fault());
        let is_of_entry = |arg: &Argument| match arg.fetch.innermost() {
            Fetch::Argument(n) => Some(*n),
            _ => None,
        };
        let kept: BTreeSet<u16> = list.iter().filter_map(is_of_entry).collect();
        Ok(Self { list: list.into(), may_fault, has_bytes, kept: kept.into_iter().collect() })
    }

    /// Resolves a filter over the arguments of a probe of this kind, and over the functions of a
    /// kernel; a synthetic event has no kind.
    ///
    /// # Errors
    /// [`ProbeError::Filter`].
    pub(crate) fn filter(
        &self,
        kind: Option<ProbeKind>,
        filter: Option<&WrittenFilter>,
        symbols: Option<&SymbolTable>,
    ) -> Result<Option<Filter<Field>>, ProbeError> {
        filter::resolve(filter, kind, &self.list, symbols)
    }
}

/// The space left in a record of the tracer.
#[derive(Default)]
struct Room(usize);

impl Room {
    /// Takes space for the values of argument `index`, after those before it.
    fn take(&mut self, index: usize, bytes: usize) -> Result<(), ProbeError> {
        self.0 += bytes;
        match self.0 <= RECORD_MAX {
            true => Ok(()),
            false => Err(ProbeError::EventTooBig { index, bytes: self.0 }),
        }
    }
}

/// A name that occurs twice.
fn duplicate(list: &[Argument]) -> Option<&str> {
    let mut names = std::collections::HashSet::new();
    list.iter().map(|arg| arg.name.as_str()).find(|name| !names.insert(*name))
}
