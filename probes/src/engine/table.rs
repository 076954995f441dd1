//! What the hit path looks breakpoints up in: immutable, replaced as a whole.

use std::ops::Range;
use std::sync::Arc;

use exoprobe_introspect::{OrcTables, SymbolTable};
use exoprobe_vmm::hidden::{SLOT_ADDRESS_OFFSET, SLOT_SIZE, Window};
use exoprobe_vmm::{Gpa, Gva, HiddenMemory};
use rustc_hash::FxHashMap;

use super::follower::Followers;
use super::guest::KernelView;
use super::probe::Probe;
use super::slots::Slot;
use super::tasks::Tasks;
use crate::insn::Displaced;
use crate::status::DisplacedBy;

/// How the instruction of a site runs.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    Emulate,
    Slot(Slot),
}

/// What the engine itself wants to know of the guest, by a breakpoint of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mark {
    /// The kernel's text is final: its alternatives have been patched.
    TextFinal,
    /// The kernel is about to free its init text.
    FreeInit,
    /// A task is about to leave its stack for good.
    TaskDead,
    /// It has left it.
    StackLeft,
    /// A module is whole, and its init function about to run.
    ModuleBegins,
    /// Modules' init text is about to be freed.
    ModuleInitFreed,
    /// A module is about to be freed.
    ModuleEnds,
}

/// A probed address with all that is wanted there. Immutable: a change makes a new one.
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
    /// Return probes in the mode `site` one of whose calls returns to here.
    pub(crate) returning: Vec<Arc<Probe>>,
    pub(crate) marks: Vec<Mark>,
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

    /// Probes there that are to run.
    pub(crate) fn enabled(&self) -> impl Iterator<Item = &Arc<Probe>> {
        self.probes.iter().filter(|probe| probe.is_enabled())
    }

    /// The site with nothing but what the engine itself wants there.
    pub(super) fn marks_only(&self) -> Self {
        Self { probes: Vec::new(), returning: Vec::new(), ..self.clone() }
    }

    /// Probes that are there, and those whose calls return to there.
    pub(crate) fn concerned(&self) -> impl Iterator<Item = &Arc<Probe>> {
        self.probes.iter().chain(&self.returning)
    }

    /// Where its instruction runs elsewhere.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        let own = match self.way {
            Way::Slot(slot) => Some(slot),
            Way::Emulate => None,
        };
        own.into_iter().chain(self.step)
    }

    /// Does nothing need the site any more?
    pub(crate) fn is_unused(&self) -> bool {
        self.probes.is_empty() && self.returning.is_empty() && self.marks.is_empty()
    }
}

pub(crate) enum Stop {
    /// The probed instruction itself.
    Probe(Arc<Site>),
    /// Behind a stepped copy.
    StepEnd(Arc<Site>),
    /// A detour's doorbell.
    Doorbell(Doorbell),
}

/// Where a detour has the VMM deal with a hit.
#[derive(Clone)]
pub(crate) struct Doorbell {
    /// Address of its int3.
    pub(crate) at: Gva,
    /// Whose hit it is.
    pub(crate) site: Arc<Site>,
    /// Where the displaced instructions are, which run after it.
    pub(crate) displaced: Gva,
}

/// All addresses at which an int3 is the engine's.
#[derive(Default)]
pub(crate) struct Table {
    stops: FxHashMap<u64, Stop>,
    /// The slots' addresses. An int3 there that is no longer in `stops` ends a stepped copy whose
    /// probe has gone, perhaps before a snapshot; a jmp follows it.
    slots: Range<u64>,
    /// Detours' addresses: as in slots, code that goes on without a hit follows an int3 that nobody knows any more.
    detours: Range<u64>,
    /// One int3 for each call that return probes can follow.
    trampolines: Range<u64>,
    /// `None` until the kernel is known, and then there are no sites either.
    pub(crate) view: Option<KernelView>,
    /// How the kernel tells its tasks, once that is known.
    pub(crate) tasks: Option<Arc<Tasks>>,
    /// What back-traces go by, where the kernel has such tables and somebody asked for them.
    pub(crate) orc: Option<Arc<OrcTables>>,
    /// The kernel's, for filters over symbols' names.
    pub(crate) symbols: Option<SymbolTable>,
    /// Return probes whose calls are followed within the guest.
    pub(crate) followers: Followers,
    /// Return probes in the mode `site`, armed or not.
    pub(crate) watching: Vec<Arc<Probe>>,
    /// The global switch: off, no probe is hit, also where a mark keeps its breakpoint.
    pub(crate) switched_on: bool,
}

impl Table {
    /// The table of the armed sites: at the others, an int3 is the guest's own.
    pub(crate) fn new<'a>(
        sites: impl Iterator<Item = &'a Arc<Site>>,
        hidden: &HiddenMemory,
        view: Option<KernelView>,
        tasks: Option<Arc<Tasks>>,
        watching: Vec<Arc<Probe>>,
        switched_on: bool,
    ) -> Self {
        let mut stops = FxHashMap::default();
        for site in sites.filter(|site| site.armed) {
            let site = &if switched_on { Arc::clone(site) } else { Arc::new(site.marks_only()) };
            stops.insert(site.at.0, Stop::Probe(Arc::clone(site)));
            if let Some(stop) = site.step.and_then(|slot| slot.stop) {
                stops.insert(stop.0, Stop::StepEnd(Arc::clone(site)));
            }
        }
        let range = |window: Option<Window>| {
            window.map_or(0..0, |window| window.gva.0..window.gva.0 + window.len)
        };
        let (slots, trampolines) = (range(hidden.code_window()), range(hidden.trampoline_window()));
        let detours = range(hidden.detour_window());
        let followers = Followers::default();
        Self {
            stops,
            slots,
            detours,
            trampolines,
            view,
            tasks,
            orc: None,
            symbols: None,
            followers,
            watching,
            switched_on,
        }
    }

    /// Adds what optimized probes have.
    pub(super) fn with_detours(
        mut self,
        doorbells: impl Iterator<Item = Doorbell>,
        followers: Followers,
    ) -> Self {
        for mut bell in doorbells {
            if !self.switched_on {
                bell.site = Arc::new(bell.site.marks_only());
            }
            self.stops.insert(bell.at.0, Stop::Doorbell(bell));
        }
        Self { followers, ..self }
    }

    /// Whether the guest goes on behind an int3 of the engine's at `rip` that belongs to no probe any more.
    pub(crate) fn passes_over(&self, rip: u64) -> bool {
        self.slots.contains(&rip) || self.detours.contains(&rip)
    }

    /// Where in hidden memory the slot at `at` holds its instruction's own address.
    pub(crate) fn slot_address(&self, hidden: &HiddenMemory, at: Gva) -> Option<u64> {
        let inside = self.slots.contains(&at.0).then(|| at.0 - self.slots.start)?;
        let slot = inside / SLOT_SIZE * SLOT_SIZE;
        Some(hidden.code_window()?.offset + slot + SLOT_ADDRESS_OFFSET)
    }

    pub(crate) fn stop_at(&self, rip: Gva) -> Option<&Stop> {
        self.stops.get(&rip.0)
    }

    /// Number of the trampoline at an address.
    pub(crate) fn trampoline_at(&self, at: Gva) -> Option<usize> {
        let inside = self.trampolines.contains(&at.0);
        inside.then(|| usize::try_from(at.0 - self.trampolines.start).expect("a few pages"))
    }

    /// Address of a trampoline.
    pub(crate) fn trampoline(&self, index: usize) -> Gva {
        Gva(self.trampolines.start + index as u64)
    }
}
