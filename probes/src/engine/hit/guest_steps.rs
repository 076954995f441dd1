//! Post-handlers beside a kprobe of the guest's own, whose kernel runs the instruction.
//!
//! The hit is passed on to the guest, whose kernel handles it in kprobe_int3_handler(). When that
//! returns, through a trampoline, the registers of the hit (struct pt_regs) have the address at
//! which the guest continues:
//!
//! | the guest continues | the engine |
//! |---|---|
//! | where the instruction leads: it is emulated | runs post-handlers, with these registers |
//! | at a copy of it, in memory without symbols | sends the guest to a slot with this copy |
//! | elsewhere: by a handler of the guest's own | runs none |
//!
//! At the slot's end post-handlers run, and the guest continues after its copy.
//!
//! While the guest's kernel writes its text, poke_int3_handler() would handle the hit: it would
//! emulate the jmp that is being written, to code after which nothing stops. The engine leaves that
//! function at its entry; it returns that the int3 is none of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use exoprobe_guest::{Gva, kvm_regs};
use exoprobe_introspect::SymbolTable;

use crate::engine::hit::addresses::CallTracker;
use crate::engine::hit::table::{Stop, Table};
use crate::engine::probe::handlers::Hit;
use crate::engine::probe::registered::{RETURN_ADDRESS_LEN, count};
use crate::engine::probe::site::Site;

/// Handlers of one vCPU that are under way at a time: of a task, of its interrupts and NMIs, and of
/// hits within their handlers.
const DEPTH: usize = 8;
const FREE: u64 = 0;
/// Bytes of an int3.
const INT3_LEN: u64 = 1;
const WORD: u64 = 8;
/// A register of struct pt_regs: the index of its word, and where it is for the engine.
type Saved = (u64, fn(&mut kvm_regs) -> &mut u64);
/// struct pt_regs of x86-64. Words 15 and 17 are orig_ax and cs.
const SAVED: [Saved; 18] = [
    (0, |regs| &mut regs.r15),
    (1, |regs| &mut regs.r14),
    (2, |regs| &mut regs.r13),
    (3, |regs| &mut regs.r12),
    (4, |regs| &mut regs.rbp),
    (5, |regs| &mut regs.rbx),
    (6, |regs| &mut regs.r11),
    (7, |regs| &mut regs.r10),
    (8, |regs| &mut regs.r9),
    (9, |regs| &mut regs.r8),
    (10, |regs| &mut regs.rax),
    (11, |regs| &mut regs.rcx),
    (12, |regs| &mut regs.rdx),
    (13, |regs| &mut regs.rsi),
    (14, |regs| &mut regs.rdi),
    (IP, |regs| &mut regs.rip),
    (18, |regs| &mut regs.rflags),
    (19, |regs| &mut regs.rsp),
];
const IP: u64 = 16;

/// A hit that the guest's kprobes handle.
#[derive(Clone, Copy)]
pub(crate) struct GuestStep {
    /// The probed address.
    site: Gva,
    /// Address of the hit's struct pt_regs.
    regs: Gva,
}

/// The place of a [`GuestStep`], while the guest handles it.
#[derive(Default)]
struct Handled {
    /// Address of the handler's return address on the stack, or [`FREE`].
    key: AtomicU64,
    site: AtomicU64,
    regs: AtomicU64,
}

/// By vCPU: the hits that the guest's kprobes handle there. Its kernel does so on one vCPU.
pub(crate) struct GuestSteps(Box<[OfVcpu]>);

#[derive(Default)]
struct OfVcpu {
    /// Number in use: most returns find none.
    in_use: AtomicU64,
    handled: [Handled; DEPTH],
}

/// The way in which the guest has run the instruction, or is about to.
enum Ran {
    Emulated,
    /// From a copy at this address.
    Copy(Gva),
    No,
}

impl GuestSteps {
    pub(crate) fn new(vcpus: u8) -> Self {
        Self((0..vcpus).map(|_| Default::default()).collect())
    }

    /// Handles the entry of kprobe_int3_handler(): catches its return, if the int3 is at a site
    /// with post-handlers.
    pub(crate) fn begin(&self, calls: &CallTracker, table: &Table, hit: &Hit<'_>) {
        let Some(site) = int3_of(hit).filter(|at| site_at(table, *at).is_some()) else { return };
        let (key, regs) = (hit.regs.rsp, hit.regs.rdi);
        let Some(of_vcpu) = self.0.get(usize::from(hit.vcpu)) else { return };
        // A second hit of the same entry finds the place of the first one.
        let with = |key| of_vcpu.handled.iter().find(|h| h.key.load(Ordering::Relaxed) == key);
        let Some(handled) = with(key).or_else(|| with(FREE)) else { return };
        if calls.catch_return(table, Gva(key), hit.memory) {
            if handled.key.load(Ordering::Relaxed) == FREE {
                of_vcpu.in_use.fetch_add(1, Ordering::Relaxed);
            }
            handled.site.store(site.0, Ordering::Relaxed);
            handled.regs.store(regs, Ordering::Relaxed);
            handled.key.store(key, Ordering::Relaxed);
        }
    }

    /// Handles the entry of poke_int3_handler(): leaves it, if the int3 is at a site with
    /// post-handlers. Returns whether it has.
    pub(crate) fn leave(table: &Table, hit: &mut Hit<'_>) -> bool {
        let stack = Gva(hit.regs.rsp);
        let is_here = int3_of(hit).is_some_and(|at| site_at(table, at).is_some());
        let Some(return_to) = hit.memory.word(stack).filter(|_| is_here) else { return false };
        hit.regs.rax = 0;
        hit.regs.rsp = stack.wrapping_add(RETURN_ADDRESS_LEN).0;
        hit.regs.rip = return_to;
        true
    }

    /// The site, and the address of the copy of its instruction that the guest is about to run, at
    /// the return of the handler whose return address was at `key`; `None` if there is none, or the
    /// site has a slot for it.
    pub(crate) fn unknown_copy(
        &self,
        table: &Table,
        key: Gva,
        hit: &Hit<'_>,
    ) -> Option<(Gva, Gva)> {
        let step = self.find(hit.vcpu, key)?.step();
        let site = site_at(table, step.site)?;
        let Ran::Copy(copy) = step.ran(table, site, hit) else { return None };
        let is_known = site.guest_copy.as_ref().is_some_and(|known| known.at == copy);
        (!is_known).then_some((site.at, copy))
    }

    /// Ends the handler whose return address was at `key`.
    #[inline]
    pub(crate) fn end(&self, vcpu: u8, key: Gva) -> Option<GuestStep> {
        let handled = self.find(vcpu, key)?;
        handled.key.store(FREE, Ordering::Relaxed);
        self.0[usize::from(vcpu)].in_use.fetch_sub(1, Ordering::Relaxed);
        Some(handled.step())
    }

    pub(crate) fn clear(&self) {
        for of_vcpu in &self.0 {
            of_vcpu.handled.iter().for_each(|handled| handled.key.store(FREE, Ordering::Relaxed));
            of_vcpu.in_use.store(0, Ordering::Relaxed);
        }
    }

    /// Returns true if the guest handles a hit on this vCPU.
    #[inline]
    pub(crate) fn has_any(&self, vcpu: u8) -> bool {
        let of_vcpu = self.0.get(usize::from(vcpu));
        of_vcpu.is_some_and(|of_vcpu| of_vcpu.in_use.load(Ordering::Relaxed) > 0)
    }

    fn find(&self, vcpu: u8, key: Gva) -> Option<&Handled> {
        if !self.has_any(vcpu) {
            return None;
        }
        let of_vcpu = self.0.get(usize::from(vcpu))?;
        of_vcpu.handled.iter().find(|handled| handled.key.load(Ordering::Relaxed) == key.0)
    }
}

impl Handled {
    fn step(&self) -> GuestStep {
        let load = |word: &AtomicU64| Gva(word.load(Ordering::Relaxed));
        GuestStep { site: load(&self.site), regs: load(&self.regs) }
    }
}

impl GuestStep {
    /// Runs post-handlers, or sends the guest to the slot at whose end they run. `hit` is of the
    /// handler's return.
    pub(crate) fn finish(self, table: &Table, hit: &mut Hit<'_>) {
        let Some(site) = site_at(table, self.site) else { return };
        match self.ran(table, site, hit) {
            Ran::Emulated => self.run_post_handlers(site, hit),
            Ran::Copy(copy) => {
                let known = site.guest_copy.as_ref().filter(|known| known.at == copy);
                match known.and_then(|known| known.slot) {
                    Some(slot) => _ = hit.write(self.word(IP), &slot.gva.0.to_le_bytes()),
                    None => miss(site),
                }
            }
            Ran::No => {}
        }
    }

    /// How the guest runs the instruction, after its handler has returned.
    fn ran(self, table: &Table, site: &Site, hit: &Hit<'_>) -> Ran {
        // An int: whether the int3 is of a kprobe.
        let is_handled = hit.regs.rax.to_le_bytes()[..4] != [0; 4];
        let Some(ip) = hit.memory.word(self.word(IP)).map(Gva).filter(|_| is_handled) else {
            return Ran::No;
        };
        let has_name = |symbols: &SymbolTable| symbols.function_at(ip).is_some();
        if !table.symbols.as_ref().is_some_and(has_name) {
            Ran::Copy(ip)
        } else if site.insn.leads_to(ip) && !site.guest_jmp {
            Ran::Emulated
        } else {
            Ran::No
        }
    }

    /// Runs post-handlers with the registers that the guest's kernel has emulated the instruction
    /// on.
    fn run_post_handlers(self, site: &Site, hit: &mut Hit<'_>) {
        let Some(mut regs) = self.registers(hit) else { return miss(site) };
        run_post_handlers(site, &mut Hit { regs: &mut regs, kept: &[], ..hit.of(None) });
        for (index, of) in SAVED {
            let word = *of(&mut regs);
            if let Err(error) = hit.write(self.word(index), &word.to_le_bytes()) {
                tracing::debug!(%error, "registers of the guest's own kprobe");
            }
        }
    }

    fn registers(self, hit: &Hit<'_>) -> Option<kvm_regs> {
        let mut regs = kvm_regs::default();
        for (index, of) in SAVED {
            *of(&mut regs) = hit.memory.word(self.word(index))?;
        }
        Some(regs)
    }

    /// Address of a word of the hit's registers.
    fn word(self, index: u64) -> Gva {
        self.regs.wrapping_add(index * WORD)
    }
}

/// Runs the post-handlers of a site.
pub(crate) fn run_post_handlers(site: &Site, hit: &mut Hit<'_>) {
    for probe in site.enabled() {
        if let Some(handler) = probe.post_handler() {
            handler(&mut hit.of(probe.fault_handler.as_ref()));
        }
    }
}

/// Counts post-handlers that do not run.
fn miss(site: &Site) {
    let with_post = site.enabled().filter(|probe| probe.post_handler().is_some());
    with_post.for_each(|probe| count(&probe.counters.nmissed));
}

/// The site with post-handlers at an address.
fn site_at(table: &Table, at: Gva) -> Option<&Arc<Site>> {
    match table.stop_at(at)? {
        Stop::Probe(site) => Some(site).filter(|site| site.has_post_handler()),
        _ => None,
    }
}

/// The address of the int3 that a function of the guest's handles, whose first argument is the
/// registers.
fn int3_of(hit: &Hit<'_>) -> Option<Gva> {
    let ip = hit.memory.word(Gva(hit.regs.rdi).wrapping_add(IP * WORD))?;
    Some(Gva(ip.wrapping_sub(INT3_LEN)))
}
