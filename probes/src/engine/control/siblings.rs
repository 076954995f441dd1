//! Several probes of one event. Each is a probe of its own, at a place of its own, with its own
//! number and counters; the event's name leads to all of them. A probe joins the others if it has
//! their kind and their fields (kprobetrace.rst; the kernel calls them siblings).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use exoprobe_introspect::SymbolTable;

use crate::definition::{Argument, Fetch, ProbeDefinition, ProbeKind, ValueType};
use crate::engine::arguments::list::Arguments;
use crate::engine::control::registry::{Registered, Registry};
use crate::engine::probe::registered::Probe;
use crate::error::ProbeError;

/// The treatment of a definition whose event exists already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnDuplicate {
    /// The definition is refused.
    Refused,
    /// Its probe is added to the event.
    Joined,
}

/// A field of an event, as far as it is known.
struct Known {
    name: String,
    /// `None` until the kernel's types give it.
    kind: Option<ValueType>,
    count: Option<u8>,
}

impl Known {
    fn is_as(&self, other: &Self) -> bool {
        let kinds = self.kind.zip(other.kind);
        self.name == other.name
            && self.count == other.count
            && kinds.is_none_or(|(kind, other)| kind == other)
    }
}

/// The fields of a probe's event; `None` if even their number depends on the kernel.
fn known(probe: &Probe) -> Option<Vec<Known>> {
    let field = |Argument { name, kind, count, .. }: &Argument, is_known: bool| Known {
        name: name.clone(),
        kind: is_known.then_some(*kind),
        count: *count,
    };
    if probe.has_arguments() {
        return Some(probe.arguments().list.iter().map(|arg| field(arg, true)).collect());
    }
    let args = &probe.definition.args;
    if args.iter().any(|arg| arg.body == Fetch::AllParameters) {
        return None;
    }
    let given = Arguments::given(&probe.definition);
    let is_known = args.iter().map(|arg| arg.kind.is_some() || !arg.body.asks_for_types());
    Some(given.iter().zip(is_known).map(|(arg, is_known)| field(arg, is_known)).collect())
}

/// The first field that differs.
fn first_difference(there: &[Known], new: &[Known]) -> Option<usize> {
    let differs = there.iter().zip(new).position(|(there, new)| !there.is_as(new));
    let shorter = there.len().min(new.len());
    differs.or_else(|| (there.len() != new.len()).then_some(shorter))
}

/// The index of the definition's argument from which field `index` of all `fields` comes.
fn argument_of(definition: &ProbeDefinition, index: usize, fields: usize) -> usize {
    let is_all = |at: &usize| definition.args[*at].body == Fetch::AllParameters;
    let Some(all) = (0..definition.args.len()).find(is_all) else { return index };
    let parameters = (fields + 1).saturating_sub(definition.args.len());
    match index {
        _ if index < all => index,
        _ if index < all + parameters => all,
        _ => index + 1 - parameters,
    }
}

/// Returns true if both have the same place and arguments.
fn is_same(there: &ProbeDefinition, new: &ProbeDefinition) -> bool {
    let place = |of: &ProbeDefinition| (of.addr, of.offset);
    let mut args = there.args.iter().zip(&new.args);
    place(there) == place(new)
        && there.symbol_name == new.symbol_name
        && args.all(|(there, new)| {
            (&there.body, there.kind, there.count) == (&new.body, new.kind, new.count)
        })
}

fn full_name(probe: &Probe) -> String {
    format!("{}/{}", probe.group, probe.event)
}

impl Registry {
    /// The probes of an event, in order of registration; at least one.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub(crate) fn ids(&self, group: &str, event: &str) -> Result<&[u32], ProbeError> {
        let key = (Arc::from(group), Arc::from(event));
        let found = self.names.get(&key).map(Vec::as_slice);
        found.ok_or_else(|| ProbeError::NoSuchProbe(format!("{group}/{event}")))
    }

    /// The first probe of an event.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub(crate) fn first(&self, group: &str, event: &str) -> Result<&Registered, ProbeError> {
        Ok(&self.probes[&self.ids(group, event)?[0]])
    }

    /// The probes with these numbers, which must exist.
    pub(crate) fn of_ids(&self, ids: &[u32]) -> Vec<Arc<Probe>> {
        ids.iter().map(|id| Arc::clone(&self.probes[id].probe)).collect()
    }

    /// As [`Self::ids`], for probes of `kind` only.
    pub(crate) fn ids_of(
        &self,
        group: &str,
        event: &str,
        kind: Option<ProbeKind>,
    ) -> Result<Vec<u32>, ProbeError> {
        let ids = self.ids(group, event)?;
        match self.is_of_kind(ids[0], kind) {
            true => Ok(ids.to_vec()),
            false => Err(ProbeError::NoSuchProbe(format!("{group}/{event} of that kind"))),
        }
    }

    /// The other probes of a probe's event.
    fn siblings<'a>(&'a self, of: &'a Probe) -> impl Iterator<Item = &'a Arc<Probe>> {
        let ids = self.ids(&of.group, &of.event).unwrap_or_default();
        ids.iter().filter(|id| **id != of.id).map(|id| &self.probes[id].probe)
    }

    /// Joins a new probe, which is not in the registry yet, to the event of its name, if that
    /// exists: the probe is enabled if the event is, and takes the event's filter.
    ///
    /// # Errors
    /// [`ProbeError::OtherKind`], [`ProbeError::OtherArgument`], [`ProbeError::SameProbe`]: the
    /// probe differs from those of the event, or equals one of them.
    pub(crate) fn join(
        &self,
        new: &Probe,
        symbols: Option<&SymbolTable>,
    ) -> Result<(), ProbeError> {
        let Some(first) = self.siblings(new).next() else { return Ok(()) };
        if first.definition.kind != new.definition.kind {
            return Err(ProbeError::OtherKind(full_name(new)));
        }
        self.check_fields(new)?;
        if self.siblings(new).any(|there| is_same(&there.definition, &new.definition)) {
            return Err(ProbeError::SameProbe(full_name(new)));
        }
        new.enabled.store(first.records_events(), Ordering::SeqCst);
        new.set_triggers(first.triggers());
        if let Some(refused) = first.event_filter.refused() {
            new.refuse_filter(refused);
            return Ok(());
        }
        let filter = first.event_filter.written();
        let found = new.find_filter(filter.as_deref(), symbols)?;
        new.set_filter(filter, found);
        Ok(())
    }

    /// Checks that the fields of a probe are those of its event, as far as they are known. A
    /// waiting probe may have joined before they were known.
    ///
    /// # Errors
    /// [`ProbeError::OtherArgument`].
    pub(crate) fn check_fields(&self, new: &Probe) -> Result<(), ProbeError> {
        // The fields of a probe that is not placed may be unknown, or of the previous kernel.
        let is_placed = |probe: &&Arc<Probe>| self.probes[&probe.id].placed().is_some();
        let there = self.siblings(new).find(is_placed).or_else(|| self.siblings(new).next());
        let Some((there, fields)) = there.and_then(|there| known(there)).zip(known(new)) else {
            return Ok(());
        };
        let Some(index) = first_difference(&there, &fields) else { return Ok(()) };
        let field = |Known { name, kind, count }: &Known| {
            let kind = kind.map(|kind| format!(":{kind}")).unwrap_or_default();
            let count = count.map(|count| format!("[{count}]")).unwrap_or_default();
            format!("`{name}{kind}{count}`")
        };
        Err(ProbeError::OtherArgument {
            event: full_name(new),
            index: argument_of(&new.definition, index, fields.len()),
            there: there.get(index).map_or_else(|| "none".to_owned(), field),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::parse_line;

    #[test]
    fn fields_are_found_in_the_definition() {
        let argument = |line: &str, index, fields| {
            argument_of(&parse_line(line).expect("a definition"), index, fields)
        };
        assert_eq!((argument("p f a=%di b=%si", 1, 2), argument("p f a=%di", 1, 1)), (1, 1));
        let of_three = |index| argument("p f a=%di $arg* b=%si c=%dx", index, 6);
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(of_three), [0, 1, 1, 1, 2, 3, 4]);
        assert_eq!(argument("p f $arg* b=%si", 0, 1), 1, "a function of no parameters");
    }
}
