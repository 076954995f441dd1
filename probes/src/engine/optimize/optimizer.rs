//! The optimizer: decides which probes have a jmp in place of their int3, and writes and removes
//! the jmps.
//!
//! A pass ([`Optimizer::prepare`]) examines all sites and writes detours for those that may have
//! one. A search (`pass`) then stops the vCPUs once for all of them: no vCPU, and no
//! address on a stack, may be within the bytes that a jmp covers. Anything that changes at a site
//! takes its jmp out first ([`Optimizer::take_out`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use exoprobe_guest::HiddenMemory;
use exoprobe_guest::{Gpa, GuestRam, Gva};
use exoprobe_introspect::symbols::TextKind;

use crate::detour::{JMP_LEN, Region};
use crate::engine::hit::table::InGuestProbes;
use crate::engine::hit::table::SlowPathExit;
use crate::engine::kernel::running::Kernel;
use crate::engine::optimize::candidate::OptimizedSite;
use crate::engine::optimize::known_texts::KnownTexts;
use crate::engine::optimize::rings::Rings;
use crate::engine::optimize::space::{Retired, Space, is_in_more};
use crate::engine::patch::view::Overlay;
use crate::engine::probe::code::Code;
use crate::engine::probe::in_guest::InGuestReturns;
use crate::engine::probe::registered::Probe;
use crate::engine::probe::site::Site;
use crate::engine::probe::site::Sites;
use exoprobe_guest::Guest;

/// Number of stops that wait for vCPUs in detours whose jmps were taken out, and the delay between
/// two.
pub(crate) const LOOKS: u32 = 3;
pub(crate) const LOOK: Duration = Duration::from_micros(200);
/// A site that a task is in is examined again after 2, 4, 8, ... passes, at most two to this power.
const BUSY_MAX: u32 = 9;

/// State of the optimizer.
pub(crate) struct Optimizer {
    /// The switch debug.kprobes-optimization.
    pub(crate) allowed: bool,
    pub(super) installed: Installed,
    /// Results of the safety check, valid until the kernel is booted again; those of modules' text
    /// until a module comes or goes.
    pub(crate) checked: HashMap<Gva, Result<Arc<Region>, Arc<str>>>,
    why_not: HashMap<Gva, Arc<str>>,
    /// True if something has changed since the last pass.
    pub(crate) changed: bool,
    /// Sites that a task was in: how often, and the pass that examines the site again.
    pub(super) busy: HashMap<Gva, (u32, u64)>,
    passes: u64,
    pub(crate) known_texts: KnownTexts,
    pub(crate) space: Space,
    /// Doorbells of detours that are about to get their jmps.
    pub(super) preparing: Vec<SlowPathExit>,
    /// Pools and code of return probes whose calls are followed in the guest, by the probe's
    /// number.
    pub(crate) in_guest: BTreeMap<u32, (Arc<Probe>, Arc<InGuestReturns>)>,
    pub(super) retired: Vec<Retired>,
    /// Code that jmps led to when they were taken out: tasks may be in it.
    leaving: Vec<(Gva, Gva)>,
    /// Number of changes that void a pass that is under way.
    pub(super) changes: u64,
    /// Number of boots before this one.
    pub(super) boot: u64,
}

/// Sites that have a jmp, by address.
#[derive(Default)]
pub(crate) struct Installed(pub(super) BTreeMap<Gva, OptimizedSite>);

impl Overlay for Installed {
    fn restore(&self, start: Gva, bytes: &mut [u8]) {
        let first = Gva(start.0.saturating_sub(JMP_LEN as u64));
        let end = start.wrapping_add(bytes.len() as u64);
        for (at, found) in self.0.range(first..end) {
            for (offset, original) in (0u64..).zip(found.region.covered()) {
                let index = at.0.wrapping_add(offset).wrapping_sub(start.0);
                if let Some(byte) = usize::try_from(index).ok().and_then(|i| bytes.get_mut(i)) {
                    *byte = *original;
                }
            }
        }
    }
}

/// The state of an optimized site's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Optimized {
    /// The jmp is in place, and so are the bytes that follow it in the last instruction that it
    /// covers.
    AsWanted,
    /// The jmp was overwritten.
    Overwritten,
    /// The bytes after the jmp, of the last instruction that it covers, have changed.
    RestChanged,
}

/// The result of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Optimization {
    /// Number of probed places that the pass optimized.
    pub optimized: usize,
    /// Number of places that can be optimized once no task is in them.
    pub waiting: usize,
    /// Number of places that are optimized now.
    pub total: usize,
}

impl Optimizer {
    pub(crate) fn new() -> Self {
        Self {
            allowed: true,
            installed: Installed::default(),
            checked: HashMap::new(),
            why_not: HashMap::new(),
            changed: true,
            busy: HashMap::new(),
            passes: 0,
            known_texts: KnownTexts::default(),
            space: Space::default(),
            preparing: Vec::new(),
            in_guest: BTreeMap::new(),
            retired: Vec::new(),
            leaving: Vec::new(),
            changes: 0,
            boot: 0,
        }
    }

    /// Drops all state: everything about the guest is void.
    pub(crate) fn reset(&mut self) {
        *self = Self { allowed: self.allowed, boot: self.boot + 1, ..Self::new() };
    }

    pub(crate) fn installed(&self) -> &Installed {
        &self.installed
    }

    /// Number of optimized sites.
    pub(crate) fn total(&self) -> usize {
        self.installed.0.len()
    }

    pub(crate) fn is_installed(&self, at: Gva) -> bool {
        self.installed.0.contains_key(&at)
    }

    /// Returns true if this pass examines the site.
    fn is_due(&self, at: Gva) -> bool {
        let waits = self.busy.get(&at).is_some_and(|(_, until)| self.passes < *until);
        !waits && !self.is_installed(at)
    }

    /// Records that a task was in a site, or that its jmp was taken out: it does not get one at
    /// once. Backs off exponentially: each attempt stops the guest.
    pub(crate) fn hold_off(&mut self, at: Gva) {
        self.hold_off_for(at, "busy: a task was within what the jmp would cover".into());
    }

    pub(super) fn hold_off_for(&mut self, at: Gva, reason: Arc<str>) {
        let (times, until) = self.busy.entry(at).or_default();
        *times = (*times + 1).min(BUSY_MAX);
        *until = self.passes + (1 << *times);
        self.why_not.insert(at, reason);
    }

    /// Records that probes, their text or their permissions have changed. The next pass examines
    /// all sites again. Reasons of the last pass are dropped, except for sites that the next pass
    /// skips.
    pub(crate) fn note_change(&mut self) {
        self.changed = true;
        self.changes += 1;
        let Self { why_not, busy, passes, .. } = self;
        why_not.retain(|at, _| busy.get(at).is_some_and(|(_, until)| *passes + 1 < *until));
    }

    /// Records that the text of sites has gone: what is there later is another's.
    pub(crate) fn forget_sites(&mut self, lost: &[Gva]) {
        for at in lost {
            self.busy.remove(at);
            self.why_not.remove(at);
        }
    }

    /// Records that modules have come or gone: the kernel has these now.
    pub(crate) fn note_modules(&mut self, kernel: &Kernel) {
        self.checked.retain(|at, _| kernel.symbols.text_kind(*at) == Some(TextKind::Core));
        self.known_texts.keep_modules_of(kernel);
        self.note_change();
    }

    pub(crate) fn why_not(&self, at: Gva) -> Option<&Arc<str>> {
        self.why_not.get(&at)
    }

    /// Returns the optimized site that has `at` among its instructions.
    pub(crate) fn covering(&self, at: Gva) -> Option<Gva> {
        let (start, found) = self.installed.0.range(..=at).next_back()?;
        let end = found.region.end();
        (at < end).then_some(*start)
    }

    /// Returns the optimized sites that have instructions between two addresses.
    pub(crate) fn overlapping(&self, start: Gva, end: Gva) -> impl Iterator<Item = Gva> {
        let first = self.covering(start).unwrap_or(start);
        self.installed.0.range(first..end).map(|(at, _)| *at)
    }

    /// Returns the optimized site whose detour contains `at`.
    pub(crate) fn of_detour(&self, at: Gva) -> Option<Gva> {
        let has = |found: &&OptimizedSite| found.code.start <= at && at < found.code.end;
        self.installed.0.values().find(has).map(|found| found.at)
    }

    /// Returns true if no detour exists that can still write.
    pub(crate) fn is_idle(&self) -> bool {
        self.installed.0.is_empty() && self.retired.is_empty() && self.in_guest.is_empty()
    }

    /// All active doorbells, with the sites to which their hits belong.
    pub(crate) fn doorbells<'a>(
        &'a self,
        sites: &'a Sites,
    ) -> impl Iterator<Item = SlowPathExit> + 'a {
        let there =
            self.installed.0.values().filter_map(|c| SlowPathExit::of(&c.code, sites.get(&c.at)?));
        let left = self.retired.iter().filter_map(|retired| match retired {
            Retired::Detour { code, site: Some(site), .. } => SlowPathExit::of(code, site),
            _ => None,
        });
        there.chain(self.preparing.iter().cloned()).chain(left)
    }

    /// Pools and code of calls followed in the guest, also of removed probes.
    pub(crate) fn in_guest(&self) -> impl Iterator<Item = (Arc<Probe>, Arc<InGuestReturns>)> {
        let left = self.retired.iter().filter_map(|retired| match retired {
            Retired::InGuestReturns(probe, in_guest) => {
                Some((Arc::clone(probe), Arc::clone(in_guest)))
            }
            Retired::Detour { .. } => None,
        });
        self.in_guest.values().cloned().chain(left)
    }

    /// Records that probes are removed. Calls of these probes may still be in progress.
    pub(crate) fn forget(&mut self, ids: &[u32]) {
        self.changes += 1;
        let gone = ids.iter().filter_map(|id| self.in_guest.remove(id));
        self.retired.extend(gone.map(|(probe, in_guest)| Retired::InGuestReturns(probe, in_guest)));
    }

    /// Guest-physical addresses of the jmps' bytes, with the original bytes.
    pub(crate) fn original_bytes(&self, ram: &GuestRam) -> Vec<(Gpa, u8)> {
        let mut bytes = Vec::new();
        for found in self.installed.0.values() {
            let places = found.places.iter().zip(found.jmp).zip(found.region.covered());
            let there = places.filter(|((place, jmp), _)| ram.load_byte(**place) == Ok(*jmp));
            bytes.extend(there.map(|((place, _), original)| (*place, *original)));
        }
        bytes
    }

    /// Compares the text of an optimized site with the expected bytes; `None` if the site is not
    /// optimized.
    pub(crate) fn text_of(&self, guest: &dyn Guest, at: Gva) -> Option<Optimized> {
        let found = self.installed.0.get(&at)?;
        let holds = |places: &[Gpa], bytes: &mut dyn Iterator<Item = u8>| {
            places.iter().zip(bytes).all(|(place, byte)| guest.ram().load_byte(*place) == Ok(byte))
        };
        Some(match () {
            () if !holds(&found.places, &mut found.jmp.into_iter()) => Optimized::Overwritten,
            () if !holds(&found.rest, &mut found.region.bytes().skip(JMP_LEN)) => {
                Optimized::RestChanged
            }
            () => Optimized::AsWanted,
        })
    }

    /// Drops a jmp that the guest has overwritten. Its detour is retired.
    pub(crate) fn lose(&mut self, at: Gva, site: Option<Arc<Site>>) {
        if let Some(found) = self.installed.0.remove(&at) {
            self.changes += 1;
            self.retired.push(found.retire(site));
        }
    }
}

impl Optimizer {
    /// Begins a pass: writes detours for the sites that may have one. Returns an empty list if
    /// nothing has changed since the last pass.
    pub(crate) fn prepare(
        &mut self,
        sites: &Sites,
        switched_on: bool,
        guest: &dyn Guest,
        kernel: &Arc<Kernel>,
        rings: &mut Rings,
    ) -> Vec<OptimizedSite> {
        self.passes += 1;
        self.busy.retain(|at, _| sites.contains_key(at));
        self.why_not.retain(|at, _| sites.contains_key(at));
        if !self.changed && self.busy.is_empty() {
            return Vec::new();
        }
        // Records have no time without the clock. The next pass tries again.
        if !sites.is_empty() && !rings.learn_clock(|| guest.tsc_offset()) {
            return Vec::new();
        }
        self.changed = false;
        let due: Vec<&Arc<Site>> = sites.values().filter(|site| self.is_due(site.at)).collect();
        let mut candidates = Vec::new();
        for site in due {
            match self.candidate(sites, switched_on, guest, kernel, rings, site) {
                Ok(candidate) => {
                    self.why_not.remove(&site.at);
                    candidates.push(candidate);
                }
                Err(why) => _ = self.why_not.insert(site.at, why),
            }
        }
        candidates
    }

    /// Adds the doorbells of detours that are about to get their jmps. The table must contain them
    /// first.
    pub(crate) fn announce(&mut self, sites: &Sites, candidates: &[OptimizedSite]) {
        let bell = |c: &OptimizedSite| SlowPathExit::of(&c.code, sites.get(&c.at)?);
        self.preparing = candidates.iter().filter_map(bell).collect();
    }

    /// Frees code that no table contains.
    pub(crate) fn free(&mut self, hidden: &HiddenMemory, rings: &mut Rings, freed: Vec<Code>) {
        freed.into_iter().for_each(|code| self.space.free(hidden, rings, code));
    }

    /// Returns true if unlinked code exists.
    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Returns true if code exists in the extension of hidden memory.
    pub(crate) fn has_code_in_more(&self, hidden: &HiddenMemory) -> bool {
        let installed = self.installed.0.values().map(|found| &found.code);
        let mut all = installed.chain(self.retired.iter().map(Retired::code));
        all.any(|code| is_in_more(hidden, code.start))
    }

    /// Takes the jmps of sites out: their int3s are back when this returns. A task that was
    /// interrupted may still be in their detours ([`Self::take_leaving`]). Returns the places whose
    /// text the guest has changed.
    pub(crate) fn take_out(
        &mut self,
        sites: &Sites,
        places: &[Gva],
        switched_on: bool,
        guest: &dyn Guest,
    ) -> Vec<Gva> {
        let taken = places.iter().filter_map(|at| self.installed.0.remove(at));
        let taken: Vec<OptimizedSite> = taken.collect();
        let in_guest: Vec<Arc<InGuestReturns>> = in_guest_at(sites, places).collect();
        if taken.is_empty() && in_guest.is_empty() {
            return Vec::new();
        }
        self.changes += 1;
        InGuestProbes::new(self.in_guest()).set_enabled(guest.hidden(), switched_on);
        self.leaving.extend(taken.iter().map(|found| (found.code.start, found.code.end)));
        let returns = in_guest.iter().map(|in_guest| (in_guest.code.start, in_guest.stubs));
        self.leaving.extend(returns);
        let clobbered = take_back(&taken, &self.leaving, guest);
        for found in taken {
            let site = sites.get(&found.at).cloned();
            self.retired.push(found.retire(site));
        }
        clobbered
    }

    /// Code that tasks may be in, of jmps that were taken out since the last call.
    pub(crate) fn take_leaving(&mut self) -> Vec<(Gva, Gva)> {
        std::mem::take(&mut self.leaving)
    }
}

/// Writes the int3s of sites back in one stop, then waits for vCPUs that are in the code that is
/// left. Returns the places whose text the guest has changed.
fn take_back(taken: &[OptimizedSite], leaving: &[(Gva, Gva)], guest: &dyn Guest) -> Vec<Gva> {
    let mut clobbered = Vec::new();
    let bytes: Vec<_> = taken.iter().map(|found| found.bytes(guest.ram()).ok()).collect();
    for look in 0..LOOKS {
        let mut left = true;
        let still = guest.with_vcpus_still(&mut |registers| {
            for (found, bytes) in taken.iter().zip(&bytes).filter(|_| look == 0) {
                if !bytes.as_ref().is_some_and(|bytes| found.take_back(bytes)) {
                    clobbered.push(found.at);
                }
            }
            let is_in = |rip: Gva| leaving.iter().any(|(start, end)| *start <= rip && rip < *end);
            left = !registers.iter().any(|vcpu| is_in(Gva(vcpu.regs.rip)));
        });
        match still {
            Ok(()) if left => break,
            Ok(()) => std::thread::sleep(LOOK),
            Err(error) => {
                tracing::warn!(%error, "taking optimized probes back");
                break;
            }
        }
    }
    clobbered
}

/// The pools that follow, in the guest, the calls of return probes at these places.
fn in_guest_at(sites: &Sites, places: &[Gva]) -> impl Iterator<Item = Arc<InGuestReturns>> {
    let sites = places.iter().filter_map(|at| sites.get(at));
    let probes = sites.flat_map(|site| &site.probes);
    probes.filter_map(|probe| probe.returns()?.in_guest())
}
