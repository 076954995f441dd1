//! A pass of the optimizer between its beginning and its end: meanwhile RAM is searched, and
//! nothing is locked.

use std::collections::BTreeSet;
use std::sync::Arc;

use exoprobe_guest::Guest;

use crate::engine::optimize::candidate::OptimizedSite;
use crate::engine::optimize::liveness::Addresses;
use crate::engine::optimize::optimizer::Optimizer;
use crate::engine::optimize::search::{Search, SearchError};
use crate::engine::optimize::space::Retired;
use crate::engine::probe::code::Code;
use crate::engine::probe::site::Sites;
use crate::insn::SLOT_SIZE;

/// A pass that is under way: what its search looks for, and what is done afterwards.
pub(crate) struct Pass {
    candidates: Vec<OptimizedSite>,
    /// Addresses that no task may be at: those of the candidates by number, then those of so many
    /// retired detours.
    pub(crate) inside: Addresses,
    retired: usize,
    changes: u64,
    boot: u64,
}

impl Pass {
    pub(crate) fn candidates(&self) -> &[OptimizedSite] {
        &self.candidates
    }
}

/// The end of a pass.
pub(crate) struct Installation {
    pub(crate) written: usize,
    /// Code that no task is in and nothing leads to.
    pub(crate) freed: Vec<Code>,
}

impl Optimizer {
    /// A pass over these candidates and all retired code.
    pub(crate) fn pass(&self, sites: &Sites, candidates: Vec<OptimizedSite>) -> Pass {
        let inside = addresses(sites, &candidates, &self.retired);
        let Self { changes, boot, .. } = *self;
        Pass { candidates, inside, retired: self.retired.len(), changes, boot }
    }

    /// Ends a pass without a jmp if something has changed since it began. Returns its code then, to
    /// which nothing leads.
    pub(crate) fn outdated(&mut self, pass: Pass) -> Result<Pass, Vec<Code>> {
        if (pass.changes, pass.boot) == (self.changes, self.boot) {
            return Ok(pass);
        }
        // The next pass examines them again.
        self.changed = true;
        // After a boot the memory is void.
        let own = pass.candidates.into_iter().filter(|_| pass.boot == self.boot);
        Err(own.map(|candidate| candidate.code).collect())
    }

    /// Stops the vCPUs and writes the jmps of the sites that no task is in. Returns their number,
    /// and unlinked code that no task is in; the caller frees it once the table no longer contains
    /// it. `is_held` returns true while a vCPU is held at a breakpoint; such a vCPU continues as
    /// after an int3.
    pub(crate) fn install(
        &mut self,
        guest: &dyn Guest,
        is_held: &dyn Fn() -> bool,
        pass: Pass,
        search: &mut Search<'_>,
    ) -> Installation {
        self.preparing.clear();
        let Pass { candidates, retired, .. } = pass;
        let newer = self.retired.split_off(retired.min(self.retired.len()));
        let retired = std::mem::replace(&mut self.retired, newer);
        let mut written = vec![false; candidates.len()];
        let mut busy: BTreeSet<usize> = (0..candidates.len() + retired.len()).collect();
        let bytes: Vec<_> =
            candidates.iter().map(|candidate| candidate.bytes(guest.ram()).ok()).collect();
        let still = search.stop(&mut |found| {
            if is_held() {
                return;
            }
            busy.clone_from(found);
            for (index, (candidate, bytes)) in candidates.iter().zip(&bytes).enumerate() {
                let write = |bytes| candidate.write(bytes);
                written[index] = !busy.contains(&index) && bytes.as_ref().is_some_and(write);
            }
        });
        let total = candidates.len();
        let in_use = |(index, retired): &(usize, Retired)| {
            busy.contains(index) || retired.awaits_calls(guest.hidden())
        };
        let (kept, left) = (total..).zip(retired).partition(in_use);
        let mut freed = self.sort_retired(kept, left);
        let reason = still.err().map(|error| Self::why_not_searched(&error));
        let mut done = 0;
        for (candidate, written) in candidates.into_iter().zip(written) {
            if written {
                done += 1;
                self.busy.remove(&candidate.at);
                self.installed.0.insert(candidate.at, candidate);
                continue;
            }
            match &reason {
                Some(reason) => self.hold_off_for(candidate.at, Arc::clone(reason)),
                None => self.hold_off(candidate.at),
            }
            freed.push(candidate.code);
        }
        Installation { written: done, freed }
    }

    fn why_not_searched(error: &SearchError) -> Arc<str> {
        tracing::warn!(%error, "optimizing probes");
        format!("busy: {error}").into()
    }

    /// Keeps retired code that is in use, and the code it leads to; returns the rest.
    fn sort_retired(
        &mut self,
        kept: Vec<(usize, Retired)>,
        mut left: Vec<(usize, Retired)>,
    ) -> Vec<Code> {
        let mut kept: Vec<Retired> = kept.into_iter().map(|(_, retired)| retired).collect();
        let led_to = left.extract_if(.., |(_, retired)| kept.iter().any(|k| k.leads_to(retired)));
        let led_to: Vec<Retired> = led_to.map(|(_, retired)| retired).collect();
        kept.extend(led_to);
        self.retired.extend(kept);
        left.into_iter().map(|(_, retired)| retired.code().clone()).collect()
    }
}

/// Addresses that no task may be at when the jmps are written, by the number of the site; then the
/// retired detours.
fn addresses(sites: &Sites, candidates: &[OptimizedSite], retired: &[Retired]) -> Addresses {
    let mut inside = Addresses::default();
    for (index, candidate) in candidates.iter().enumerate() {
        let mut inner = candidate.region.inner().peekable();
        // A task in a copy of the first instruction continues at the second.
        if inner.peek().is_some() {
            for slot in sites[&candidate.at].slots() {
                inside.add(slot.gva, slot.gva.wrapping_add(SLOT_SIZE as u64), index);
            }
        }
        inner.for_each(|at| inside.add(at, at.wrapping_add(1), index));
    }
    for (index, code) in (candidates.len()..).zip(retired.iter().map(Retired::code)) {
        inside.add(code.start, code.end, index);
    }
    inside
}
