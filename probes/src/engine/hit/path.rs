//! A hit, from the breakpoint exit back into the guest. No hit waits for a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use exoprobe_guest::hidden::TRAMPOLINES;
use exoprobe_guest::{BreakpointAction, Gva, HiddenMemory, HitContext};

use crate::engine::hit::actions::Recorder;
use crate::engine::hit::actions::{Done, HitInfo};
use crate::engine::hit::addresses::CallTracker;
use crate::engine::hit::current::CurrentTable;
use crate::engine::hit::frames::TrampolineTable;
use crate::engine::hit::guest_steps::{GuestSteps, run_post_handlers};
use crate::engine::hit::table::{Stop, Table};
use crate::engine::kernel::memory::HitMemory;
use crate::engine::kernel::view::KernelView;
use crate::engine::probe::handlers::{Hit, Verdict};
use crate::engine::probe::registered::Role;
use crate::engine::probe::registered::{RETURN_ADDRESS_LEN, unwatch};
use crate::engine::probe::site::{Displacement, GuestCopy, Site};
use crate::events::Ring;
use crate::insn::Shadow;

/// Words of each vCPU's ring: room for 20,000 records of three arguments.
const RING_WORDS: usize = 1 << 17;
/// Bytes of an int3.
const INT3_LEN: u64 = 1;

/// The part of the engine that vCPU threads share.
pub(crate) struct HitPath {
    pub(crate) table: CurrentTable,
    pub(crate) recorder: Recorder,
    /// Calls that return probes follow.
    pub(crate) calls: CallTracker,
    /// By vCPU: true while it is held at a breakpoint whose instruction has not run.
    held: Box<[AtomicBool]>,
    /// By vCPU: address of an int3 of the guest's own that it runs next, and that was hit already.
    passing: Box<[AtomicU64]>,
    /// By vCPU: the stack pointer of the task that is ending there, or 0.
    pub(crate) ending: Box<[AtomicU64]>,
    /// Hits that the guest's own kprobes handle, before post-handlers.
    pub(crate) guest_steps: GuestSteps,
    /// Address of the return address of the guest's __text_poke(), while it writes, or 0. Its
    /// kernel writes one text at a time (text_mutex).
    guest_write: AtomicU64,
}

impl HitPath {
    /// A hit path without probes and without followed calls.
    pub(crate) fn new(vcpus: u8, hidden: &HiddenMemory) -> Self {
        // A guest from a snapshot may have tasks in slots of the time before.
        let table = Table::new([].iter(), hidden, None, None, Vec::new(), true);
        Self {
            table: CurrentTable::new(vcpus, table),
            recorder: Recorder {
                rings: (0..vcpus).map(|_| Ring::new(RING_WORDS)).collect(),
                holders: (0..vcpus).map(|_| ArcSwapOption::empty()).collect(),
            },
            calls: CallTracker {
                frames: TrampolineTable::new(TRAMPOLINES),
                hidden: hidden.clone(),
            },
            held: (0..vcpus).map(|_| AtomicBool::new(false)).collect(),
            passing: (0..vcpus).map(|_| AtomicU64::new(0)).collect(),
            ending: (0..vcpus).map(|_| AtomicU64::new(0)).collect(),
            guest_steps: GuestSteps::new(vcpus),
            guest_write: AtomicU64::new(0),
        }
    }

    /// Handles a breakpoint exit, but for a trampoline's; `stop` is the table's entry of its
    /// address.
    // One function for the hits of kprobes, without others' parts: that is 20 instructions a hit.
    #[inline(always)]
    pub(crate) fn breakpoint(
        &self,
        table: &Table,
        stop: Option<&Stop>,
        context: &mut HitContext<'_>,
    ) -> BreakpointAction {
        let passing = &self.passing[usize::from(context.vcpu)];
        if passing.load(Ordering::Acquire) == context.regs.rip {
            passing.store(0, Ordering::Release);
            return BreakpointAction::PassToGuest;
        }
        let Some(view) = &table.view else {
            // Before the kernel is known, only slots of a snapshot can exist.
            return pass_over(table, context);
        };
        match stop {
            Some(Stop::Probe(site)) => self.hit(table, view, site, context),
            Some(Stop::SlowPathExit(bell)) => {
                context.regs.rip = bell.site.at.0;
                // An optimized probe cannot end or stop a hit.
                self.run_probes(table, &bell.site, &mut look(table, view, context));
                context.regs.rip = bell.displaced.0;
                BreakpointAction::Resume
            }
            Some(Stop::StepEnd(site)) => {
                end_step(table, site, view, context);
                BreakpointAction::Resume
            }
            None => self.returned_within(table, view, context),
        }
    }

    /// Handles the entry of the guest's kprobe_int3_handler().
    pub(crate) fn follow_guest_step(
        &self,
        table: &Table,
        view: &KernelView,
        context: &mut HitContext<'_>,
    ) {
        self.guest_steps.begin(&self.calls, table, &look(table, view, context));
    }

    /// Handles the entry of the guest's __text_poke(): notes the write until that returns.
    pub(crate) fn follow_guest_write(
        &self,
        table: &Table,
        view: &KernelView,
        context: &mut HitContext<'_>,
    ) {
        let hit = look(table, view, context);
        let key = Gva(hit.regs.rsp);
        if self.calls.catch_return(table, key, hit.memory) {
            self.guest_write.store(key.0, Ordering::Release);
        }
    }

    /// Returns true while the guest's kernel writes its text.
    pub(crate) fn guest_writes(&self) -> bool {
        self.guest_write.load(Ordering::Acquire) != 0
    }

    /// At a trampoline's breakpoint: the site, and the copy of its instruction that the guest runs
    /// next, if the site has no slot for it yet.
    pub(crate) fn unknown_copy(
        &self,
        table: &Table,
        view: &KernelView,
        context: &mut HitContext<'_>,
    ) -> Option<(Gva, Gva)> {
        if !self.guest_steps.has_any(context.vcpu) {
            return None;
        }
        let key = Gva(context.regs.rsp.wrapping_sub(RETURN_ADDRESS_LEN));
        self.guest_steps.unknown_copy(table, key, &look(table, view, context))
    }

    /// Resumes a vCPU that was held at a breakpoint.
    pub(crate) fn release(&self, context: &mut HitContext<'_>) {
        if !self.held[usize::from(context.vcpu)].swap(false, Ordering::AcqRel) {
            return;
        }
        let table = self.table.load();
        // A probe that was removed meanwhile has left its instruction at the vCPU's address.
        if let (Some(Stop::Probe(site)), Some(view)) = (table.stop_at(context.rip()), &table.view) {
            match site.is_passed_on() {
                true => {
                    let passing = &self.passing[usize::from(context.vcpu)];
                    passing.store(context.regs.rip, Ordering::Release);
                }
                false => displace(&table, site, view, context),
            }
        }
    }

    /// Returns true if a vCPU is held at a breakpoint.
    pub(crate) fn is_held(&self) -> bool {
        self.held.iter().any(|held| held.load(Ordering::Acquire))
    }

    /// Counts the calls that return probes follow by replaced return addresses, also of removed
    /// probes.
    pub(crate) fn calls_followed(&self) -> usize {
        self.calls.calls_followed(&self.table.load())
    }

    /// Drops all calls: the guest is booted again.
    pub(crate) fn reset(&self) {
        self.calls.frames.clear();
        self.held.iter().for_each(|held| held.store(false, Ordering::Release));
        self.passing.iter().for_each(|passing| passing.store(0, Ordering::Relaxed));
        self.ending.iter().for_each(|ending| ending.store(0, Ordering::Relaxed));
        self.guest_steps.clear();
        self.guest_write.store(0, Ordering::Release);
    }

    #[inline(always)]
    fn hit(
        &self,
        table: &Table,
        view: &KernelView,
        site: &Arc<Site>,
        context: &mut HitContext<'_>,
    ) -> BreakpointAction {
        let (vcpu, mut hit) = (usize::from(context.vcpu), look(table, view, context));
        let returned = self.finish_calls(table, site, &mut hit);
        let done = self.run_probes(table, site, &mut hit);
        if returned || done.stop {
            self.held[vcpu].store(done.verdict == Verdict::Continue, Ordering::Release);
            return BreakpointAction::Hold;
        }
        match done.verdict {
            Verdict::Continue if site.is_passed_on() => return BreakpointAction::PassToGuest,
            Verdict::Continue => displace(table, site, view, context),
            Verdict::Done => {}
        }
        BreakpointAction::Resume
    }

    /// Finishes the calls that return to a site. Returns whether a probe stops the machine.
    fn finish_calls(&self, table: &Table, site: &Site, hit: &mut Hit<'_>) -> bool {
        let key = Gva(hit.regs.rsp.wrapping_sub(RETURN_ADDRESS_LEN));
        let mut stop = false;
        for returns in site.returning.iter().filter_map(|probe| probe.returns()) {
            if let Some(active) = unwatch(&returns.watched, key) {
                stop |= self.recorder.finish_call(&self.calls, table, active, hit);
            }
        }
        stop
    }

    /// Runs the enabled probes of a site, in order of registration.
    #[inline(always)]
    fn run_probes<'a>(&self, table: &Table, site: &'a Site, hit: &mut Hit<'a>) -> Done {
        let mut all = Done::CONTINUE;
        for probe in site.enabled() {
            match &probe.role {
                Role::Kprobe { pre_handler, .. } => {
                    hit.fault_handler = probe.fault_handler.as_ref();
                    let arguments = &probe.arguments;
                    let info = HitInfo { probe, arguments, at: site.at, returned: None };
                    let done = self.recorder.act(&self.calls, table, &info, hit);
                    all.stop |= done.stop;
                    all.verdict = match (done.verdict, pre_handler) {
                        (Verdict::Continue, Some(handler)) => handler(hit),
                        (verdict, _) => verdict,
                    };
                }
                Role::Kretprobe(returns) => {
                    hit.fault_handler = None;
                    self.calls.enter_call(table, probe, returns, hit);
                }
            }
            if all.verdict == Verdict::Done {
                // The handler chose the next address (kprobes.rst, "Changing Execution Path").
                break;
            }
        }
        all
    }

    /// Handles the return of a function to its trampoline.
    #[inline]
    pub(crate) fn returned(
        &self,
        table: &Table,
        view: &KernelView,
        index: usize,
        context: &mut HitContext<'_>,
    ) -> BreakpointAction {
        let key = Gva(context.regs.rsp.wrapping_sub(RETURN_ADDRESS_LEN));
        let Some(ret_addr) = self.calls.frames.return_address(index) else {
            return BreakpointAction::PassToGuest;
        };
        let shows = self.calls.return_of_stub(table, ret_addr).unwrap_or(ret_addr);
        context.regs.rip = ret_addr.0;
        if !self.calls.frames.is_at(index, key) {
            // The call returns a second time, as some code of suspend and hibernation does.
            return BreakpointAction::Resume;
        }
        let (vcpu, mut hit) = (usize::from(context.vcpu), look(table, view, context));
        let _ = self.guest_write.compare_exchange(key.0, 0, Ordering::AcqRel, Ordering::Relaxed);
        if let Some(step) = self.guest_steps.end(hit.vcpu, key) {
            step.finish(table, &mut hit);
        }
        let mut stop = false;
        hit.regs.rip = shows.0;
        for active in self.calls.frames.end(index) {
            stop |= self.recorder.finish_call(&self.calls, table, active, &mut hit);
        }
        if hit.regs.rip == shows.0 {
            hit.regs.rip = ret_addr.0;
        }
        if stop {
            self.held[vcpu].store(false, Ordering::Release);
            return BreakpointAction::Hold;
        }
        BreakpointAction::Resume
    }

    /// Handles an int3 that is no probe's: a doorbell of return code, or the one after a slot's
    /// copy.
    #[inline(never)]
    fn returned_within(
        &self,
        table: &Table,
        view: &KernelView,
        context: &mut HitContext<'_>,
    ) -> BreakpointAction {
        let Some((probe, in_guest)) = table.in_guest.of_doorbell(context.rip()) else {
            return pass_over(table, context);
        };
        match self.recorder.finish_within(
            &self.calls,
            table,
            probe,
            in_guest,
            &mut look(table, view, context),
        ) {
            true => BreakpointAction::Resume,
            false => BreakpointAction::PassToGuest,
        }
    }
}

/// A hit, as handlers see it.
pub(crate) fn look<'a>(
    table: &'a Table,
    view: &'a KernelView,
    context: &'a mut HitContext<'_>,
) -> Hit<'a> {
    let (vcpu, time, sregs) = (context.vcpu, context.time, context.sregs_source());
    let memory = HitMemory { view, sregs, tasks: table.tasks.as_deref() };
    Hit { regs: context.regs, vcpu, time, memory, fault_handler: None, kept: &[] }
}

/// Runs the instruction under the breakpoint, or moves the vCPU to its copy.
#[inline(always)]
fn displace(table: &Table, site: &Site, view: &KernelView, context: &mut HitContext<'_>) {
    match (site.way, site.step) {
        (Displacement::Emulate, _) => {
            let emulation = site.insn.emulation().expect("Way::Emulate is chosen by it");
            context.sti_shadow = emulation.apply(context.regs) == Shadow::Sti;
            if site.has_post_handler() {
                end_emulation(table, site, view, context);
            }
        }
        (Displacement::Slot(_), Some(slot)) | (Displacement::Slot(slot), None) => {
            context.regs.rip = slot.gva.0;
        }
    }
}

/// Runs post-handlers after an emulated instruction. Few sites have any: others' hits do not make
/// room for it.
#[inline(never)]
fn end_emulation(table: &Table, site: &Site, view: &KernelView, context: &mut HitContext<'_>) {
    run_post_handlers(site, &mut look(table, view, context));
}

/// Handles the end of a stepped copy: of the site's instruction, or of the guest's copy of it.
fn end_step(table: &Table, site: &Site, view: &KernelView, context: &mut HitContext<'_>) {
    let stop = Some(context.rip());
    let is_here = |copy: &&Arc<GuestCopy>| copy.slot.is_some_and(|slot| slot.stop == stop);
    let mut hit = look(table, view, context);
    match site.guest_copy.as_ref().filter(is_here) {
        Some(copy) => {
            hit.regs.rip = site.at.wrapping_add(copy.next.0.wrapping_sub(copy.at.0)).0;
            run_post_handlers(site, &mut hit);
            // The guest's kernel sets the address after its copy.
            hit.regs.rip = copy.next.0;
        }
        None => {
            hit.regs.rip = site.insn.after_step().0;
            run_post_handlers(site, &mut hit);
        }
    }
}

/// Handles an int3 that belongs to no probe: after a slot's copy the guest continues at the jmp
/// that follows.
fn pass_over(table: &Table, context: &mut HitContext<'_>) -> BreakpointAction {
    if !table.passes_over(context.regs.rip) {
        return BreakpointAction::PassToGuest;
    }
    context.regs.rip += INT3_LEN;
    BreakpointAction::Resume
}
