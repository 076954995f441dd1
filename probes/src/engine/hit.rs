//! The hit path: from a breakpoint exit back into the guest, without a lock.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use exoprobe_vmm::hidden::Window;
use exoprobe_vmm::{BreakpointAction, ExitHook, Gpa, Gva, HitContext};
use rustc_hash::FxHashMap;

use super::slots::Slot;
use super::{PostHandler, PreHandler, Verdict};
use crate::definition::ProbeDefinition;
use crate::events::Ring;
use crate::insn::Displaced;
use crate::status::DisplacedBy;

/// Bytes of an int3.
const INT3_LEN: u64 = 1;

/// A registered probe: what the hit path and the registry share.
pub(crate) struct Probe {
    pub(crate) id: u32,
    pub(crate) definition: ProbeDefinition,
    pub(crate) group: Arc<str>,
    pub(crate) event: Arc<str>,
    pub(crate) pre_handler: Option<PreHandler>,
    pub(crate) post_handler: Option<PostHandler>,
    pub(crate) enabled: AtomicBool,
    pub(crate) hits: AtomicU64,
    pub(crate) recorded: AtomicU64,
    pub(crate) lost: AtomicU64,
}

impl Probe {
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }
}

/// How the instruction of a site runs.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    Emulate,
    Slot(Slot),
}

/// A probed address with all its probes. Immutable: a change makes a new one.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) at: Gva,
    pub(crate) gpa: Gpa,
    pub(crate) insn: Arc<Displaced>,
    pub(crate) way: Way,
    /// Where it is stepped, when a probe has a post-handler and emulation is not possible.
    pub(crate) step: Option<Slot>,
    /// In order of registration.
    pub(crate) probes: Vec<Arc<Probe>>,
    /// The int3 is in the guest's text.
    pub(crate) armed: bool,
    /// The guest changed the text; it is left alone since.
    pub(crate) clobbered: bool,
}

impl Site {
    pub(crate) fn displaced_by(&self) -> DisplacedBy {
        match (self.way, self.step) {
            (Way::Emulate, _) => DisplacedBy::Emulation,
            (Way::Slot(_), Some(_)) => DisplacedBy::Step,
            (Way::Slot(_), None) => DisplacedBy::Boost,
        }
    }

    fn enabled(&self) -> impl Iterator<Item = &Arc<Probe>> {
        self.probes.iter().filter(|probe| probe.is_enabled())
    }
}

enum Stop {
    /// The probed instruction itself.
    Probe(Arc<Site>),
    /// Behind a stepped copy.
    StepEnd(Arc<Site>),
}

/// All addresses at which an int3 is the engine's.
#[derive(Default)]
pub(crate) struct Table {
    stops: FxHashMap<u64, Stop>,
    /// The slots' addresses. An int3 there that is no longer in `stops` ends a stepped copy whose
    /// probe has gone, perhaps before a snapshot; a jmp follows it.
    slots: Range<u64>,
}

impl Table {
    /// The table of the armed sites: at the others, an int3 is the guest's own.
    pub(crate) fn new<'a>(
        sites: impl Iterator<Item = &'a Arc<Site>>,
        slots: Option<Window>,
    ) -> Self {
        let mut stops = FxHashMap::default();
        for site in sites.filter(|site| site.armed) {
            stops.insert(site.at.0, Stop::Probe(Arc::clone(site)));
            if let Some(stop) = site.step.and_then(|slot| slot.stop) {
                stops.insert(stop.0, Stop::StepEnd(Arc::clone(site)));
            }
        }
        let slots = slots.map_or(0..0, |window| window.gva.0..window.gva.0 + window.len);
        Self { stops, slots }
    }
}

/// The engine's part that runs on vCPU threads.
pub(crate) struct HitPath {
    pub(crate) table: ArcSwap<Table>,
    /// One a vCPU.
    pub(crate) rings: Box<[Ring]>,
}

impl ExitHook for HitPath {
    fn breakpoint(&self, context: &mut HitContext<'_>) -> BreakpointAction {
        let table = self.table.load();
        match table.stops.get(&context.rip().0) {
            Some(Stop::Probe(site)) => self.hit(site, context),
            Some(Stop::StepEnd(site)) => {
                context.regs.rip = site.insn.next().0;
                run_post_handlers(site, context);
            }
            None if table.slots.contains(&context.regs.rip) => context.regs.rip += INT3_LEN,
            None => return BreakpointAction::PassToGuest,
        }
        BreakpointAction::Resume
    }
}

impl HitPath {
    fn hit(&self, site: &Site, context: &mut HitContext<'_>) {
        for probe in site.enabled() {
            probe.hits.fetch_add(1, Ordering::Relaxed);
            self.record(probe, context);
            if let Some(handler) = &probe.pre_handler
                && handler(context.regs) == Verdict::Done
            {
                // The handler chose where to go on (kprobes.rst, "Changing Execution Path").
                return;
            }
        }
        match (site.way, site.step) {
            (Way::Emulate, _) => {
                let emulation = site.insn.emulation().expect("Way::Emulate is chosen by it");
                emulation.apply(context.regs);
                run_post_handlers(site, context);
            }
            (Way::Slot(_), Some(slot)) | (Way::Slot(slot), None) => {
                context.regs.rip = slot.gva.0;
            }
        }
    }

    fn record(&self, probe: &Probe, context: &HitContext<'_>) {
        let Some(ring) = self.rings.get(usize::from(context.vcpu)) else { return };
        let args = probe.definition.args.iter().map(|arg| arg.register.of(context.regs));
        let room = ring.push(probe.id, context.time.0, context.regs.rip, args);
        let book = if room { &probe.recorded } else { &probe.lost };
        book.fetch_add(1, Ordering::Relaxed);
    }
}

fn run_post_handlers(site: &Site, context: &mut HitContext<'_>) {
    for probe in site.enabled() {
        if let Some(handler) = &probe.post_handler {
            handler(context.regs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use exoprobe_vmm::{GuestTime, kvm_regs};

    #[test]
    fn a_task_that_ends_its_step_after_the_probe_has_gone_goes_on_behind_the_instruction() {
        let gva = Gva(0xffff_ffff_9fe0_2000);
        let window = Window { gva, offset: 0x2000, len: 0x1000 };
        let table = Table::new([].iter(), Some(window));
        let path = HitPath { table: ArcSwap::from_pointee(table), rings: Box::default() };
        let mut regs = kvm_regs { rip: gva.0 + 3, ..kvm_regs::default() };
        let mut context = HitContext { vcpu: 0, regs: &mut regs, time: GuestTime(0) };
        assert_eq!(path.breakpoint(&mut context), BreakpointAction::Resume);
        assert_eq!(regs.rip, gva.0 + 4, "at the jmp");
        regs.rip = gva.0 + 0x1000;
        let mut context = HitContext { vcpu: 0, regs: &mut regs, time: GuestTime(0) };
        assert_eq!(path.breakpoint(&mut context), BreakpointAction::PassToGuest, "the guest's own");
    }

    #[test]
    fn an_int3_at_a_site_that_is_not_armed_is_the_guests_own() {
        let at = Gva(0xffff_ffff_8100_0000);
        for armed in [true, false] {
            let site = Arc::new(Site {
                at,
                gpa: Gpa(0x100_0000),
                insn: Arc::new(crate::insn::analyze(&[0x90], at).unwrap()),
                way: Way::Emulate,
                step: None,
                probes: Vec::new(),
                armed,
                clobbered: false,
            });
            let table = ArcSwap::from_pointee(Table::new([site].iter(), None));
            let path = HitPath { table, rings: Box::default() };
            let mut regs = kvm_regs { rip: at.0, ..kvm_regs::default() };
            let mut context = HitContext { vcpu: 0, regs: &mut regs, time: GuestTime(0) };
            let action = path.breakpoint(&mut context);
            assert_eq!(action == BreakpointAction::Resume, armed);
            assert_eq!(regs.rip, at.0 + u64::from(armed));
        }
    }
}
