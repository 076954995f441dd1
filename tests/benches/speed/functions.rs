//! Probes of very many of the guest's functions.

use std::collections::HashSet;

use exoprobe_probes::{Action, Expansion, ProbeDefinition, ProbeStatus, Rehearsal};
use exoprobe_tests::{TestGuest, definition};

/// Passes of the optimizer, at most.
const PASSES: usize = 40;

/// A probe that counts its hits, and records none.
pub(crate) fn counting(line: &str) -> ProbeDefinition {
    ProbeDefinition { actions: vec![Action::Count], ..definition(line) }
}

/// Passes until no probe waits for a jmp.
pub(crate) fn optimize(guest: &TestGuest) {
    for _ in 0..PASSES {
        if guest.engine.optimize().waiting == 0 {
            return;
        }
    }
}

/// All functions of a guest's kernel, each with a probe that counts.
pub(crate) struct Functions(Expansion);

impl Functions {
    pub(crate) fn of(guest: &TestGuest) -> Self {
        let all = guest.engine.expand(vec![counting("p:all/* *")], usize::MAX);
        Self(all.expect("they match"))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.definitions.len()
    }

    pub(crate) fn rehearse(&self, guest: &TestGuest) -> Rehearsal {
        guest.engine.rehearse(self.0.clone()).expect("it runs")
    }

    /// The probes that were accepted, in the order of the functions.
    pub(crate) fn accepted(
        self,
        rehearsal: &Rehearsal,
        is_wanted: impl Fn(&ProbeStatus) -> bool,
    ) -> impl Iterator<Item = ProbeDefinition> {
        let wanted = rehearsal.accepted.iter().filter(|probe| is_wanted(probe));
        let wanted: HashSet<String> =
            wanted.filter_map(|probe| probe.symbol_name.clone()).collect();
        let all = self.0.definitions.into_iter().map(|one| one.definition);
        all.filter(move |one| one.symbol_name.as_ref().is_some_and(|name| wanted.contains(name)))
    }
}
