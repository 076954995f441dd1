//! How the probes of a script would be armed.

use std::collections::HashMap;
use std::sync::Arc;

use exoprobe_probes::{Engine, HitConsumer, MemoryAtHit, ProbeState, ProbeStatus, RecordedHit};

use super::arm::{self, Plan};
use super::error::ScriptError;

/// How probes of one attachment would be armed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arming {
    pub(crate) by: ArmedBy,
    /// Why it is not a jmp.
    pub(crate) reason: Option<String>,
    /// The number of the places that are armed so.
    pub(crate) places: u32,
}

/// How a probe is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArmedBy {
    /// A jmp to a detour, which reads the values within the guest.
    Jmp,
    /// An int3: the VMM reads the values.
    Int3,
    /// Nothing yet: its text is not there.
    Pending,
    /// Nothing: it is left out.
    Refused,
}

/// A consumer that drops all hits: a rehearsal has none.
struct NoHits;

impl HitConsumer for NoHits {
    fn take(&self, _: usize, _: RecordedHit) {}

    fn take_at_hit(&self, _: usize, _: RecordedHit, _: &mut dyn MemoryAtHit) -> Option<u64> {
        None
    }
}

/// Finds how the probes of all plans would be armed together; by attachment, and none for one
/// without a place in the guest. Arms nothing.
///
/// # Errors
/// As [`arm::arm`].
pub(super) fn rehearse(
    engine: &Engine,
    plans: &[Plan],
    at_hit: bool,
) -> Result<Vec<Vec<Arming>>, ScriptError> {
    let mut all = vec![Vec::new(); plans.len()];
    if plans.iter().all(|plan| plan.events().next().is_none()) {
        return Ok(all);
    }
    let consumer = Arc::new(NoHits) as Arc<dyn HitConsumer>;
    let rehearsal = engine.rehearse(arm::batch(plans, &consumer, at_hit))?;
    arm::check_refused(rehearsal.accepted.len(), &rehearsal.refused)?;
    let plan_of: HashMap<&str, usize> = plans
        .iter()
        .enumerate()
        .flat_map(|(number, plan)| plan.events().map(move |event| (event, number)))
        .collect();
    let accepted = rehearsal.accepted.iter().map(|probe| (&probe.event, of_status(probe)));
    let refused = rehearsal.refused.iter();
    let refused = refused.map(|one| (&one.name, (ArmedBy::Refused, Some(one.error.to_string()))));
    for (event, (by, reason)) in accepted.chain(refused) {
        let Some(number) = plan_of.get(event.as_str()) else { continue };
        let armings: &mut Vec<Arming> = &mut all[*number];
        match armings.iter_mut().find(|it| (it.by, &it.reason) == (by, &reason)) {
            Some(same) => same.places += 1,
            None => armings.push(Arming { by, reason, places: 1 }),
        }
    }
    Ok(all)
}

fn of_status(probe: &ProbeStatus) -> (ArmedBy, Option<String>) {
    match (probe.state, &probe.unoptimized_reason) {
        (ProbeState::Pending, _) => (ArmedBy::Pending, probe.reason.clone()),
        (_, None) => (ArmedBy::Jmp, None),
        (_, reason) => (ArmedBy::Int3, reason.clone()),
    }
}
