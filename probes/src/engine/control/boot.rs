//! Text comes and goes: probes wait for the kernel to begin, follow its boot, and notice when their
//! text is lost or rewritten.
//!
//! | moment | told by | then |
//! |---|---|---|
//! | the kernel begins | the machine ([`HitPath::begin_kernel`]) | all is armed but what the kernel will patch |
//! | its text is final | a mark at `rest_init` | the rest is armed |
//! | init text is freed | a mark at `free_initmem` | probes there are gone |
//! | a task ends | marks at `do_task_dead` and, when it is off its stack, `put_task_stack` | its calls' instances are given back |
//! | modules come and go | see modules.rs | probes come and go with them |
//! | the guest is booted again | the machine ([`HitPath::forget_guest`]) | all wait again |
//! | text is rewritten or unmapped | [`HitPath::patrol`] | its probes are clobbered, or gone |

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use exoprobe_guest::{Gva, HitContext, KernelEntry, kvm_sregs};
use exoprobe_introspect::symbols::TextKind;

use crate::engine::control::place;
use crate::engine::control::place::Place;
use crate::engine::control::register::Wait;
use crate::engine::control::registry::{Registered, Registry, State};
use crate::engine::hit::path::{HitPath, Turn};
use crate::engine::kernel::error::AttachError;
use crate::engine::kernel::modules::{Modules, Told};
use crate::engine::kernel::running::Kernel;
use crate::engine::kernel::symbols::SymbolSource;
use crate::engine::optimize::optimizer::Optimized;
use crate::engine::patch::slots::Slots;
use crate::engine::patch::text;
use crate::engine::probe::registered::Probe;
use crate::engine::probe::registered::unwatch_all;
use crate::engine::probe::site::{Mark, Site};
use crate::error::ProbeError;
use exoprobe_guest::Guest;

/// Places that calls return to and that cannot be watched: so many are remembered.
const UNWATCHABLE_MAX: usize = 1 << 16;
/// Places that the calls of one probe return to: a guest that makes up return addresses finds an end.
const RETURN_SITES_MAX: u32 = 4096;
/// What the kernel is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To read the guest, which stays as it is (unless there are probes, which may be armed then).
    Question,
    /// To set probes: hidden memory is mapped.
    Probes,
}

pub(crate) const NOT_BEGUN: &str = "the guest's kernel has not begun yet";

impl HitPath {
    /// The kernel, as far as it is; `None` before it begins. Not for vCPU threads.
    ///
    /// # Errors
    /// [`AttachError`], but for [`AttachError::Booting`].
    pub(crate) fn attach(
        &self,
        registry: &mut Registry,
        guest: &dyn Guest,
        purpose: Purpose,
    ) -> Result<Option<Arc<Kernel>>, AttachError> {
        if guest.stopped() {
            return Err(AttachError::Stopped);
        }
        let next = match &registry.kernel {
            Some(kernel) if kernel.has_booted() || kernel.is_booting() => None,
            Some(kernel) => Some(kernel.finish()?),
            None => {
                let entry = registry.entry;
                let mut source = self.symbol_source(registry);
                match (Kernel::attach(guest, &mut source), &entry) {
                    (Err(AttachError::Booting), None) => None,
                    (Err(AttachError::Booting), Some(entry)) => {
                        Some(Kernel::at_entry(guest, &mut source, entry)?)
                    }
                    (attached, _) => Some(attached?),
                }
            }
        };
        let mut is_news = next.is_some();
        if let Some(kernel) = next {
            registry.kernel = Some(Arc::new(kernel));
        }
        // There is no mark at free_initmem() then.
        if registry.probes.is_empty()
            && let Some(kernel) = &registry.kernel
        {
            kernel.learn_init_freed();
        }
        if (purpose == Purpose::Probes || !registry.probes.is_empty())
            && let Some(kernel) = &registry.kernel
            && let Some(kernel) = kernel.prepare(guest, || Ok(guest.sregs()?))?
        {
            registry.kernel = Some(Arc::new(kernel));
            is_news = true;
        }
        if is_news {
            self.advance(registry, guest, Wait::ForVcpus);
        }
        let has_tasks = registry.kernel.as_ref().is_some_and(|k| k.learn_tasks(guest.vcpus()));
        if registry.learn_orc() || has_tasks {
            self.publish(registry, guest);
        }
        self.follow_modules(registry, guest, Told::Nothing, Wait::ForVcpus);
        Ok(registry.kernel.clone())
    }

    /// The kernel of a guest that has stopped, for questions: changes nothing in its memory. Not for vCPU
    /// threads.
    ///
    /// # Errors
    /// [`AttachError`]; [`AttachError::NeverBegan`] where the guest stopped before its kernel began.
    pub(crate) fn examine(
        &self,
        registry: &mut Registry,
        guest: &dyn Guest,
    ) -> Result<Arc<Kernel>, AttachError> {
        let known = registry.kernel.clone();
        let kernel = match known {
            Some(kernel) if kernel.has_booted() => kernel,
            known => {
                let entry = registry.entry;
                let mut source = self.symbol_source(registry);
                let found = Kernel::of_stopped(guest, &mut source, entry.as_ref());
                // One that stopped early may be readable by its first page tables alone.
                found.map(Arc::new).or_else(|error| known.ok_or(error))?
            }
        };
        registry.kernel = Some(Arc::clone(&kernel));
        kernel.learn_tasks(guest.vcpus());
        self.follow_modules(registry, guest, Told::Nothing, Wait::ForVcpus);
        Ok(registry.kernel.clone().unwrap_or(kernel))
    }

    fn symbol_source<'a>(&'a self, registry: &'a mut Registry) -> SymbolSource<'a> {
        SymbolSource { given: self.symbols.as_ref(), found: &mut registry.own_symbols }
    }

    /// The kernel begins, on a vCPU's thread.
    pub(crate) fn begin_kernel(&self, entry: &KernelEntry) -> Turn {
        let Some(guest) = self.guest.upgrade() else { return Turn::Now };
        let Some(mut registry) = self.try_registry() else { return Turn::Again };
        registry.entry = Some(*entry);
        if registry.probes.is_empty() {
            return Turn::Now;
        }
        let mut source = self.symbol_source(&mut registry);
        let begun = Kernel::at_entry(guest.as_ref(), &mut source, entry);
        match ready(guest.as_ref(), begun, || Ok(entry.sregs)) {
            Ok(kernel) => {
                registry.kernel = Some(Arc::new(kernel));
                registry.learn_orc();
                self.advance(&mut registry, guest.as_ref(), Wait::No);
            }
            Err(error) => tracing::warn!(%error, "probes wait until the kernel has booted"),
        }
        Turn::Now
    }

    /// The kernel's text is final, on a vCPU's thread.
    pub(crate) fn finish_boot(&self, context: &HitContext<'_>) {
        let (Some(guest), Some(mut registry)) = (self.guest.upgrade(), self.try_registry()) else {
            return;
        };
        let finished = registry.kernel.as_ref().map(|kernel| {
            // Whatever comes of it: the mark that was hit must go.
            kernel.tell_final();
            let sregs = || context.sregs().map_err(|error| AttachError::Vcpu(error.into()));
            ready(guest.as_ref(), kernel.finish(), sregs)
        });
        match finished {
            Some(Ok(kernel)) => {
                registry.kernel = Some(Arc::new(kernel));
                registry.learn_orc();
            }
            Some(Err(error)) => tracing::warn!(%error, "some probes wait for the next change"),
            None => {}
        }
        self.let_go_of_mark(&mut registry, guest.as_ref(), Mark::TextFinal);
    }

    /// The kernel is about to free its init text, on a vCPU's thread. Nothing runs there any more.
    pub(crate) fn lose_init_text(&self) {
        let (Some(guest), Some(mut registry)) = (self.guest.upgrade(), self.try_registry()) else {
            return;
        };
        let Some(kernel) = registry.kernel.clone() else { return };
        kernel.free_init_text();
        let is_init = |at: &Gva| kernel.symbols.text_kind(*at) == Some(TextKind::Init);
        let lost: Vec<Gva> = registry.sites.keys().copied().filter(is_init).collect();
        self.lose_text(&mut registry, guest.as_ref(), &lost, Wait::No);
        self.let_go_of_mark(&mut registry, guest.as_ref(), Mark::FreeInit);
    }

    /// Text is about to go, or has gone: takes the int3s out that are in it still, and its probes are gone.
    pub(crate) fn lose_text(
        &self,
        registry: &mut Registry,
        guest: &dyn Guest,
        lost: &[Gva],
        wait: Wait,
    ) {
        for at in lost {
            let site = &registry.sites[at];
            // Its memory may be mapped again as it is, when nobody would answer the int3 in it.
            if site.armed
                && text::holds(guest.ram(), site.gpa, site.insn.original()) == text::Holds::Int3
                && let Err(error) = text::disarm(guest.ram(), site.gpa, *at, site.insn.original())
            {
                tracing::debug!(%error, "text that has gone");
            }
        }
        // A vCPU that took one of these breakpoints before they went finds them in the table.
        if wait == Wait::ForVcpus
            && !lost.is_empty()
            && let Err(error) = guest.sync_vcpus()
        {
            tracing::debug!(%error, "text that has gone");
        }
        registry.lose(lost);
    }

    /// A mark that was reached is taken out, and everything is brought up to what it told.
    fn let_go_of_mark(&self, registry: &mut Registry, guest: &dyn Guest, mark: Mark) {
        let place = registry.reached(mark);
        self.advance(registry, guest, Wait::No);
        let places = place.into_iter().collect();
        if let Err(unsettled) = self.settle(registry, guest, &places, Wait::No) {
            tracing::warn!(error = %unsettled.error, ?mark, "taking a mark out");
        }
    }

    /// The guest's memory is void: it is booted again. No vCPU is in it.
    pub(crate) fn forget_guest(&self) {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        self.frames.clear();
        self.held.iter().for_each(|held| held.store(false, Ordering::Release));
        self.ending.iter().for_each(|ending| ending.store(0, Ordering::Relaxed));
        for probe in registry.return_probes().filter_map(|probe| probe.returns()) {
            unwatch_all(&probe.watched);
            probe.sites.store(0, Ordering::Relaxed);
            probe.follower.store(None);
        }
        registry.forget_guest();
        self.rings_of_guest.lock().unwrap_or_else(PoisonError::into_inner).forget_guest();
        self.table.store(Arc::default());
    }

    /// Has calls that return to `at` finished there. On a vCPU's thread.
    pub(crate) fn watch_site(&self, at: Gva, probe: &Arc<Probe>) -> Turn {
        let Some(guest) = self.guest.upgrade() else { return Turn::Now };
        let Some(mut registry) = self.try_registry() else { return Turn::Again };
        let Some(kernel) = registry.kernel.clone() else { return Turn::Now };
        let sites = probe.returns().map(|returns| &returns.sites);
        let full = sites.is_none_or(|sites| sites.load(Ordering::Relaxed) >= RETURN_SITES_MAX);
        if full || registry.unwatchable.contains(&at) {
            return Turn::Now;
        }
        let placed = place::site(&mut registry, guest.as_ref(), &kernel, at);
        let settled = placed.and_then(|mut site| {
            Arc::make_mut(&mut site).returning.push(Arc::clone(probe));
            registry.sites.insert(at, site);
            let settled =
                self.settle(&mut registry, guest.as_ref(), &BTreeSet::from([at]), Wait::No);
            settled.map_err(|unsettled| unsettled.error)
        });
        match settled {
            Ok(()) => {
                sites.map(|sites| sites.fetch_add(1, Ordering::Relaxed));
                Turn::Again
            }
            Err(error) => {
                tracing::debug!(%error, %at, "calls that return here are missed");
                registry.change(at, |site| site.returning.retain(|other| other.id != probe.id));
                let for_good =
                    !matches!(error, ProbeError::NotFinal(_) | ProbeError::Clobbered { .. });
                if for_good && registry.unwatchable.len() < UNWATCHABLE_MAX {
                    registry.unwatchable.insert(at);
                }
                Turn::Now
            }
        }
    }

    /// Brings everything up to the kernel's phase: places what waits, sets and drops marks, arms.
    pub(crate) fn advance(&self, registry: &mut Registry, guest: &dyn Guest, wait: Wait) {
        let Some(kernel) = registry.kernel.clone() else { return };
        let mut places = self.place_waiting(registry, guest, &kernel, wait);
        places.extend(self.want_marks(registry, guest, wait));
        if places.is_empty() {
            return;
        }
        if let Err(unsettled) = self.settle(registry, guest, &places, wait) {
            tracing::warn!(error = %unsettled.error, "arming probes that waited");
        }
    }

    /// Finds places for probes that have none; those that still cannot have one say why.
    fn place_waiting(
        &self,
        registry: &mut Registry,
        guest: &dyn Guest,
        kernel: &Kernel,
        wait: Wait,
    ) -> BTreeSet<Gva> {
        let is_waiting = |(id, registered): (&u32, &Registered)| {
            let probe = &registered.probe;
            // Another module may be at an address whose module has gone.
            let is_anyones = matches!(registered.state, State::Gone)
                && probe.definition.addr.is_some_and(|at| is_module_text(kernel, at));
            let waits = registered.placed().is_none() && !is_anyones;
            waits.then(|| (*id, Arc::clone(probe)))
        };
        let waiting: Vec<(u32, Arc<Probe>)> =
            registry.probes.iter().filter_map(is_waiting).collect();
        let mut places = BTreeSet::new();
        for (id, probe) in waiting {
            let found = place::find(&kernel.symbols, &probe.definition);
            // To take a jmp out stops all vCPUs, of which this thread may be one's.
            if wait == Wait::No
                && found.as_ref().is_ok_and(|found| registry.is_covered(kernel, found))
            {
                continue;
            }
            let found = found.and_then(|found| {
                probe.set_at(found.at);
                self.learn_arguments(registry, kernel, &probe, &found)?;
                registry.check_fields(&probe)?;
                let site = self.place(registry, guest, kernel, &probe)?;
                Ok((found, site))
            });
            let Some(registered) = registry.probes.get_mut(&id) else { continue };
            match (found, &registered.state) {
                (Ok((place, site)), _) => {
                    registered.state = State::Placed(site);
                    registered.addr = place.at.to_string().into();
                    (registered.symbol, registered.offset) = (place.symbol, place.offset);
                    places.insert(site);
                }
                (Err(_), State::Gone) => {}
                (Err(error), _) => registered.state = State::Pending(error.to_string()),
            }
        }
        places
    }

    /// Looks whether the text under the probes is still what it was, whether what waits can be placed,
    /// and whether marks are needed still. To be called now and then, not from a vCPU's thread.
    pub(crate) fn patrol(&self, registry: &mut Registry, guest: &dyn Guest) {
        if (registry.probes.is_empty() && registry.sites.is_empty()) || guest.stopped() {
            return;
        }
        if registry.probes.is_empty() {
            return self.advance(registry, guest, Wait::ForVcpus);
        }
        match self.attach(registry, guest, Purpose::Probes) {
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(error) => return tracing::debug!(%error, "patrol"),
        }
        let Some(kernel) = registry.kernel.clone() else { return };
        let mut changes = Changes::default();
        for site in registry.sites.values() {
            if let Some(optimized) = registry.optimizer.text_of(guest, site.at) {
                match optimized {
                    Optimized::AsWanted => {}
                    Optimized::Overwritten => changes.rewritten.push(site.at),
                    Optimized::RestChanged => changes.rest.push(site.at),
                }
                continue;
            }
            match look_at(guest, &kernel, site) {
                Look::Gone => changes.lost.push(site.at),
                Look::Rewritten if site.armed => changes.rewritten.push(site.at),
                Look::RestChanged => changes.rest.push(site.at),
                Look::Original => _ = changes.restored.insert(site.at),
                Look::Rewritten | Look::AsWanted => {}
            }
        }
        if changes != Changes::default() {
            self.accept(registry, guest, changes);
        }
        self.advance(registry, guest, Wait::ForVcpus);
    }

    /// Lets go of sites whose text changed, and takes back those that are as they were, also where the
    /// guest itself has put the instruction over the breakpoint.
    fn accept(&self, registry: &mut Registry, guest: &dyn Guest, changes: Changes) {
        let Changes { lost, rewritten, rest, restored } = changes;
        // The detour has the instruction as it was.
        self.unoptimize(registry, guest, rest.iter());
        // A vCPU that took one of these breakpoints before they went finds them in the table.
        if let Err(error) = guest.sync_vcpus() {
            return tracing::debug!(%error, "patrol");
        }
        for at in rewritten {
            registry.change(at, |site| (site.armed, site.clobbered) = (false, true));
            let site = registry.sites.get(&at).cloned();
            registry.optimizer.lose(at, site);
        }
        // The int3 is the engine's still, and somebody must answer it.
        for at in rest {
            registry.change(at, |site| site.clobbered = true);
        }
        for at in &restored {
            let here = &registry.sites[at];
            let armed =
                text::holds(guest.ram(), here.gpa, here.insn.original()) == text::Holds::Int3;
            registry.change(*at, |site| (site.armed, site.clobbered) = (armed, false));
        }
        self.lose_text(registry, guest, &lost, Wait::ForVcpus);
        if let Err(unsettled) = self.settle(registry, guest, &restored, Wait::No) {
            tracing::debug!(error = %unsettled.error, "patrol");
        }
    }
}

/// A kernel that has just been looked at, with the guest ready for its probes.
fn ready(
    guest: &dyn Guest,
    kernel: Result<Kernel, AttachError>,
    sregs: impl FnOnce() -> Result<kvm_sregs, AttachError>,
) -> Result<Kernel, AttachError> {
    let kernel = kernel?;
    Ok(kernel.prepare(guest, sregs)?.unwrap_or(kernel))
}

/// Sites whose text is not as the engine left it.
#[derive(Default, PartialEq, Eq)]
struct Changes {
    lost: Vec<Gva>,
    rewritten: Vec<Gva>,
    rest: Vec<Gva>,
    restored: BTreeSet<Gva>,
}

/// What the text under a site is like.
#[derive(PartialEq, Eq)]
enum Look {
    /// As the engine left it.
    AsWanted,
    /// The instruction as it was, without an int3 that should be there; or with it, again.
    Original,
    /// The engine's int3 is there, and what follows it has changed.
    RestChanged,
    /// Something else.
    Rewritten,
    /// Not mapped there any more, or not as code.
    Gone,
}

fn look_at(guest: &dyn Guest, kernel: &Kernel, site: &Site) -> Look {
    match kernel.memory().translate(site.at) {
        Ok(found) if found.gpa == site.gpa && found.executable => {}
        _ => return Look::Gone,
    }
    match (site.armed, text::holds(guest.ram(), site.gpa, site.insn.original())) {
        (true, text::Holds::Int3) if site.clobbered => Look::Original,
        (true, text::Holds::Int3) => Look::AsWanted,
        (false, text::Holds::Original) if !site.clobbered => Look::AsWanted,
        (_, text::Holds::Original) => Look::Original,
        (true, text::Holds::RestChanged) if site.clobbered => Look::AsWanted,
        (true, text::Holds::RestChanged) => Look::RestChanged,
        _ => Look::Rewritten,
    }
}

fn is_module_text(kernel: &Kernel, at: Gva) -> bool {
    kernel.symbols.text_kind(at) == Some(TextKind::Module)
}

impl Registry {
    /// Is a place within what an optimized site's jmp covers?
    fn is_covered(&self, kernel: &Kernel, place: &Place) -> bool {
        self.optimizer.covering(place::behind_ftrace(self, kernel, place.at)).is_some()
    }

    /// The text of sites has gone, and their int3s with it.
    fn lose(&mut self, lost: &[Gva]) {
        let lost: HashSet<Gva> =
            lost.iter().copied().filter(|at| self.sites.remove(at).is_some()).collect();
        if lost.is_empty() {
            return;
        }
        let is_there = |r: &&mut Registered| r.placed().is_some_and(|at| lost.contains(&at));
        for registered in self.probes.values_mut().filter(is_there) {
            registered.state = State::Gone;
        }
    }

    fn forget_guest(&mut self) {
        self.sites.clear();
        self.slots = Slots::default();
        self.optimizer.forget_guest();
        (self.kernel, self.entry) = (None, None);
        (self.own_symbols, self.own_types, self.found_foreign) = (None, None, false);
        self.modules = Modules::default();
        self.unwatchable.clear();
        for registered in self.probes.values_mut() {
            registered.state = State::Pending(NOT_BEGUN.to_owned());
        }
    }
}
