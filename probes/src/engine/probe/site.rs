//! A probed place of the guest's text, with its probes and internal breakpoints.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use exoprobe_guest::{Gpa, Gva};
use exoprobe_introspect::SymbolTable;

use crate::engine::patch::slots::Slot;
use crate::engine::patch::text;
use crate::engine::patch::view::Overlay;
use crate::engine::probe::registered::{PlacedProbe, Probe};
use crate::insn::Displaced;
use crate::status::DisplacedBy;

/// How the instruction of a site runs.
#[derive(Clone, Copy)]
pub(crate) enum Displacement {
    Emulate,
    Slot(Slot),
}

/// The moments of the guest at which the engine has a breakpoint of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum InternalBreakpoint {
    /// The kernel's text is final: its alternatives have been patched.
    TextFinal,
    /// The kernel is about to free its init text.
    FreeInit,
    /// A task is about to leave its stack for good.
    TaskDead,
    /// The task has left its stack.
    StackLeft,
    /// A module is complete, and its init function is about to run.
    ModuleBegins,
    /// Modules' init text is about to be freed.
    ModuleInitFreed,
    /// A module is about to be freed.
    ModuleEnds,
    /// The kernel's own kprobes are about to read an instruction.
    GuestReadsText,
    /// The kernel is about to write its text.
    GuestWritesText,
    /// The kernel asks whether an int3 is of text that it is writing.
    GuestHandlesPoke,
    /// The kernel's own kprobes are about to handle an int3.
    GuestHandlesInt3,
}

/// The function of each mark: the first of these that the kernel has.
pub(crate) const MARKS: [(InternalBreakpoint, &[&str]); 11] = [
    (InternalBreakpoint::TextFinal, &["rest_init"]),
    (InternalBreakpoint::FreeInit, &["free_initmem"]),
    (InternalBreakpoint::TaskDead, &["do_task_dead"]),
    (InternalBreakpoint::StackLeft, &["put_task_stack"]),
    (InternalBreakpoint::ModuleBegins, &["do_init_module"]),
    (InternalBreakpoint::ModuleInitFreed, &["do_free_init"]),
    (InternalBreakpoint::ModuleEnds, &["free_module"]),
    // The one calls the other, and compilers put either into its callers.
    (InternalBreakpoint::GuestReadsText, &["__recover_probed_insn", "recover_probed_instruction"]),
    (InternalBreakpoint::GuestWritesText, &["__text_poke"]),
    (InternalBreakpoint::GuestHandlesPoke, &["poke_int3_handler", "smp_text_poke_int3_handler"]),
    (InternalBreakpoint::GuestHandlesInt3, &["kprobe_int3_handler"]),
];

impl InternalBreakpoint {
    /// Returns true if a kernel with these symbols has the function of this mark.
    pub(crate) fn is_of(self, symbols: &SymbolTable) -> bool {
        let mut names =
            MARKS.iter().filter(|(mark, _)| *mark == self).flat_map(|(_, names)| *names);
        names.any(|name| symbols.address_of(name).is_some())
    }
}

/// Returns true if the engine may need a breakpoint of its own at `at`.
pub(crate) fn is_internal(symbols: &SymbolTable, at: Gva) -> bool {
    let mut names = MARKS.iter().flat_map(|(_, names)| names.iter());
    names.any(|name| symbols.address_of(name) == Some(at))
}

/// A copy of a site's instruction that the guest's kernel runs for a kprobe of its own.
pub(crate) struct GuestCopy {
    pub(crate) at: Gva,
    /// The address after it.
    pub(crate) next: Gva,
    /// Runs in its place, and stops after it; `None` if there can be none.
    pub(crate) slot: Option<Slot>,
}

/// A probed address with its probes and marks. Immutable: a change makes a new one.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) at: Gva,
    pub(crate) gpa: Gpa,
    pub(crate) insn: Arc<Displaced>,
    pub(crate) way: Displacement,
    /// The slot for stepping, if a probe has a post-handler and emulation is not possible.
    pub(crate) step: Option<Slot>,
    /// In order of registration.
    pub(crate) probes: Vec<PlacedProbe>,
    /// Return probes in the mode `site` with calls that return here.
    pub(crate) returning: Vec<Arc<Probe>>,
    pub(crate) marks: Vec<InternalBreakpoint>,
    /// The int3 is in the guest's text, or is about to be: the table has a site before its int3.
    pub(crate) armed: bool,
    /// The int3 was in the guest's text before the table said so. Calls may be followed to here:
    /// one that is followed sooner can return before there is an int3.
    pub(crate) catches_returns: bool,
    /// The guest has an int3 of its own here, beside the engine's: each hit is passed on to it.
    pub(crate) guest_int3: bool,
    /// The instruction is the guest's jmp: it has optimized a kprobe of its own here.
    pub(crate) guest_jmp: bool,
    /// Where the guest's kernel ran the instruction last, for a site with post-handlers.
    pub(crate) guest_copy: Option<Arc<GuestCopy>>,
    /// The guest changed the text. The engine no longer writes to it.
    pub(crate) clobbered: bool,
}

impl Site {
    pub(crate) fn displaced_by(&self) -> DisplacedBy {
        match (self.way, self.step) {
            (Displacement::Emulate, _) => DisplacedBy::Emulation,
            (Displacement::Slot(_), Some(_)) => DisplacedBy::Step,
            (Displacement::Slot(_), None) => DisplacedBy::Boost,
        }
    }

    /// Returns true if a probe has a post-handler.
    pub(crate) fn has_post_handler(&self) -> bool {
        self.probes.iter().any(|probe| probe.post_handler().is_some())
    }

    /// Returns true if each hit is passed on to the guest, whose own kprobe runs the instruction.
    /// Its jmp leads to code that runs it as well, but after which nothing stops.
    #[inline]
    pub(crate) fn is_passed_on(&self) -> bool {
        self.guest_int3 || (self.guest_jmp && self.has_post_handler())
    }

    /// The instruction's bytes as the guest left them: with its own int3, if it has one.
    pub(crate) fn own_text(&self) -> Vec<u8> {
        let mut bytes = self.insn.original().to_vec();
        if self.guest_int3 {
            bytes[0] = text::INT3;
        }
        bytes
    }

    /// The probes of the site that must run.
    pub(crate) fn enabled(&self) -> impl Iterator<Item = &PlacedProbe> {
        self.probes.iter().filter(|probe| probe.wants_breakpoint())
    }

    /// The site with its marks only.
    pub(crate) fn marks_only(&self) -> Self {
        Self { probes: Vec::new(), returning: Vec::new(), ..self.clone() }
    }

    /// Probes of the site, and those with calls that return here.
    pub(crate) fn concerned(&self) -> impl Iterator<Item = &Arc<Probe>> {
        self.probes.iter().map(|of_site| &**of_site).chain(&self.returning)
    }

    /// The slots of its instruction.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        let own = match self.way {
            Displacement::Slot(slot) => Some(slot),
            Displacement::Emulate => None,
        };
        own.into_iter().chain(self.step)
    }

    /// Returns true if an int3 here finishes each call of this probe that returns here.
    pub(crate) fn catches(&self, probe: &Probe) -> bool {
        self.armed
            && self.catches_returns
            && self.returning.iter().any(|other| other.id == probe.id)
    }

    /// Returns true if nothing needs the site any more.
    pub(crate) fn is_unused(&self) -> bool {
        self.probes.is_empty() && self.returning.is_empty() && self.marks.is_empty()
    }
}

/// All sites by address.
#[derive(Default)]
pub(crate) struct Sites(BTreeMap<Gva, Arc<Site>>);

impl Deref for Sites {
    type Target = BTreeMap<Gva, Arc<Site>>;
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Sites {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Overlay for Sites {
    fn restore(&self, start: Gva, bytes: &mut [u8]) {
        let end = Gva(start.0.saturating_add(bytes.len() as u64));
        for (at, site) in self.range(start..end).filter(|(_, site)| site.armed) {
            let index = usize::try_from(at.0 - start.0).expect("within `bytes`");
            if bytes[index] == text::INT3 {
                bytes[index] = site.insn.original()[0];
            }
        }
    }
}
