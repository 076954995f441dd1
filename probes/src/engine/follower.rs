//! Return probes whose calls are followed within the guest: each has a pool of instances in hidden memory, and
//! code that its calls return to. Once it has, both the detour and the VMM take instances from there, so that
//! `maxactive` holds for both together.

use std::sync::Arc;

use exoprobe_vmm::{GuestTime, Gva, HiddenMemory};

use super::calls::is_on;
use super::code::Code;
use super::guest::Guest;
use super::handlers::Hit;
use super::hit::HitPath;
use super::probe::{Probe, Returns};
use super::returns::RETURN_ADDRESS_LEN;
use super::table::Table;
use crate::detour::{FollowedCall, PoolMemory};
use crate::events::Returned;

/// A return probe's pool and code within the guest.
pub(crate) struct Follower {
    pub(super) pool: PoolMemory,
    /// What its calls return to. The doorbell is rung by those that are not its pool's, and where the VMM must read a
    /// value.
    pub(super) code: Code,
    /// The first stub: what comes before it in `code` is run by returns.
    pub(super) stubs: Gva,
    /// What is added to the guest's time-stamp counter to have its time.
    pub(super) clock: u64,
}

impl Follower {
    /// Whether an address is in its code, or of it.
    pub(super) fn covers(&self, at: Gva) -> bool {
        (self.code.start..self.code.end).contains(&at)
    }
}

/// The followers of one guest, for look-up.
#[derive(Default)]
pub(crate) struct Followers(Vec<(Arc<Probe>, Arc<Follower>)>);

impl Followers {
    pub(super) fn new(all: impl Iterator<Item = (Arc<Probe>, Arc<Follower>)>) -> Self {
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|(_, follower)| follower.code.start);
        Self(all)
    }

    /// The one whose code is at an address.
    pub(super) fn at(&self, at: Gva) -> Option<(&Arc<Probe>, &Arc<Follower>)> {
        let behind = self.0.partition_point(|(_, follower)| follower.code.start <= at);
        let (probe, follower) = self.0.get(behind.checked_sub(1)?)?;
        follower.covers(at).then_some((probe, follower))
    }

    /// The one whose doorbell is at an address.
    pub(super) fn of_doorbell(&self, at: Gva) -> Option<(&Arc<Probe>, &Arc<Follower>)> {
        self.at(at).filter(|(_, follower)| follower.code.rings_at(at))
    }

    /// Has returns counted of those probes only that are on.
    pub(super) fn set_enabled(&self, hidden: &HiddenMemory, switched_on: bool) {
        for (probe, follower) in &self.0 {
            follower.pool.set_enabled(hidden, switched_on && probe.is_enabled());
        }
    }

    /// Calls that are followed.
    pub(super) fn active(&self, hidden: &HiddenMemory) -> usize {
        let active = self.0.iter().map(|(_, follower)| follower.pool.active(hidden));
        usize::try_from(active.map(u64::from).sum::<u64>()).unwrap_or(usize::MAX)
    }

    /// Gives back the instances of calls that have ended unseen.
    pub(super) fn release_where(&self, hidden: &HiddenMemory, has_ended: impl Fn(Gva) -> bool) {
        for (_, follower) in &self.0 {
            follower.pool.release_where(hidden, &has_ended);
        }
    }
}

impl HitPath {
    /// Calls that return probes follow by changed return addresses, also of probes that have gone.
    pub(super) fn calls_followed(&self, guest: &dyn Guest) -> usize {
        self.frames.active() + self.table.load().followers.active(guest.hidden())
    }

    /// Has a call return by way of an instance of its probe's pool; `None` when none is free.
    pub(super) fn follow_within(
        &self,
        table: &Table,
        follower: &Follower,
        hit: &Hit<'_>,
    ) -> Option<()> {
        let guest = self.guest.upgrade()?;
        let key = Gva(hit.regs.rsp);
        let return_to = Gva(hit.memory.word(key)?);
        let entered = hit.time.0.wrapping_sub(follower.clock);
        let shows = self.true_return(table, return_to);
        let call = FollowedCall { key, return_to, shows, entered };
        let index = follower.pool.claim(guest.hidden(), call)?;
        let stored = hit.memory.store_u64(key, follower.pool.stub(index).0);
        if stored.is_err() {
            follower.pool.release(guest.hidden(), index);
        }
        stored.ok()
    }

    /// Where the call returns to that has a stub's address for its return address.
    pub(super) fn behind_stub(&self, table: &Table, found: Gva) -> Option<Gva> {
        let (_, follower) = table.followers.at(found)?;
        let index = follower.pool.of_stub(found)?;
        Some(follower.pool.call(self.guest.upgrade()?.hidden(), index)?.shows)
    }

    /// The code that calls return to has rung its doorbell: with the address of the instance on the stack. Says
    /// whether it was so.
    pub(super) fn finish_within(
        &self,
        table: &Table,
        probe: &Arc<Probe>,
        follower: &Follower,
        hit: &mut Hit<'_>,
    ) -> bool {
        let (slot, Some(guest)) = (Gva(hit.regs.rsp), self.guest.upgrade()) else { return false };
        let instance = hit.memory.word(slot).and_then(|at| follower.pool.at(Gva(at)));
        let Some(index) = instance else { return false };
        let hidden = guest.hidden();
        let return_to = follower.pool.return_to(hidden, index);
        hit.regs.rsp = slot.wrapping_add(RETURN_ADDRESS_LEN).0;
        match follower.pool.call(hidden, index).filter(|call| call.key == slot) {
            Some(call) => {
                hit.regs.rip = call.shows.0;
                if is_on(table, probe) {
                    let entered = GuestTime(call.entered.wrapping_add(follower.clock));
                    self.act_on_return(table, probe, Returned { to: call.shows, entered }, hit);
                }
                follower.pool.release(hidden, index);
            }
            // It returns a second time, as some code of suspend and hibernation does.
            None => tracing::debug!(%slot, "a call of a return probe returns again"),
        }
        hit.regs.rip = return_to.0;
        true
    }
}

impl Returns {
    /// Instances in use, also within the guest.
    pub(super) fn active_with(&self, hidden: &HiddenMemory) -> u32 {
        let within = self.follower.load();
        self.active() + within.as_ref().map_or(0, |follower| follower.pool.active(hidden))
    }

    /// The pool that its calls are followed by, once it has one.
    pub(super) fn follower(&self) -> Option<Arc<Follower>> {
        self.follower.load_full()
    }
}
