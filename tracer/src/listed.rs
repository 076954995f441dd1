//! All events: those of probes, and synthetic ones.

use exoprobe_probes::synthetic::SYNTHETIC_GROUP;
use exoprobe_probes::{ProbeStatus, SyntheticStatus};

use crate::scope::Scope;

/// An event of probes, or a synthetic one.
pub(crate) struct ListedEvent {
    pub(crate) group: String,
    pub(crate) event: String,
    /// It is enabled or has triggers.
    pub(crate) is_armed: bool,
    /// Of an event of probes, the number of one of them.
    pub(crate) probe: Option<u32>,
    id: u32,
}

/// All events, in order of their definition; those of several probes several times.
pub(crate) fn all(scope: Scope<'_>) -> Vec<ListedEvent> {
    let engine = scope.engine;
    let of_probe = |probe: ProbeStatus| ListedEvent {
        is_armed: probe.enabled || probe.triggers > 0,
        probe: Some(probe.id),
        id: probe.id,
        group: probe.group,
        event: probe.event,
    };
    let of_synthetic = |status: SyntheticStatus| ListedEvent {
        is_armed: status.enabled || status.triggers > 0 || status.is_switched,
        probe: None,
        id: status.id,
        group: SYNTHETIC_GROUP.to_owned(),
        event: status.definition.name,
    };
    let probes = engine.list().into_iter().map(of_probe);
    let mut all: Vec<ListedEvent> =
        probes.chain(engine.synthetics().into_iter().map(of_synthetic)).collect();
    all.sort_by_key(|event| event.id);
    if let Some(armed) = scope.armed() {
        for event in &mut all {
            let name = (event.group.as_str().into(), event.event.as_str().into());
            event.is_armed = armed.contains(&name);
        }
    }
    all
}
