//! A guest whose kernel reads and writes its own text: kprobes, jump labels, the function tracer.
//!
//! The kernel reads an instruction through __recover_probed_insn(), or through
//! recover_probed_instruction() where that has the other in it. It writes text through
//! __text_poke(). While there are probes, the engine has a breakpoint at both. It changes neither
//! function: it only points an argument at other bytes, in hidden memory.
//!
//! | the kernel | the engine |
//! |---|---|
//! | reads a probed instruction | points it at the instruction without the engine's int3 or jmp |
//! | reads it to optimize a kprobe of its own | lets it see the int3: it does not optimize there |
//! | writes an int3 over one of the engine's | passes each hit on to the guest from then on |
//! | writes an instruction over one | points it at that instruction with the engine's int3 |
//! | writes over bytes of a jmp | takes the jmp out first |
//! | runs an instruction for its own kprobe | runs post-handlers after it (hit/guest_steps.rs) |
//!
//! So the engine's int3 never leaves the text, and no hit is lost, on any vCPU. From the breakpoint
//! on until the kernel's function returns, the engine puts no jmp into the text, and waits with
//! int3s.

use std::sync::Arc;

use exoprobe_guest::{Guest, Gva, kvm_regs};
use exoprobe_introspect::SymbolTable;

use crate::engine::control::state::Control;
use crate::engine::control::{lock, place};
use crate::engine::kernel::running::Kernel;
use crate::engine::patch::shown::ShownText;
use crate::engine::patch::text::INT3;
use crate::engine::probe::site::{GuestCopy, Site};
use crate::error::ProbeError;
use crate::insn::{self, MAX_INSN_LEN, SlotKind};

/// Longest write that is followed. Longer ones are no single instruction's.
const WRITE_MAX: u64 = 64;
/// The functions that read instructions to optimize a kprobe (arch/x86/kernel/kprobes/opt.c). The
/// first may be compiled into the second.
const OPTIMIZERS: [&str; 2] = ["can_optimize", "arch_prepare_optimized_kprobe"];
/// Since Linux 5.16, __text_poke() has this function or another one as its first argument.
const COPY: &str = "text_poke_memcpy";

/// Whether the guest can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    Now,
    /// It can, and the end of its write must be known.
    Writes,
    /// It must come to the same breakpoint again.
    Later,
}

/// A call of __text_poke().
struct TextWrite {
    at: Gva,
    source: Gva,
    len: u64,
    /// The argument that is the source.
    argument: fn(&mut kvm_regs) -> &mut u64,
}

impl TextWrite {
    /// `None` for a call that does not copy bytes.
    fn of(symbols: &SymbolTable, regs: &kvm_regs) -> Option<Self> {
        match symbols.address_of(COPY) {
            Some(copy) if copy.0 == regs.rdi => Some(Self {
                at: Gva(regs.rsi),
                source: Gva(regs.rdx),
                len: regs.rcx,
                argument: |regs| &mut regs.rdx,
            }),
            Some(_) => None,
            None => Some(Self {
                at: Gva(regs.rdi),
                source: Gva(regs.rsi),
                len: regs.rdx,
                argument: |regs| &mut regs.rsi,
            }),
        }
        .filter(|write| {
            (1..=WRITE_MAX).contains(&write.len) && write.at.checked_add(write.len).is_some()
        })
    }

    fn end(&self) -> Gva {
        self.at.wrapping_add(self.len)
    }
}

impl Control {
    /// Handles the moment before the kernel reads the instruction at RSI, to put a kprobe of its
    /// own there or to find the instructions of a function. Points RSI at the instruction without
    /// the engine's bytes. On a vCPU's thread.
    pub(crate) fn show_own_text(&mut self, guest: &dyn Guest, regs: &mut kvm_regs) {
        let Some(kernel) = self.kernel.running.clone() else { return };
        let at = Gva(regs.rsi);
        let site = self.registry.sites.get(&at).filter(|site| site.armed);
        let is_ours = site.is_some() || self.optimizer.covering(at).is_some();
        // It finds the byte under its own int3 itself.
        if !is_ours || site.is_some_and(|site| site.guest_int3) {
            return;
        }
        let mut bytes = match is_optimizer(&kernel, Gva(regs.rsp)) {
            true => vec![INT3],
            false => self.own_instruction(&kernel, at),
        };
        bytes.resize(MAX_INSN_LEN, INT3);
        if let Some(shown) = self.shown(guest) {
            regs.rsi = shown.for_reading(guest.hidden(), &bytes).0;
        }
    }

    /// Handles the moment before the kernel writes its text. Makes the sites there fit, and keeps
    /// their int3s in the text. On a vCPU's thread.
    pub(crate) fn follow_write(&mut self, guest: &dyn Guest, regs: &mut kvm_regs) -> Ready {
        let Some(kernel) = self.kernel.running.clone() else { return Ready::Now };
        let Some(write) = TextWrite::of(&kernel.symbols, regs) else { return Ready::Now };
        if self.guest_patches.shown.as_ref().is_some_and(|shown| shown.contains(write.source)) {
            return Ready::Now;
        }
        let in_the_way: Vec<Gva> = self.optimizer.overlapping(write.at, write.end()).collect();
        if !in_the_way.is_empty() {
            self.guest_patches.in_the_way.extend(in_the_way);
            return Ready::Later;
        }
        // A pass of the optimizer that is under way knows the text as it was.
        self.optimizer.note_change();
        let sites = self.armed_in(&write);
        let mut bytes = vec![0; usize::try_from(write.len).expect("at most 64")];
        if sites.is_empty() || kernel.memory().read(write.source, &mut bytes).is_err() {
            return Ready::Writes;
        }
        let is_rest = self.is_rest(&kernel, &write);
        let mut kept = false;
        for site in sites {
            let begins = site.at == write.at && !is_rest;
            if begins && self.rewrite_site(guest, &kernel, &site, &bytes) {
                kept = true;
            } else {
                // Until the guest has written, the int3 is still the engine's. The patrol sees that
                // it has gone.
                self.registry.change(site.at, |site| site.clobbered = true);
            }
        }
        self.publish(guest);
        if kept && bytes[0] != INT3 {
            bytes[0] = INT3;
            if let Some(shown) = self.shown(guest) {
                *(write.argument)(regs) = shown.for_writing(guest.hidden(), &bytes).0;
            }
        }
        Ready::Writes
    }

    /// Waits until the guest has written what it is writing, for a short time: it may be paused.
    /// Must not be called on a vCPU's thread.
    pub(crate) fn await_write(&self) {
        let has_ended = || !self.hits.guest_writes();
        if !lock::ends_soon(has_ended, || std::thread::sleep(lock::PAUSE)) {
            tracing::debug!("the guest does not end a write of its text");
        }
    }

    /// The sites whose int3s are among the bytes of a write.
    fn armed_in(&self, write: &TextWrite) -> Vec<Arc<Site>> {
        let places = (write.at.0..write.end().0).map(Gva);
        let sites = places.filter_map(|at| self.registry.sites.get(&at));
        sites.filter(|site| site.armed).cloned().collect()
    }

    /// Returns true for the second write of text_poke_bp(), of all bytes but the first one, which
    /// is an int3 meanwhile.
    fn is_rest(&self, kernel: &Kernel, write: &TextWrite) -> bool {
        let mut before = [0];
        let first = Gva(write.at.0.wrapping_sub(1));
        let read = kernel.memory().read(first, &mut before);
        let own = self.registry.sites.get(&first).is_none_or(|site| site.guest_int3);
        write.len > 1 && read.is_ok() && before[0] == INT3 && own
    }

    /// Makes a site fit the instruction that the guest is about to write there. Returns false if
    /// the engine cannot have a breakpoint there.
    fn rewrite_site(
        &mut self,
        guest: &dyn Guest,
        kernel: &Kernel,
        site: &Site,
        bytes: &[u8],
    ) -> bool {
        if bytes[0] == INT3 {
            self.registry.change(site.at, |site| site.guest_int3 = true);
            return true;
        }
        match self.instruction_over(guest, kernel, site, bytes) {
            Ok(new) => {
                self.registry.change(site.at, |site| *site = new);
                true
            }
            Err(error) => {
                tracing::debug!(%error, at = %site.at, "the guest writes over a probe");
                false
            }
        }
    }

    /// The site with the instruction that begins with `bytes` and goes on with the present text.
    fn instruction_over(
        &mut self,
        guest: &dyn Guest,
        kernel: &Kernel,
        site: &Site,
        bytes: &[u8],
    ) -> Result<Site, ProbeError> {
        let mut text = self.own_instruction(kernel, site.at);
        text.resize(text.len().max(bytes.len()), 0);
        text[..bytes.len()].copy_from_slice(bytes);
        let mut new = Site { guest_int3: false, clobbered: false, ..site.clone() };
        if text.starts_with(site.insn.original()) {
            return Ok(new);
        }
        let insn = insn::analyze(&text, site.at, kernel.assurances())?;
        new.guest_jmp = place::is_guests_jmp(kernel, &insn);
        new.way = place::displacement(&mut self.registry, guest, &insn)?;
        new.step = match site.has_post_handler() {
            true => place::step(&mut self.registry, guest, &insn)?,
            false => None,
        };
        new.insn = Arc::new(insn);
        Ok(new)
    }

    /// Makes a slot for the copy of a site's instruction that the guest's kernel is about to run.
    /// On a vCPU's thread.
    pub(crate) fn learn_copy(&mut self, guest: &dyn Guest, site: Gva, copy: Gva) {
        let Some(kernel) = self.kernel.running.clone() else { return };
        let bytes = self.own_instruction(&kernel, copy);
        let analyzed = insn::analyze(&bytes, copy, kernel.assurances()).map_err(ProbeError::from);
        let learned = analyzed.and_then(|insn| {
            insn.supports_post()?;
            let slot = self.registry.slots.get(guest.hidden(), &insn, SlotKind::Stepped)?;
            Ok(GuestCopy { at: copy, next: insn.next(), slot: Some(slot) })
        });
        let learned = learned.unwrap_or_else(|error| {
            tracing::debug!(%error, %site, "post-handlers after an instruction of the guest's own");
            GuestCopy { at: copy, next: copy, slot: None }
        });
        self.registry.change(site, |site| site.guest_copy = Some(Arc::new(learned)));
        self.publish(guest);
    }

    /// The bytes of an instruction without those of the engine; fewer where nothing is mapped.
    fn own_instruction(&self, kernel: &Kernel, at: Gva) -> Vec<u8> {
        let mut bytes = vec![0; MAX_INSN_LEN];
        while !bytes.is_empty() && kernel.memory().read(at, &mut bytes).is_err() {
            bytes.pop();
        }
        self.text().restore(at, &mut bytes);
        bytes
    }

    /// Takes out the jmps that a write of the guest waits for. Must not be called on a vCPU's
    /// thread.
    pub(crate) fn make_way(&mut self, guest: &dyn Guest) {
        let places = std::mem::take(&mut self.guest_patches.in_the_way);
        if places.is_empty() {
            return;
        }
        self.unoptimize(guest, places.iter());
        places.into_iter().for_each(|at| self.optimizer.hold_off(at));
    }

    /// The memory that the guest is shown; `None` without room for it.
    fn shown(&mut self, guest: &dyn Guest) -> Option<&mut ShownText> {
        if self.guest_patches.shown.is_none() {
            let made = ShownText::new(&mut self.registry.slots, guest.hidden());
            let made = made.inspect_err(|error| tracing::warn!(%error, "text for the guest"));
            self.guest_patches.shown = made.ok();
        }
        self.guest_patches.shown.as_mut()
    }
}

/// Returns true if the function that was called last was called to optimize a kprobe.
fn is_optimizer(kernel: &Kernel, rsp: Gva) -> bool {
    let Ok(ret_addr) = kernel.memory().read_u64(rsp) else { return false };
    let caller = kernel.symbols.function_at(Gva(ret_addr));
    caller.is_some_and(|caller| {
        OPTIMIZERS.iter().any(|name| kernel.symbols.address_of(name) == Some(caller.start))
    })
}
