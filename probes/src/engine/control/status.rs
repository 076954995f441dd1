//! The state of a probe, as reported to users.

use std::sync::atomic::Ordering;

use exoprobe_guest::HiddenMemory;

use crate::engine::control::registry::Registered;
use crate::engine::control::registry::State;
use crate::engine::control::state::Control;
use crate::status::{ProbeState, ProbeStatus, StatusFlag};

impl Control {
    pub(crate) fn status(&self, registered: &Registered, hidden: &HiddenMemory) -> ProbeStatus {
        let Registered { probe, symbol, offset, state, .. } = registered;
        let counters = &probe.counters;
        // Recorded, filtered and lost are read first: a hit is counted before it is counted as one
        // of them.
        let [recorded, filtered, lost] = [&counters.recorded, &counters.filtered, &counters.lost]
            .map(|b| b.load(Ordering::Acquire));
        let (addr, reason) = match state {
            State::Pending(reason) => (None, Some(reason.clone())),
            State::Placed(_) | State::Gone => (Some(probe.at()), None),
        };
        let site = registered.placed().and_then(|at| self.registry.sites.get(&at));
        let optimized = site.is_some_and(|site| self.optimizer.is_installed(site.at));
        let flags = [
            (StatusFlag::Gone, matches!(state, State::Gone)),
            (StatusFlag::Pending, matches!(state, State::Pending(_))),
            (StatusFlag::Disabled, !probe.wants_breakpoint()),
            (StatusFlag::Optimized, optimized && probe.wants_breakpoint()),
            (StatusFlag::Clobbered, site.is_some_and(|site| site.clobbered)),
        ];
        let flags: Vec<_> = flags.into_iter().filter(|(_, is)| *is).map(|(flag, _)| flag).collect();
        let state = ProbeState::of(&flags, self.registry.switched_on);
        let why_not = || Some(self.optimizer.why_not(registered.placed()?)?.to_string());
        let returns = probe.returns();
        let of_event = self.registry.ids(&probe.group, &probe.event).map_or(1, <[u32]>::len);
        ProbeStatus {
            id: probe.id,
            kind: probe.definition.kind,
            group: probe.group.to_string(),
            event: probe.event.to_string(),
            symbol_name: symbol.as_deref().map(str::to_owned),
            offset: *offset,
            addr,
            enabled: probe.records_events(),
            triggers: probe.triggers().map_or(0, |triggers| triggers.number()),
            state,
            optimized: flags.contains(&StatusFlag::Optimized),
            flags,
            reason,
            unoptimized_reason: (state == ProbeState::Armed).then(why_not).flatten(),
            hits: counters.hits.load(Ordering::Acquire),
            nmissed: counters.nmissed.load(Ordering::Acquire),
            recorded,
            filtered,
            lost,
            maxactive: returns.map(|returns| returns.maxactive),
            active: returns.map(|returns| returns.active_with(hidden)),
            latency: returns.map(|returns| returns.timed.read()),
            return_mode: returns.map(|returns| returns.mode),
            actions: probe.actions.clone(),
            filter: probe.event_filter.written().map(|filter| filter.to_string()),
            instruction: site.map(|site| site.insn.text()),
            displaced: site.map(|site| site.displaced_by()),
            definition: probe.definition.to_string(),
            sites: u32::try_from(of_event).unwrap_or(u32::MAX),
        }
    }
}
