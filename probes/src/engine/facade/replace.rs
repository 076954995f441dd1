//! Changes of what looks at the hits of events: triggers, and trace instances.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::engine::control::reconcile::Wait;
use crate::engine::control::state::Control;
use crate::engine::facade::engine::Engine;
use crate::engine::facade::subject::Subject;
use crate::error::ProbeError;
use crate::trigger::Triggers;

/// The new triggers and trace instances of one event's probes.
pub(super) struct Replaced {
    pub(super) ids: Vec<u32>,
    pub(super) triggers: Option<Arc<Triggers>>,
}

impl Engine {
    /// Has the hits of some events looked at for the instances that want that now.
    ///
    /// # Errors
    /// As [`Self::replace_all`].
    pub(super) fn renew(
        &self,
        control: &mut Control,
        subjects: &[Subject],
    ) -> Result<(), ProbeError> {
        let (mut replaced, mut synthetics) = (Vec::new(), Vec::new());
        let switched = control.registry.in_instances.switched();
        for subject in subjects {
            let before = subject.looks();
            let is_switched = before.as_ref().is_some_and(|before| before.is_switched);
            let takers = control.registry.in_instances.takers(&subject.full_name(), &switched);
            let triggers = Triggers::new(Triggers::list_of(before.clone()), is_switched, takers);
            match subject {
                Subject::Synthetic(synthetic) => synthetics.push((synthetic, triggers)),
                // A filter of an event that is not enabled changes nothing.
                Subject::Probes(..) if before.is_none() && triggers.is_none() => {}
                Subject::Probes(_, ids) => replaced.push(Replaced { ids: ids.clone(), triggers }),
            }
        }
        if !replaced.is_empty() {
            self.replace_all(control, &replaced)?;
        }
        // Last, as this cannot fail.
        for (synthetic, triggers) in synthetics {
            synthetic.set_triggers(triggers);
        }
        Ok(())
    }

    /// Replaces what looks at the hits of some events. Hits that were drained before are of before,
    /// and so are those that come until this returns.
    ///
    /// # Errors
    /// [`ProbeError::Clobbered`], where an event is armed for it and cannot be: all is as before.
    pub(super) fn replace_all(
        &self,
        control: &mut Control,
        replaced: &[Replaced],
    ) -> Result<(), ProbeError> {
        let ids: Vec<u32> = replaced.iter().flat_map(|one| one.ids.iter().copied()).collect();
        let triggers = |id: &u32| Some((*id, control.registry.probes[id].probe.triggers()?));
        let before: FxHashMap<u32, Arc<Triggers>> = ids.iter().filter_map(triggers).collect();
        let is_new = |one: &Replaced| {
            one.triggers.is_some() && one.ids.iter().any(|id| !before.contains_key(id))
        };
        let arms = replaced.iter().any(is_new);
        if arms {
            // What was hit so far is not for them.
            self.drain_locked(control);
        }
        self.refit(control, &ids, |control| {
            for Replaced { ids, triggers } in replaced {
                let probes = control.registry.of_ids(ids);
                probes.iter().for_each(|probe| probe.set_triggers(triggers.clone()));
            }
            control.learn_orc();
        });
        let places = control.registry.places_of(&ids);
        let settled = control.reconcile(self.guest.as_ref(), &places, Wait::ForVcpus);
        if !before.is_empty() {
            // What was hit meanwhile was recorded for them.
            self.drain_for(control, &before);
            control.registry.of_ids(&ids).iter().for_each(|probe| probe.settle_texts());
        }
        match settled {
            Err(unsettled) if arms => {
                for id in &ids {
                    let had = before.get(id).cloned();
                    control.registry.probes[id].probe.set_triggers(had);
                }
                // What could be armed is not to stay so.
                let _ = control.reconcile(self.guest.as_ref(), &places, Wait::ForVcpus);
                Err(unsettled.error)
            }
            // A place that the guest has rewritten does not keep a trigger.
            Err(_) | Ok(()) => Ok(()),
        }
    }
}
