//! Probes to register together, and probes that are registered, chosen together.

use std::collections::BTreeSet;

use exoprobe_introspect::glob_matches;

use crate::definition::{ProbeDefinition, ProbeKind};
use crate::engine::control::register::{Member, Registration};
use crate::engine::control::registry::Registry;
use crate::engine::control::siblings::OnDuplicate;
use crate::engine::probe::handlers::{Kprobe, Kretprobe, NewProbe};
use crate::error::ProbeError;

/// Probes that are registered together, in one change of the guest: one probe, or several of either
/// kind. All or none, but for those that may be left out ([`Self::optional`]).
///
/// ```
/// use exoprobe_probes::{Batch, parse_line};
///
/// let lines = ["p:open do_sys_open", "r:opened do_sys_open"];
/// let definitions = lines.iter().map(|line| parse_line(line)).collect::<Result<Vec<_>, _>>()?;
/// let batch = Batch::from(definitions).joining();
/// # Ok::<(), exoprobe_probes::definition::ParseError>(())
/// ```
pub struct Batch {
    pub(crate) members: Vec<Member>,
    pub(crate) on_duplicate: OnDuplicate,
}

impl Batch {
    /// A probe whose event exists, also by a probe before it in the batch, becomes one more probe
    /// of that event, as in kprobe_events (kprobetrace.rst). It is enabled if the event is, and has
    /// the event's filter. Without this it is refused.
    #[must_use]
    pub fn joining(self) -> Self {
        Self { on_duplicate: OnDuplicate::Joined, ..self }
    }

    /// Each of these probes is left out if it is refused, and the others are registered.
    /// [`Engine::admit`](crate::Engine::admit) reports which were.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.members.iter_mut().for_each(|member| member.is_optional = true);
        self
    }

    /// Adds the probes of another batch.
    #[must_use]
    pub fn and(mut self, other: impl Into<Self>) -> Self {
        self.members.extend(other.into().members);
        self
    }

    pub(crate) fn of(members: Vec<Member>) -> Self {
        Self { members, on_duplicate: OnDuplicate::Refused }
    }
}

impl<P: Into<NewProbe>> From<Vec<P>> for Batch {
    fn from(probes: Vec<P>) -> Self {
        let member = |probe: P| Member { probe: probe.into(), is_optional: false };
        Self::of(probes.into_iter().map(member).collect())
    }
}

impl<P: Into<NewProbe>, const N: usize> From<[P; N]> for Batch {
    fn from(probes: [P; N]) -> Self {
        Vec::from(probes).into()
    }
}

impl From<NewProbe> for Batch {
    fn from(probe: NewProbe) -> Self {
        vec![probe].into()
    }
}

impl From<Kprobe> for Batch {
    fn from(probe: Kprobe) -> Self {
        vec![probe].into()
    }
}

impl From<Kretprobe> for Batch {
    fn from(probe: Kretprobe) -> Self {
        vec![probe].into()
    }
}

impl From<ProbeDefinition> for Batch {
    /// A probe of the definition's kind.
    fn from(definition: ProbeDefinition) -> Self {
        vec![definition].into()
    }
}

/// Registered probes, chosen by number or by event.
///
/// ```
/// use exoprobe_probes::{ProbeKind, Selection};
///
/// let returns = Selection::event("kprobes", "opened").of_kind(ProbeKind::Kretprobe);
/// assert_eq!(returns, Selection::kretprobe("kprobes", "opened"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    chosen: Chosen,
    kind: Option<ProbeKind>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Chosen {
    All,
    Event { group: String, event: String },
    Pattern { group: String, event: String },
    Ids(Vec<u32>),
}

impl Selection {
    /// Every probe.
    #[must_use]
    pub fn all() -> Self {
        Self { chosen: Chosen::All, kind: None }
    }

    /// All probes of an event, which must have one.
    #[must_use]
    pub fn event(group: &str, event: &str) -> Self {
        let (group, event) = (group.to_owned(), event.to_owned());
        Self { chosen: Chosen::Event { group, event }, kind: None }
    }

    /// All probes of the events whose group and name match: `*` stands for any run of characters,
    /// `?` for any one. There may be none. Without either, as [`Self::event`].
    ///
    /// ```
    /// use exoprobe_probes::Selection;
    ///
    /// assert_eq!(Selection::matching("vfs", "read"), Selection::event("vfs", "read"));
    /// let all_of_group = Selection::matching("vfs", "*");
    /// # drop(all_of_group);
    /// ```
    #[must_use]
    pub fn matching(group: &str, event: &str) -> Self {
        if ![group, event].iter().any(|name| name.contains(['*', '?'])) {
            return Self::event(group, event);
        }
        let (group, event) = (group.to_owned(), event.to_owned());
        Self { chosen: Chosen::Pattern { group, event }, kind: None }
    }

    /// All kprobes of an event, which must have one.
    #[must_use]
    pub fn kprobe(group: &str, event: &str) -> Self {
        Self::event(group, event).of_kind(ProbeKind::Kprobe)
    }

    /// All return probes of an event, which must have one.
    #[must_use]
    pub fn kretprobe(group: &str, event: &str) -> Self {
        Self::event(group, event).of_kind(ProbeKind::Kretprobe)
    }

    /// Probes by [`Registration::id`]. Numbers that are no probe's are passed over.
    #[must_use]
    pub fn ids(ids: impl IntoIterator<Item = u32>) -> Self {
        Self { chosen: Chosen::Ids(ids.into_iter().collect()), kind: None }
    }

    /// Of these probes, those of one kind.
    #[must_use]
    pub fn of_kind(self, kind: ProbeKind) -> Self {
        Self { kind: Some(kind), ..self }
    }

    /// Numbers of the chosen probes that there are, in order and each once.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`], where an event was chosen that has no such probe.
    pub(crate) fn of(&self, registry: &Registry) -> Result<Vec<u32>, ProbeError> {
        let ids: BTreeSet<u32> = match &self.chosen {
            Chosen::Event { group, event } => return registry.ids_of(group, event, self.kind),
            Chosen::All => registry.probes.keys().copied().collect(),
            Chosen::Pattern { group, event } => {
                let is =
                    |pattern: &str, name: &str| glob_matches(pattern.as_bytes(), name.as_bytes());
                let names = registry.names.iter();
                let matching = names.filter(|((of, name), _)| is(group, of) && is(event, name));
                matching.flat_map(|(_, ids)| ids.iter().copied()).collect()
            }
            Chosen::Ids(ids) => ids.iter().copied().collect(),
        };
        Ok(ids.into_iter().filter(|id| registry.is_of_kind(*id, self.kind)).collect())
    }
}

impl From<&[Registration]> for Selection {
    fn from(probes: &[Registration]) -> Self {
        Self::ids(probes.iter().map(|probe| probe.id))
    }
}

/// Probes were not unregistered, or not as they should be.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct UnregisterError {
    /// The probes that are gone all the same.
    pub removed: Vec<Registration>,
    /// The fault.
    #[source]
    pub error: ProbeError,
}

impl UnregisterError {
    /// As [`ProbeError::code`].
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.error.code()
    }
}

impl From<ProbeError> for UnregisterError {
    /// Nothing was unregistered.
    fn from(error: ProbeError) -> Self {
        Self { removed: Vec::new(), error }
    }
}

impl From<UnregisterError> for ProbeError {
    fn from(error: UnregisterError) -> Self {
        error.error
    }
}
