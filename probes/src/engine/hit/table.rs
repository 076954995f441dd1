//! The table by which the hit path finds breakpoints: immutable, replaced as a whole.

use std::ops::Range;
use std::sync::Arc;

use exoprobe_guest::hidden::{SLOT_ADDRESS_OFFSET, SLOT_SIZE, Window};
use exoprobe_guest::{Gva, HiddenMemory};
use exoprobe_introspect::{OrcTables, SymbolTable};
use rustc_hash::FxHashMap;

use crate::engine::kernel::tasks::Tasks;
use crate::engine::kernel::view::KernelView;
use crate::engine::probe::code::Code;
use crate::engine::probe::in_guest::InGuestReturns;
use crate::engine::probe::registered::Probe;
use crate::engine::probe::site::Site;

pub(crate) enum Stop {
    /// The probed instruction itself.
    Probe(Arc<Site>),
    /// The end of a stepped copy.
    StepEnd(Arc<Site>),
    /// A detour's doorbell.
    SlowPathExit(SlowPathExit),
}

/// A place in a detour where the VMM handles a hit.
#[derive(Clone)]
pub(crate) struct SlowPathExit {
    /// Address of its int3.
    pub(crate) at: Gva,
    /// The site to which the hit belongs.
    pub(crate) site: Arc<Site>,
    /// Address of the displaced instructions, which run after the hit.
    pub(crate) displaced: Gva,
}

/// All addresses at which an int3 is the engine's.
#[derive(Default)]
pub(crate) struct Table {
    stops: FxHashMap<u64, Stop>,
    /// The slots' addresses. An int3 there that is not in `stops` ends a stepped copy whose probe
    /// was removed, perhaps before a snapshot. A jmp follows it.
    slots: Range<u64>,
    /// Detours' addresses, in both windows. As in slots, the code after an int3 of a removed probe
    /// continues without a hit.
    detours: [Range<u64>; 2],
    /// One int3 for each call that return probes can follow.
    trampolines: Range<u64>,
    /// `None` until the kernel is known. There are no sites before that.
    pub(crate) view: Option<KernelView>,
    /// The location of the kernel's tasks, once it is known.
    pub(crate) tasks: Option<Arc<Tasks>>,
    /// The kernel's ORC tables, once a probe records stacks.
    pub(crate) orc: Option<Arc<OrcTables>>,
    /// The kernel's symbols, for filters over symbols' names.
    pub(crate) symbols: Option<SymbolTable>,
    /// Return probes whose calls are followed in the guest.
    pub(crate) in_guest: InGuestProbes,
    /// Return probes in the mode `site`, armed or not.
    pub(crate) watching: Vec<Arc<Probe>>,
    /// The global switch. If it is off no probe is hit, even at a breakpoint that a mark keeps.
    pub(crate) switched_on: bool,
    /// Number of the tables before it.
    pub(crate) version: u64,
}

impl Table {
    /// The table of the armed sites. At other sites an int3 is the guest's own.
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
            let of_copy = site.guest_copy.as_ref().and_then(|copy| copy.slot);
            for stop in site.step.into_iter().chain(of_copy).filter_map(|slot| slot.stop) {
                stops.insert(stop.0, Stop::StepEnd(Arc::clone(site)));
            }
        }
        let range = |window: Option<Window>| {
            window.map_or(0..0, |window| window.gva.0..window.gva.0 + window.len)
        };
        let (slots, trampolines) = (range(hidden.code_window()), range(hidden.trampoline_window()));
        let detours = [hidden.detour_window(), hidden.more_code_window()].map(range);
        let in_guest = InGuestProbes::default();
        Self {
            stops,
            slots,
            detours,
            trampolines,
            view,
            tasks,
            orc: None,
            symbols: None,
            in_guest,
            watching,
            switched_on,
            version: 0,
        }
    }

    /// Adds the doorbells and the return code of optimized probes.
    pub(crate) fn with_detours(
        mut self,
        doorbells: impl Iterator<Item = SlowPathExit>,
        in_guest: InGuestProbes,
    ) -> Self {
        for mut bell in doorbells {
            if !self.switched_on {
                bell.site = Arc::new(bell.site.marks_only());
            }
            self.stops.insert(bell.at.0, Stop::SlowPathExit(bell));
        }
        Self { in_guest, ..self }
    }

    /// Returns true if the guest continues after the engine's int3 at `rip`, which belongs to no
    /// probe any more.
    pub(crate) fn passes_over(&self, rip: u64) -> bool {
        self.slots.contains(&rip) || self.detours.iter().any(|window| window.contains(&rip))
    }

    /// Offset in hidden memory at which the slot at `at` holds its instruction's own address.
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

/// The pools and return code of one guest, for look-up.
#[derive(Default)]
pub(crate) struct InGuestProbes(Vec<(Arc<Probe>, Arc<InGuestReturns>)>);

impl InGuestProbes {
    pub(crate) fn new(all: impl Iterator<Item = (Arc<Probe>, Arc<InGuestReturns>)>) -> Self {
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|(_, in_guest)| in_guest.code.start);
        Self(all)
    }

    /// Returns true if no calls are followed in the guest.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The one whose code contains the address.
    pub(crate) fn at(&self, at: Gva) -> Option<(&Arc<Probe>, &Arc<InGuestReturns>)> {
        let after = self.0.partition_point(|(_, in_guest)| in_guest.code.start <= at);
        let (probe, in_guest) = self.0.get(after.checked_sub(1)?)?;
        in_guest.covers(at).then_some((probe, in_guest))
    }

    /// The one whose doorbell is at the address.
    pub(crate) fn of_doorbell(&self, at: Gva) -> Option<(&Arc<Probe>, &Arc<InGuestReturns>)> {
        self.at(at).filter(|(_, in_guest)| in_guest.code.bell == Some(at))
    }

    /// Enables the counting of returns for the probes that are on, and for no others.
    pub(crate) fn set_enabled(&self, hidden: &HiddenMemory, switched_on: bool) {
        for (probe, in_guest) in &self.0 {
            in_guest.pool.set_enabled(hidden, switched_on && probe.wants_breakpoint());
        }
    }

    /// Number of followed calls.
    pub(crate) fn active(&self, hidden: &HiddenMemory) -> usize {
        let active = self.0.iter().map(|(_, in_guest)| in_guest.pool.active(hidden));
        usize::try_from(active.map(u64::from).sum::<u64>()).unwrap_or(usize::MAX)
    }

    /// Frees the instances of calls that have ended without a return.
    pub(crate) fn release_where(&self, hidden: &HiddenMemory, has_ended: impl Fn(Gva) -> bool) {
        for (_, in_guest) in &self.0 {
            in_guest.pool.release_where(hidden, &has_ended);
        }
    }
}

impl SlowPathExit {
    /// The doorbell of a piece of code whose hits belong to `site`; `None` if the code has none.
    pub(crate) fn of(code: &Code, site: &Arc<Site>) -> Option<Self> {
        Some(Self { at: code.bell?, site: Arc::clone(site), displaced: code.displaced })
    }
}
