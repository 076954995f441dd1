//! Probes that a script names, and what a body can use at them.

use std::sync::Arc;

use crate::program::AttachmentKind as Kind;
use crate::types::{Parameter, Type};

/// The probes of an action.
pub(super) struct Points {
    pub(super) points: Vec<Point>,
}

/// A probe.
pub(super) struct Point {
    pub(super) kind: Kind,
    pub(super) name: Arc<str>,
    pub(super) place: Place,
    /// One of those that a pattern stands for.
    pub(super) is_of_pattern: bool,
}

/// Names and values that a body can use at a probe.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) class: Class,
    /// Arguments by name.
    pub(super) arguments: Option<Arc<[Parameter]>>,
    /// The result's type.
    pub(super) result: Option<Type>,
    /// A body that does not use arguments is for all of the class; one for kprobes also for those
    /// with an offset.
    any_arguments: bool,
}

/// Kinds of probes that can use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// `BEGIN`, `END`, `interval`
    Timed,
    Profile,
    Kprobe,
    /// `kprobe:F+OFFSET`
    KprobeWithin,
    Kretprobe,
    Fentry,
    Fexit,
    SyscallEnter,
    SyscallExit,
    AllSyscallsEnter,
    AllSyscallsExit,
}

impl Place {
    pub(super) fn of(class: Class) -> Self {
        Self { class, arguments: None, result: None, any_arguments: false }
    }

    /// Can a body for `self` run at `other`?
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let same = self.arguments == other.arguments && self.result == other.result;
        let is_kprobe = |class| matches!(class, Class::Kprobe | Class::KprobeWithin);
        let both_kprobes = is_kprobe(self.class) && is_kprobe(other.class);
        match self.any_arguments {
            true => self.class == other.class || both_kprobes,
            false => self.class == other.class && same,
        }
    }

    pub(super) fn forget_arguments(&mut self) {
        self.any_arguments = true;
    }
}

impl Point {
    pub(super) fn new(kind: Kind, name: Arc<str>, place: Place) -> Self {
        Self { kind, name, place, is_of_pattern: false }
    }

    /// Bodies at the same place run at one attachment; each `BEGIN` and `interval` is one too.
    pub(super) fn attachment(&self) -> (Kind, Arc<str>) {
        (self.kind.clone(), Arc::clone(&self.name))
    }
}
