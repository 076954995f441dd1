//! The hit path: from a breakpoint exit back into the guest, without waiting for a lock.
//!
//! Some breakpoints want the registry (a return site that is new, the engine's own marks). It is only
//! ever tried there: whoever holds it may be waiting for this very vCPU. When it is not free the vCPU
//! goes back to its breakpoint, by way of its commands, and hits again; nothing has been counted then.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use arc_swap::{ArcSwap, ArcSwapOption};
use exoprobe_guest::{BreakpointAction, ExitHook, Gva, HitContext, KernelEntry};
use exoprobe_introspect::{Btf, SymbolTable};

use crate::engine::control::registry::Registry;
use crate::engine::hit::actions::{Done, Holder, Occasion};
use crate::engine::hit::frames::Frames;
use crate::engine::hit::table::{Stop, Table};
use crate::engine::kernel::memory::HitMemory;
use crate::engine::kernel::modules::Told;
use crate::engine::kernel::state::FoundTypes;
use crate::engine::kernel::view::KernelView;
use crate::engine::optimize::rings::Rings;
use crate::engine::probe::handlers::{Hit, Verdict};
use crate::engine::probe::registered::{Probe, Role};
use crate::engine::probe::registered::{RETURN_ADDRESS_LEN, is_same_stack, unwatch, unwatch_stack};
use crate::engine::probe::site::{Mark, Site, Way};
use crate::events::Ring;
use crate::insn::Shadow;
use exoprobe_guest::Guest;

/// Bytes of an int3.
const INT3_LEN: u64 = 1;

/// The engine's part that vCPU threads reach.
pub(crate) struct HitPath {
    pub(crate) table: ArcSwap<Table>,
    /// One a vCPU.
    pub(crate) rings: Box<[Ring]>,
    /// Calls that return probes follow.
    pub(crate) frames: Frames,
    /// By vCPU: it is held at a breakpoint whose instruction has not run.
    pub(crate) held: Box<[AtomicBool]>,
    /// By vCPU: the probe that stopped the guest there last.
    pub(crate) holders: Box<[ArcSwapOption<Holder>]>,
    /// By vCPU: the stack pointer of the task that is ending there; 0 when none is.
    pub(crate) ending: Box<[AtomicU64]>,
    /// The symbols as linked, where some were given.
    pub(crate) symbols: Option<SymbolTable>,
    /// The kernel's types, where they were given.
    pub(crate) types: Option<Arc<Btf>>,
    /// Types for a kernel without its own.
    pub(crate) found_types: Option<FoundTypes>,
    pub(crate) registry: Mutex<Registry>,
    /// What detours write. Taken behind the registry's lock, and held while events are moved: they have one
    /// consumer.
    pub(crate) rings_of_guest: Mutex<Rings>,
    /// Weak, because the machine owns its hook.
    pub(crate) guest: Weak<dyn Guest>,
}

/// Whether a breakpoint can be dealt with now.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Now,
    /// Hit it again: something is not ready, or has changed.
    Again,
}

impl ExitHook for HitPath {
    fn breakpoint(&self, context: &mut HitContext<'_>) -> BreakpointAction {
        let table = self.table.load();
        let rip = context.rip();
        let Some(view) = &table.view else {
            // Before the kernel is known there can be slots of a snapshot, and nothing else.
            return pass_over(&table, context);
        };
        match table.stop_at(rip) {
            Some(Stop::Probe(site)) => self.hit(&table, view, site, context),
            Some(Stop::Doorbell(bell)) => {
                context.regs.rip = bell.site.at.0;
                // Nothing that could end or stop a hit is optimized.
                self.run_probes(&table, &bell.site, &mut look(view, context));
                context.regs.rip = bell.displaced.0;
                BreakpointAction::Resume
            }
            Some(Stop::StepEnd(site)) => {
                context.regs.rip = site.insn.after_step().0;
                run_post_handlers(site, view, context);
                BreakpointAction::Resume
            }
            None => match table.trampoline_at(rip) {
                Some(index) => self.returned(&table, view, index, context),
                None => self.returned_within(&table, view, context),
            },
        }
    }

    fn release(&self, context: &mut HitContext<'_>) {
        if !self.held[usize::from(context.vcpu)].swap(false, Ordering::AcqRel) {
            return;
        }
        let table = self.table.load();
        // A probe that was removed meanwhile left the instruction where the vCPU stands.
        if let (Some(Stop::Probe(site)), Some(view)) = (table.stop_at(context.rip()), &table.view) {
            displace(site, view, context);
        }
    }

    fn kernel_entered(&self, entry: &KernelEntry) -> bool {
        self.begin_kernel(entry) == Turn::Now
    }

    fn reset(&self) {
        self.forget_guest();
    }
}

impl HitPath {
    /// The registry, if it is free.
    pub(crate) fn try_registry(&self) -> Option<MutexGuard<'_, Registry>> {
        match self.registry.try_lock() {
            Ok(registry) => Some(registry),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    fn hit(
        &self,
        table: &Table,
        view: &KernelView,
        site: &Arc<Site>,
        context: &mut HitContext<'_>,
    ) -> BreakpointAction {
        if self.reach_marks(table, site, context) == Turn::Again {
            return BreakpointAction::Resume;
        }
        let (vcpu, mut hit) = (usize::from(context.vcpu), look(view, context));
        if self.watch_returns(table, site, &hit) == Turn::Again {
            return BreakpointAction::Resume;
        }
        let returned = self.finish_calls(table, site, &mut hit);
        let done = self.run_probes(table, site, &mut hit);
        if returned || done.stop {
            self.held[vcpu].store(done.verdict == Verdict::Continue, Ordering::Release);
            return BreakpointAction::Hold;
        }
        if done.verdict == Verdict::Continue {
            displace(site, view, context);
        }
        BreakpointAction::Resume
    }

    /// Finishes the calls that return to a site; says whether a probe wants the machine to stop.
    fn finish_calls(&self, table: &Table, site: &Site, hit: &mut Hit<'_>) -> bool {
        let key = Gva(hit.regs.rsp.wrapping_sub(RETURN_ADDRESS_LEN));
        let mut stop = false;
        for returns in site.returning.iter().filter_map(|probe| probe.returns()) {
            if let Some(active) = unwatch(&returns.watched, key) {
                stop |= self.finish_call(table, active, hit);
            }
        }
        stop
    }

    /// Runs the enabled probes of a site, in order of registration.
    fn run_probes(&self, table: &Table, site: &Site, hit: &mut Hit<'_>) -> Done {
        let mut all = Done { verdict: Verdict::Continue, stop: false };
        for probe in site.enabled() {
            match &probe.role {
                Role::Kprobe { pre_handler, .. } => {
                    let mut hit = hit.of(probe.fault_handler.as_ref());
                    let done = self.act(table, &occasion(probe, site.at), &mut hit);
                    all.stop |= done.stop;
                    all.verdict = match (done.verdict, pre_handler) {
                        (Verdict::Continue, Some(handler)) => handler(&mut hit),
                        (verdict, _) => verdict,
                    };
                }
                Role::Kretprobe(returns) => self.enter_call(table, probe, returns, hit),
            }
            if all.verdict == Verdict::Done {
                // It chose where to go on (kprobes.rst, "Changing Execution Path").
                break;
            }
        }
        all
    }

    /// A function has returned to its trampoline.
    fn returned(
        &self,
        table: &Table,
        view: &KernelView,
        index: usize,
        context: &mut HitContext<'_>,
    ) -> BreakpointAction {
        let key = Gva(context.regs.rsp.wrapping_sub(RETURN_ADDRESS_LEN));
        let Some(ret_addr) = self.frames.return_address(index) else {
            return BreakpointAction::PassToGuest;
        };
        let shows = self.behind_stub(table, ret_addr).unwrap_or(ret_addr);
        context.regs.rip = ret_addr.0;
        if !self.frames.is_at(index, key) {
            // It returns a second time, as some code of suspend and hibernation does.
            return BreakpointAction::Resume;
        }
        let (vcpu, mut hit) = (usize::from(context.vcpu), look(view, context));
        let mut stop = false;
        hit.regs.rip = shows.0;
        for active in self.frames.end(index) {
            stop |= self.finish_call(table, active, &mut hit);
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

    /// An int3 that is no probe's: a follower's doorbell, or behind a slot's copy.
    fn returned_within(
        &self,
        table: &Table,
        view: &KernelView,
        context: &mut HitContext<'_>,
    ) -> BreakpointAction {
        let Some((probe, follower)) = table.followers.of_doorbell(context.rip()) else {
            return pass_over(table, context);
        };
        match self.finish_within(table, probe, follower, &mut look(view, context)) {
            true => BreakpointAction::Resume,
            false => BreakpointAction::PassToGuest,
        }
    }

    /// Gives back the instances of all calls on a stack that is left for good.
    fn end_stack(&self, table: &Table, rsp: Gva) {
        self.frames.end_stack(rsp);
        for probe in table.watching.iter().filter_map(|probe| probe.returns()) {
            unwatch_stack(&probe.watched, rsp);
        }
        if let Some(guest) = self.guest.upgrade() {
            table.followers.release_where(guest.hidden(), |key| is_same_stack(key, rsp));
        }
    }

    /// Does what the engine itself wants at a place.
    fn reach_marks(&self, table: &Table, site: &Site, context: &HitContext<'_>) -> Turn {
        let (rsp, ending) = (Gva(context.regs.rsp), &self.ending[usize::from(context.vcpu)]);
        for mark in &site.marks {
            match mark {
                Mark::TaskDead => {
                    self.end_stack(table, rsp);
                    ending.store(rsp.0, Ordering::Relaxed);
                }
                // The functions that took it off its stack were called after its end was marked.
                Mark::StackLeft => match ending.swap(0, Ordering::Relaxed) {
                    0 => {}
                    ended => self.end_stack(table, Gva(ended)),
                },
                // The first argument is the module. What is hit here stays.
                Mark::ModuleBegins | Mark::ModuleInitFreed | Mark::ModuleEnds => {
                    let module = Gva(context.regs.rdi);
                    let told = match mark {
                        Mark::ModuleBegins => Told::Begins(module),
                        Mark::ModuleEnds => Told::Ends(module),
                        _ => Told::Nothing,
                    };
                    if self.hear_of_module(told) == Turn::Again {
                        return Turn::Again;
                    }
                }
                // Both happen once, and change what is to be hit here.
                Mark::TextFinal => {
                    self.finish_boot(context);
                    return Turn::Again;
                }
                Mark::FreeInit => {
                    self.lose_init_text();
                    return Turn::Again;
                }
            }
        }
        Turn::Now
    }
}

/// A hit for handlers to look at.
fn look<'a>(view: &'a KernelView, context: &'a mut HitContext<'_>) -> Hit<'a> {
    let (vcpu, time, sregs) = (context.vcpu, context.time, context.sregs_source());
    let memory = HitMemory { view, sregs };
    Hit { regs: context.regs, vcpu, time, memory, fault_handler: None, kept: &[] }
}

fn occasion(probe: &Probe, at: Gva) -> Occasion<'_> {
    Occasion { probe, at, returned: None }
}

/// Runs the instruction under the breakpoint, or sends the vCPU to where it runs.
fn displace(site: &Site, view: &KernelView, context: &mut HitContext<'_>) {
    match (site.way, site.step) {
        (Way::Emulate, _) => {
            let emulation = site.insn.emulation().expect("Way::Emulate is chosen by it");
            context.sti_shadow = emulation.apply(context.regs) == Shadow::Sti;
            run_post_handlers(site, view, context);
        }
        (Way::Slot(_), Some(slot)) | (Way::Slot(slot), None) => {
            context.regs.rip = slot.gva.0;
        }
    }
}

fn run_post_handlers(site: &Site, view: &KernelView, context: &mut HitContext<'_>) {
    let mut hit = look(view, context);
    for probe in site.enabled() {
        if let Some(handler) = probe.post_handler() {
            handler(&mut hit.of(probe.fault_handler.as_ref()));
        }
    }
}

/// An int3 that belongs to no probe: behind a slot's copy the guest goes on to the jmp that follows.
fn pass_over(table: &Table, context: &mut HitContext<'_>) -> BreakpointAction {
    if !table.passes_over(context.regs.rip) {
        return BreakpointAction::PassToGuest;
    }
    context.regs.rip += INT3_LEN;
    BreakpointAction::Resume
}
