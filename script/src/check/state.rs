//! The state of the body that is checked: its variables, reads, and why it needs an exit.

use std::sync::Arc;

use hashbrown::HashMap;

use super::place::{Class, Place};
use crate::diagnostic::Span;
use crate::ir::Slot;
use crate::program::{Chain, Read, Reason};
use crate::types::Type;

#[derive(Default)]
pub(super) struct BodyState {
    pub(super) place: Option<Place>,
    pub(super) variables: HashMap<Arc<str>, Variable>,
    pub(super) slots: usize,
    pub(super) reads: Vec<Read>,
    pub(super) known_reads: HashMap<Read, usize>,
    pub(super) needs_exit: Option<Reason>,
    pub(super) uses_args: bool,
    pub(super) depth: usize,
    /// Loops and macros that the checker is in.
    pub(super) loops: usize,
    pub(super) macros: usize,
    pub(super) scopes: usize,
}

/// A variable of a body.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub(super) slot: Slot,
    pub(super) ty: Type,
    /// Its value, as long as that depends on the hit alone.
    pub(super) chain: Option<Chain>,
}

impl BodyState {
    pub(super) fn class(&self) -> Class {
        self.place.as_ref().map_or(Class::Timed, |place| place.class)
    }

    pub(super) fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// The index of a read, a new one if needed.
    pub(super) fn read(&mut self, read: &Read) -> usize {
        if let Some(index) = self.known_reads.get(read) {
            return *index;
        }
        self.reads.push(read.clone());
        self.known_reads.insert(read.clone(), self.reads.len() - 1);
        self.reads.len() - 1
    }

    /// Notes that the body needs the guest's memory. Probes of time have it anyway.
    pub(super) fn need_exit(&mut self, span: Span, text: &str) {
        if self.class() != Class::Timed {
            self.needs_exit.get_or_insert_with(|| Reason { span, text: text.to_owned() });
        }
    }

    /// The chain of each variable whose value is one.
    pub(super) fn chains(&self) -> HashMap<Arc<str>, Chain> {
        let known = self.variables.iter();
        known.filter_map(|(name, it)| Some((Arc::clone(name), it.chain.clone()?))).collect()
    }

    /// Keeps what is known on both ways.
    pub(super) fn join(&mut self, one: &HashMap<Arc<str>, Chain>) {
        for (name, variable) in &mut self.variables {
            if variable.chain.as_ref() != one.get(name) {
                variable.chain = None;
            }
        }
    }

    /// Goes back to what was known.
    pub(super) fn restore(&mut self, known: &HashMap<Arc<str>, Chain>) {
        for (name, variable) in &mut self.variables {
            variable.chain = known.get(name).cloned();
        }
    }

    /// Forgets the values of variables that a loop changes.
    pub(super) fn forget(&mut self, changed: &[Arc<str>]) {
        for name in changed {
            if let Some(variable) = self.variables.get_mut(name) {
                variable.chain = None;
            }
        }
    }

    pub(super) fn new_slot(&mut self) -> Slot {
        self.slots += 1;
        self.slots - 1
    }
}
