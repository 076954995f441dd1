//! Batches some of whose probes may be left out: registration, and a check without it.

use crate::engine::control::boot::Purpose;
use crate::engine::control::register::{Admission, Intent, Member};
use crate::engine::control::state::Control;
use crate::engine::facade::batch::Batch;
use crate::engine::facade::engine::Engine;
use crate::error::BatchError;
use crate::status::{ProbeState, ProbeStatus};

/// The result of [`Engine::rehearse`].
#[derive(Debug)]
pub struct Rehearsal {
    /// The probes that would be registered, in order. They have no numbers: `id` is 0. Those that
    /// would keep their int3s say why ([`ProbeStatus::unoptimized_reason`]); others that are armed
    /// would be optimized.
    pub accepted: Vec<ProbeStatus>,
    /// The probes that would be left out, each with the reason.
    pub refused: Vec<BatchError>,
}

impl Engine {
    /// As [`Self::register`]; reports the probes that were left out ([`Batch::optional`]).
    ///
    /// ```no_run
    /// use exoprobe_probes::{Batch, Engine, parse_line};
    ///
    /// # fn example(engine: &Engine) -> Result<(), Box<dyn std::error::Error>> {
    /// let batch = Batch::from([parse_line("p vfs_read")?, parse_line("p not_there")?]);
    /// let admission = engine.admit(batch.optional())?;
    /// for refused in &admission.refused {
    ///     println!("left out: {}: {}", refused.name, refused.error);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BatchError`], which names the first probe that was refused and may not be left out:
    /// nothing was changed.
    pub fn admit(&self, batch: impl Into<Batch>) -> Result<Admission, BatchError> {
        let Batch { members, on_duplicate } = batch.into();
        let mut control = self.lock();
        let guest = self.guest.as_ref();
        self.attach_for(&mut control, &members)?;
        control.add_all(guest, members, on_duplicate)
    }

    /// Checks a batch as [`Self::admit`] does, and registers and arms nothing. A probe that the
    /// guest's text would still refuse when it is armed is not found so.
    ///
    /// # Errors
    /// As [`Self::admit`].
    pub fn rehearse(&self, batch: impl Into<Batch>) -> Result<Rehearsal, BatchError> {
        let Batch { members, on_duplicate } = batch.into();
        let mut control = self.lock();
        let guest = self.guest.as_ref();
        self.attach_for(&mut control, &members)?;
        let first_id = control.registry.next_id();
        let added = control.add_each(guest, members, on_duplicate, Intent::Check)?;
        let ids = added.ids();
        let reasons = control.rehearse(guest, &ids);
        let status = |id: &u32| {
            let checked = &control.registry.probes[id];
            let status = control.status(checked, guest.hidden());
            let is_armed = matches!(status.state, ProbeState::Armed | ProbeState::Optimized);
            let reason = checked.placed().filter(|_| is_armed).and_then(|at| reasons.get(&at));
            let unoptimized_reason = reason.map(ToString::to_string);
            ProbeStatus { id: 0, unoptimized_reason, ..status }
        };
        let accepted = ids.iter().map(status).collect();
        control.registry.forget_rehearsed(&ids, first_id);
        Ok(Rehearsal { accepted, refused: added.refused })
    }

    fn attach_for(&self, control: &mut Control, members: &[Member]) -> Result<(), BatchError> {
        let first = members.first().map(|member| member.probe.definition().event_name());
        let attached = control.attach(self.guest.as_ref(), Purpose::Probes);
        attached.map(drop).map_err(|error| BatchError {
            index: 0,
            name: first.unwrap_or_default(),
            error: error.into(),
        })
    }
}
