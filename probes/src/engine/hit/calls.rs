//! Return probes: a call is followed from its entry and finished at its return.

use std::sync::Arc;

use exoprobe_guest::{GuestTime, Gva, LoggedWord};

use crate::definition::ReturnMode;
use crate::detour::FollowedCall;
use crate::engine::arguments::list::Arguments;
use crate::engine::hit::actions::HitInfo;
use crate::engine::hit::actions::Recorder;
use crate::engine::hit::addresses::CallTracker;
use crate::engine::kernel::memory::HitMemory;

use crate::engine::hit::table::{Stop, Table};
use crate::engine::probe::fetch::{Kept, keep};
use crate::engine::probe::handlers::{EntryVerdict, Hit, Instance};
use crate::engine::probe::in_guest::InGuestReturns;
use crate::engine::probe::registered::{KretprobeInstance, RETURN_ADDRESS_LEN, recycle, watch};
use crate::engine::probe::registered::{PlacedProbe, Probe, Returns, count};
use crate::engine::probe::site::Site;
use crate::events::Returned;

/// The method of following a call.
enum FollowVia<'a> {
    /// The place that it returns to is watched.
    Watch,
    /// It has this trampoline already.
    Join(usize),
    /// It gets this trampoline.
    Divert(usize, LoggedWord<'a>),
}

impl CallTracker {
    /// Handles the entry of a function with a return probe: follows the call, or counts it as
    /// missed.
    // Hits of kprobes have nothing of it: not inlined.
    #[inline(never)]
    pub(crate) fn enter_call(
        &self,
        table: &Table,
        probe: &PlacedProbe,
        returns: &Returns,
        hit: &mut Hit<'_>,
    ) {
        let followed = match returns.in_guest.load() {
            Some(in_guest) => self.follow_within(table, probe, &in_guest, hit),
            None => self.follow(table, probe, returns, hit),
        };
        if followed.is_none() {
            count(&probe.counters.nmissed);
        }
    }

    /// `None` if the call cannot be followed: no instance is free, or the return address cannot be
    /// read.
    fn follow(
        &self,
        table: &Table,
        probe: &PlacedProbe,
        returns: &Returns,
        hit: &mut Hit<'_>,
    ) -> Option<()> {
        let key = Gva(hit.regs.rsp);
        let slot = hit.memory.slot(key);
        let on_stack = match &slot {
            Some(slot) => Some(slot.load()),
            None => hit.memory.word(key),
        };
        let on_stack = Gva(on_stack?);
        // Another return probe may already follow this call, or the call that jumped to this
        // function.
        let frame = table.trampoline_at(on_stack).filter(|index| self.frames.is_at(*index, key));
        let go_to = match frame {
            Some(index) => self.frames.return_address(index)?,
            None => on_stack,
        };
        // A call that is followed in the guest returns there through a stub.
        let ret_addr = self.return_of_stub(table, go_to).unwrap_or(go_to);
        let mut active = returns.instances.take()?;
        active.begin(ret_addr, hit.time);
        if !probe.arguments.kept.is_empty() {
            active.kept = keep(&probe.arguments.kept, hit);
        }
        active.probe = Some(probe.clone());
        // Before the entry handler: after it, the return is guaranteed.
        let way = match returns.mode {
            ReturnMode::Site if is_watched(table, ret_addr, probe) => Some(FollowVia::Watch),
            // In the mode `site`, where no int3 can be: in memory without symbols, for example,
            // from where a BPF program's trampoline calls.
            ReturnMode::Site | ReturnMode::Trampoline => self.way(slot, go_to, frame),
        };
        let Some(way) = way else {
            recycle(active);
            return None;
        };
        if let Some(handler) = &returns.entry_handler
            && handler(&mut active.instance, &mut hit.of(probe.fault_handler.as_ref()))
                == EntryVerdict::Skip
        {
            if let FollowVia::Divert(index, _) = way {
                self.frames.unclaim(index);
            }
            recycle(active);
            return Some(());
        }
        let followed = match way {
            FollowVia::Watch => watch(&returns.watched, key, active),
            FollowVia::Join(index) => {
                self.frames.add(index, active);
                Ok(())
            }
            FollowVia::Divert(index, slot) => {
                self.divert(index, table, key, slot);
                self.frames.add(index, active);
                Ok(())
            }
        };
        followed.map_err(recycle).ok()
    }

    /// Selects how a call can be followed by a trampoline, if at all. Its return address is in
    /// `slot`, which it lacks if it is not aligned, as in no Linux; it has a trampoline already if
    /// there is a `frame`.
    fn way<'a>(
        &self,
        slot: Option<LoggedWord<'a>>,
        go_to: Gva,
        frame: Option<usize>,
    ) -> Option<FollowVia<'a>> {
        match frame {
            Some(index) => Some(FollowVia::Join(index)),
            None => {
                let slot = slot?;
                Some(FollowVia::Divert(self.frames.claim(go_to)?, slot))
            }
        }
    }

    /// Makes a call return through a trampoline, for the engine itself. Returns whether it does.
    pub(crate) fn catch_return(&self, table: &Table, key: Gva, memory: HitMemory<'_>) -> bool {
        let slot = memory.slot(key);
        let Some(on_stack) = slot.map(|slot| Gva(slot.load())) else { return false };
        let frame = table.trampoline_at(on_stack).filter(|index| self.frames.is_at(*index, key));
        match self.way(slot, on_stack, frame) {
            Some(FollowVia::Divert(index, slot)) => {
                self.divert(index, table, key, slot);
                true
            }
            Some(FollowVia::Join(_) | FollowVia::Watch) => true,
            None => false,
        }
    }

    /// Writes the address of a claimed trampoline over the return address in `slot`, whose address
    /// is `key`, and begins the call.
    #[inline]
    fn divert(&self, index: usize, table: &Table, key: Gva, slot: LoggedWord<'_>) {
        slot.store(table.trampoline(index).0);
        self.frames.begin(index, key);
    }

    /// Makes a call return through an instance of its probe's pool; `None` if no instance is free.
    pub(crate) fn follow_within(
        &self,
        table: &Table,
        probe: &PlacedProbe,
        in_guest: &InGuestReturns,
        hit: &mut Hit<'_>,
    ) -> Option<()> {
        let key = Gva(hit.regs.rsp);
        let slot = hit.memory.slot(key)?;
        let return_to = Gva(slot.load());
        let entered = hit.time.0.wrapping_sub(in_guest.clock);
        let shows = self.true_return(table, return_to);
        let call = FollowedCall { key, return_to, shows, entered };
        let index = in_guest.pool.claim(&self.hidden, call)?;
        if in_guest.pool.pool.kept > 0 {
            let arguments = &probe.arguments;
            let kept = keep(&arguments.kept, hit);
            let words = arguments.kept.iter().map(|n| kept[usize::from(*n) - 1]);
            in_guest.pool.keep(&self.hidden, index, words);
        }
        slot.store(in_guest.pool.stub(index).0);
        Some(())
    }

    /// Returns, for each return probe in the mode `site`, the return address of the present call if
    /// no site finishes the call there yet.
    pub(crate) fn unwatched_returns<'a>(
        &'a self,
        table: &'a Table,
        site: &'a Site,
        memory: HitMemory<'a>,
        rsp: Gva,
    ) -> impl Iterator<Item = (Gva, &'a Arc<Probe>)> {
        let in_site_mode = |probe: &&PlacedProbe| {
            probe.returns().is_some_and(|returns| returns.mode == ReturnMode::Site)
        };
        site.enabled().filter(in_site_mode).filter_map(move |probe| {
            let ret_addr = self.true_return(table, Gva(memory.word(rsp)?));
            (!is_watched(table, ret_addr, probe)).then_some((ret_addr, &**probe))
        })
    }
}

impl Recorder {
    /// Finishes a followed call at its return. Returns whether its probe stops the machine.
    pub(crate) fn finish_call(
        &self,
        calls: &CallTracker,
        table: &Table,
        mut active: Box<KretprobeInstance>,
        hit: &mut Hit<'_>,
    ) -> bool {
        let mut stop = false;
        let KretprobeInstance { instance, kept, probe, .. } = &mut *active;
        // A probe that is disabled, removed or switched off releases its calls.
        if let Some(probe) = probe.as_ref().filter(|probe| is_on(table, probe))
            && let Some(returns) = probe.returns()
        {
            let mut hit = Hit { kept: &*kept, ..hit.of(probe.fault_handler.as_ref()) };
            let Instance { ret_addr, entered, .. } = *instance;
            let returned = Returned { to: ret_addr, entered };
            stop = self.act_on_return(calls, table, (probe, &probe.arguments), returned, &mut hit);
            if let Some(handler) = &returns.handler {
                handler(instance, &mut hit);
            }
        }
        recycle(active);
        stop
    }

    /// Runs a probe's actions at a return. Returns whether it stops the machine.
    pub(crate) fn act_on_return(
        &self,
        calls: &CallTracker,
        table: &Table,
        (probe, arguments): (&Probe, &Arguments),
        returned: Returned,
        hit: &mut Hit<'_>,
    ) -> bool {
        let info = HitInfo { probe, arguments, at: probe.at(), returned: Some(returned) };
        self.act(calls, table, &info, hit).stop
    }

    /// Handles a doorbell of the return code, with the address of the instance on the stack.
    /// Returns whether it was one.
    pub(crate) fn finish_within(
        &self,
        calls: &CallTracker,
        table: &Table,
        probe: &Arc<Probe>,
        in_guest: &InGuestReturns,
        hit: &mut Hit<'_>,
    ) -> bool {
        let slot = Gva(hit.regs.rsp);
        let instance = hit.memory.word(slot).and_then(|at| in_guest.pool.at(Gva(at)));
        let Some(index) = instance else { return false };
        let hidden = &calls.hidden;
        let return_to = in_guest.pool.return_to(hidden, index);
        hit.regs.rsp = slot.wrapping_add(RETURN_ADDRESS_LEN).0;
        match in_guest.pool.call(hidden, index).filter(|call| call.key == slot) {
            Some(call) => {
                hit.regs.rip = call.shows.0;
                if is_on(table, probe) {
                    let entered = GuestTime(call.entered.wrapping_add(in_guest.clock));
                    let returned = Returned { to: call.shows, entered };
                    let mut kept = Kept::default();
                    let words = in_guest.pool.kept(hidden, index);
                    let arguments = probe.arguments();
                    for (n, word) in arguments.kept.iter().zip(words) {
                        kept[usize::from(*n) - 1] = word;
                    }
                    let mut hit = Hit { kept: &kept, ..hit.of(probe.fault_handler.as_ref()) };
                    self.act_on_return(calls, table, (probe, &arguments), returned, &mut hit);
                }
                in_guest.pool.release(hidden, index);
            }
            // The call returns a second time, as some code of suspend and hibernation does.
            None => tracing::debug!(%slot, "a call of a return probe returns again"),
        }
        hit.regs.rip = return_to.0;
        true
    }
}

/// Returns true if a probe's returns are handled.
pub(crate) fn is_on(table: &Table, probe: &Probe) -> bool {
    table.switched_on && probe.wants_breakpoint()
}

/// Returns true if a breakpoint at `ret_addr` finishes calls of this probe.
fn is_watched(table: &Table, ret_addr: Gva, probe: &Probe) -> bool {
    match table.stop_at(ret_addr) {
        Some(Stop::Probe(site)) => site.catches(probe),
        _ => false,
    }
}
