//! Resolves a definition to a place in the guest's text, and checks the place.

use std::sync::Arc;

use exoprobe_guest::{Gpa, Gva};
use exoprobe_introspect::{SymbolOffset, SymbolTable};

use crate::definition::{Action, ProbeDefinition, ProbeKind};
use crate::engine::control::registry::Registry;
use crate::engine::kernel::own_kprobes::OwnKprobes;
use crate::engine::kernel::running::Kernel;
use crate::engine::patch::slots::Slot;
use crate::engine::patch::text::INT3;
use crate::engine::patch::view::GuestText;
use crate::engine::patch::view::Overlay;
use crate::engine::probe::registered::PlacedProbe;
use crate::engine::probe::registered::Probe;
use crate::engine::probe::site::{Displacement, Site, Sites};
use crate::error::ProbeError;
use crate::insn::{self, Displaced, SlotKind};
use exoprobe_guest::Guest;

/// Present in kernels whose functions begin with a call to the tracer (CONFIG_FUNCTION_TRACER).
const FTRACE: &str = "__fentry__";
/// Functions that these calls call.
const FTRACE_CALLED: [&str; 3] = [FTRACE, "ftrace_caller", "ftrace_regs_caller"];
/// The nop that the kernel writes over that call (x86_nops[5]).
const FTRACE_NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// The first byte of a call with a 32-bit displacement.
const CALL: u8 = 0xe8;
/// The first byte of a jmp with a 32-bit displacement. The kernel optimizes no kprobe on one.
const JMP: u8 = 0xe9;
/// Symbols of where the kernel's text begins. perf writes every place in the kernel as an offset
/// from one of them.
const TEXT_STARTS: [&str; 2] = ["_text", "_stext"];
/// Landing pad of indirect branches (CET).
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// The place that a definition refers to.
pub(crate) struct Place {
    pub(crate) at: Gva,
    /// `MODULE:SYMBOL` if a module has it.
    pub(crate) symbol: Option<Arc<str>>,
    pub(crate) offset: u64,
}

impl Place {
    /// The function, if the place is its entry.
    pub(crate) fn function(&self) -> Option<&str> {
        self.symbol.as_deref().filter(|_| self.offset == 0)
    }
}

/// Finds the place by the symbols at their runtime addresses (before boot, as linked).
pub(crate) fn find(
    symbols: &SymbolTable,
    definition: &ProbeDefinition,
) -> Result<Place, ProbeError> {
    let is_text_start = |name: &str| TEXT_STARTS.contains(&name);
    let at = match (&definition.symbol_name, definition.addr) {
        (Some(name), _) if is_text_start(name) => {
            symbols.lookup_function(name)?.address.wrapping_add(definition.offset)
        }
        (Some(name), _) => {
            let symbol = symbols.lookup_function(name)?;
            let bounds = symbols.function_at(symbol.address);
            let size = bounds.map_or(symbol.size, |b| b.end.0.wrapping_sub(symbol.address.0));
            if definition.offset >= size.max(1) {
                let (symbol, offset) = (name.clone(), definition.offset);
                return Err(ProbeError::OffsetBeyond { symbol, offset, size });
            }
            symbol.address.wrapping_add(definition.offset)
        }
        (None, addr) => addr.unwrap_or_default(),
    };
    if !symbols.text_contains(at) {
        return Err(ProbeError::NotText(at));
    }
    let is_entry = symbols.function_at(at).is_some_and(|function| function.start == at);
    let wants_entry = definition.kind == ProbeKind::Kretprobe
        || definition.actions.iter().any(|action| matches!(action, Action::Return(_)));
    if wants_entry && !is_entry {
        return Err(ProbeError::NotEntry(at));
    }
    let function = definition.symbol_name.as_deref().filter(|name| !is_text_start(name));
    let (symbol, offset) = match (function, symbols.resolve(at)) {
        // The symbol always includes the module's name.
        (Some(name), Some(found)) if !name.contains(':') => {
            (Some(SymbolOffset { name, ..found }.qualified_name()), definition.offset)
        }
        (Some(name), _) => (Some(name.to_owned()), definition.offset),
        (None, Some(found)) => (Some(found.qualified_name()), found.offset),
        (None, None) => (None, 0),
    };
    Ok(Place { at, symbol: symbol.map(Arc::from), offset })
}

/// The address of a probe at `at`: after instructions at a function's entry that the kernel
/// rewrites and checks. Every call of the function reaches the next one.
///
/// They are the call of the function tracer (a nop once the kernel has booted), with an endbr64
/// before it: the kernel looks for that to know where the call is (is_endbr()). Without a tracer,
/// an endbr64 alone, until the kernel has sealed it (apply_seal_endbr(), CONFIG_X86_KERNEL_IBT).
pub(crate) fn after_rewritten(text: GuestText<'_>, kernel: &Kernel, at: Gva) -> Gva {
    let symbols = &kernel.symbols;
    let Some(function) = symbols.function_at(at) else { return at };
    let mut bytes = [0; ENDBR64.len() + FTRACE_NOP.len()];
    if kernel.memory().read(function.start, &mut bytes).is_err() {
        return at;
    }
    text.restore(function.start, &mut bytes);
    let entry = if bytes.starts_with(&ENDBR64) { ENDBR64.len() } else { 0 };
    let nop = function.start.wrapping_add(entry as u64);
    if at != function.start && at != nop {
        return at;
    }
    let after = nop.wrapping_add(FTRACE_NOP.len() as u64);
    let bytes = &bytes[entry..][..FTRACE_NOP.len()];
    let has_tracer = symbols.address_of(FTRACE).is_some();
    if has_tracer && (bytes == FTRACE_NOP || is_tracers_call(symbols, bytes, after)) {
        return after;
    }
    let is_sealed = at != nop && kernel.will_patch(at, entry as u64);
    if is_sealed { nop } else { at }
}

/// Returns true for a call of the function tracer: of its own functions, or of a trampoline that it
/// (or a BPF program's) made in memory without symbols. The compiler's calls are of functions.
fn is_tracers_call(symbols: &SymbolTable, bytes: &[u8], end: Gva) -> bool {
    let Some(distance) = bytes.strip_prefix(&[CALL]).and_then(|rest| rest.first_chunk()) else {
        return false;
    };
    let target = end.wrapping_add(i64::from(i32::from_le_bytes(*distance)).cast_unsigned());
    let is_own = |name: &&str| symbols.address_of(name) == Some(target);
    FTRACE_CALLED.iter().any(is_own) || !symbols.text_contains(target)
}

/// A site for one more probe.
pub(crate) enum Vetted {
    /// The site that is there.
    Present(Arc<Site>),
    /// One that is not made yet.
    Possible(NewSite),
}

/// A place that a site may be made for.
pub(crate) struct NewSite {
    at: Gva,
    gpa: Gpa,
    insn: Arc<Displaced>,
    guest_int3: bool,
    guest_jmp: bool,
}

/// Returns the site at `at` for a caller that adds to it. Changes nothing in the registry but
/// slots.
pub(crate) fn site(
    registry: &mut Registry,
    jumps: &dyn Overlay,
    guest: &dyn Guest,
    kernel: &Kernel,
    at: Gva,
) -> Result<Arc<Site>, ProbeError> {
    let found = find_site(&registry.sites, jumps, guest, kernel, at)?;
    make_site(registry, guest, found)
}

/// Checks that a probe may be at `at`. Changes nothing.
pub(crate) fn vet(
    sites: &Sites,
    jumps: &dyn Overlay,
    guest: &dyn Guest,
    kernel: &Kernel,
    at: Gva,
    probe: &Probe,
) -> Result<Vetted, ProbeError> {
    let found = find_site(sites, jumps, guest, kernel, at)?;
    if probe.returns().is_some()
        && let Some(reserved) = kernel.reserved_for_returns(at)
    {
        return Err(ProbeError::Reserved { at, reserved });
    }
    if probe.post_handler().is_some() {
        found.insn().supports_post()?;
    }
    Ok(found)
}

/// Adds a probe to the site at `at`; makes the site if there is none.
pub(crate) fn join(
    registry: &mut Registry,
    guest: &dyn Guest,
    at: Gva,
    found: Vetted,
    probe: &Arc<Probe>,
) -> Result<(), ProbeError> {
    let site = make_site(registry, guest, found)?;
    let step = match probe.post_handler() {
        Some(_) => step(registry, guest, &site.insn)?,
        None => site.step,
    };
    // Changed in place, and copied only while it is shared: it may have very many probes.
    registry.sites.entry(at).or_insert(site);
    registry.change(at, |site| {
        site.step = step;
        site.probes.push(PlacedProbe::new(probe));
    });
    Ok(())
}

impl Vetted {
    fn insn(&self) -> &Displaced {
        match self {
            Self::Present(site) => &site.insn,
            Self::Possible(site) => &site.insn,
        }
    }
}

fn find_site(
    sites: &Sites,
    jumps: &dyn Overlay,
    guest: &dyn Guest,
    kernel: &Kernel,
    at: Gva,
) -> Result<Vetted, ProbeError> {
    if let Some(site) = sites.get(&at) {
        return Ok(Vetted::Present(Arc::clone(site)));
    }
    if let Some(reserved) = kernel.reserved(at) {
        return Err(ProbeError::Reserved { at, reserved });
    }
    let text = GuestText::new(sites, jumps);
    let insn = Arc::new(check_instruction(text, kernel, at)?);
    if kernel.will_patch(at, u64::from(insn.len())) {
        return Err(ProbeError::NotFinal(at));
    }
    let found = kernel.memory().translate(at).map_err(|_| ProbeError::NotText(at))?;
    if !found.executable {
        return Err(ProbeError::NotText(at));
    }
    // An instruction that a jmp covers is not in memory.
    let mut first = [guest.ram().load_byte(found.gpa)?];
    text.restore(at, &mut first);
    let guest_int3 = first == [INT3];
    let guest_jmp = is_guests_jmp(kernel, &insn);
    Ok(Vetted::Possible(NewSite { at, gpa: found.gpa, insn, guest_int3, guest_jmp }))
}

fn make_site(
    registry: &mut Registry,
    guest: &dyn Guest,
    found: Vetted,
) -> Result<Arc<Site>, ProbeError> {
    let new = match found {
        Vetted::Present(site) => return Ok(site),
        Vetted::Possible(new) => new,
    };
    let way = displacement(registry, guest, &new.insn)?;
    Ok(Arc::new(new.site(way)))
}

impl NewSite {
    /// The site, without probes.
    pub(crate) fn site(self, way: Displacement) -> Site {
        let Self { at, gpa, insn, guest_int3, guest_jmp } = self;
        Site {
            at,
            gpa,
            insn,
            way,
            step: None,
            probes: Vec::new(),
            returning: Vec::new(),
            marks: Vec::new(),
            armed: false,
            catches_returns: false,
            guest_int3,
            guest_jmp,
            guest_copy: None,
            clobbered: false,
        }
    }
}

/// Returns true for the jmp that the guest's kernel has written over an instruction with a kprobe
/// of its own.
pub(crate) fn is_guests_jmp(kernel: &Kernel, insn: &Displaced) -> bool {
    let own = || OwnKprobes::read(kernel).opcode(insn.at());
    insn.original()[0] == JMP && own().is_some_and(|opcode| opcode != JMP)
}

/// Chooses how an instruction runs instead of in its place.
pub(crate) fn displacement(
    registry: &mut Registry,
    guest: &dyn Guest,
    insn: &Displaced,
) -> Result<Displacement, ProbeError> {
    Ok(match insn.emulation() {
        Some(_) => Displacement::Emulate,
        None => Displacement::Slot(registry.slots.get(guest.hidden(), insn, SlotKind::Boosted)?),
    })
}

/// The slot that stops after the instruction, for post-handlers; `None` if it is emulated.
pub(crate) fn step(
    registry: &mut Registry,
    guest: &dyn Guest,
    insn: &Displaced,
) -> Result<Option<Slot>, ProbeError> {
    insn.supports_post()?;
    let is_needed = insn.emulation().is_none();
    let slot = is_needed.then(|| registry.slots.get(guest.hidden(), insn, SlotKind::Stepped));
    Ok(slot.transpose()?)
}

/// Reads the function around `at`, checks that an instruction starts there, and analyzes the
/// instruction. The guest's own kprobes do not count: their int3s are no instructions.
fn check_instruction(
    text: GuestText<'_>,
    kernel: &Kernel,
    at: Gva,
) -> Result<Displaced, ProbeError> {
    let bounds = kernel.symbols.function_at(at).ok_or(ProbeError::NotText(at))?;
    let mut bytes = text.original(&kernel.memory(), bounds.start, bounds.end)?;
    if bytes.contains(&INT3) {
        OwnKprobes::read(kernel).restore(bounds.start, &mut bytes);
    }
    insn::check_boundary(bounds.start, &bytes, at).map_err(ProbeError::Boundary)?;
    let skip = usize::try_from(at.0.wrapping_sub(bounds.start.0)).unwrap_or(usize::MAX);
    let bytes = bytes.get(skip..).ok_or(ProbeError::NotText(at))?;
    Ok(insn::analyze(bytes, at, kernel.assurances())?)
}
