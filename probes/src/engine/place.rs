//! From a definition to a place in the guest's text that is fit for it.

use std::collections::HashSet;
use std::sync::Arc;

use exoprobe_introspect::{SymbolOffset, SymbolTable};
use exoprobe_vmm::Gva;

use super::arguments::Arguments;
use super::guest::Guest;
use super::handlers::{DATA_SIZE_MAX, NewProbe};
use super::kernel::Kernel;
use super::probe::Probe;
use super::registry::Registry;
use super::table::{Site, Way};
use crate::definition::{
    ARG_NAME_MAX, ARGS_MAX, Action, Fetch, MAXACTIVE_MAX, NAME_MAX, ProbeDefinition, ProbeKind,
    Register, ReturnMode, is_event_name,
};
use crate::error::ProbeError;
use crate::insn::{self, Displaced, SlotKind};

/// There in kernels whose functions begin with a call to the tracer (CONFIG_FUNCTION_TRACER).
const FTRACE: &str = "__fentry__";
/// What the kernel makes of that call (x86_nops[5]).
const FTRACE_NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// The first byte of a call with a 32-bit displacement.
const CALL: u8 = 0xe8;
/// Where indirect branches may land (CET).
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Where a definition points.
pub(super) struct Place {
    pub(super) at: Gva,
    /// `MODULE:SYMBOL` where it is a module's.
    pub(super) symbol: Option<Arc<str>>,
    pub(super) offset: u64,
}

impl Place {
    /// The function whose entry it is.
    pub(super) fn function(&self) -> Option<&str> {
        self.symbol.as_deref().filter(|_| self.offset == 0)
    }
}

/// Finds the place, by the symbols where they are (or, before boot, as linked).
pub(super) fn find(
    symbols: &SymbolTable,
    definition: &ProbeDefinition,
) -> Result<Place, ProbeError> {
    let at = match (&definition.symbol_name, definition.addr) {
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
    let (symbol, offset) = match (definition.symbol_name.as_deref(), symbols.resolve(at)) {
        // The module is told, asked for or not.
        (Some(name), Some(found)) if !name.contains(':') => {
            (Some(SymbolOffset { name, ..found }.qualified_name()), definition.offset)
        }
        (Some(name), _) => (Some(name.to_owned()), definition.offset),
        (None, Some(found)) => (Some(found.qualified_name()), found.offset),
        (None, None) => (None, 0),
    };
    Ok(Place { at, symbol: symbol.map(Arc::from), offset })
}

/// Where a probe at `at` goes in a kernel whose function tracer owns the call at functions' entries, a nop once
/// it has booted: after it. The tracer rewrites and checks that instruction; a call of the function comes through
/// the next either way.
pub(super) fn behind_ftrace(registry: &Registry, kernel: &Kernel, at: Gva) -> Gva {
    let Some(function) = kernel.symbols.function_at(at) else { return at };
    let Some(tracer) = kernel.symbols.address_of(FTRACE) else { return at };
    let mut bytes = [0; ENDBR64.len() + FTRACE_NOP.len()];
    if kernel.memory().read(function.start, &mut bytes).is_err() {
        return at;
    }
    registry.without_breakpoints(function.start, &mut bytes);
    let entry = if bytes.starts_with(&ENDBR64) { ENDBR64.len() } else { 0 };
    let nop = function.start.wrapping_add(entry as u64);
    let behind = nop.wrapping_add(FTRACE_NOP.len() as u64);
    let call = call_to(tracer, behind);
    let is_tracers = |bytes: &[u8]| bytes.starts_with(&FTRACE_NOP) || bytes.starts_with(&call);
    if at == nop && is_tracers(&bytes[entry..]) { behind } else { at }
}

/// The call of `target` that ends at `end`.
fn call_to(target: Gva, end: Gva) -> [u8; FTRACE_NOP.len()] {
    let [a, b, c, d, ..] = target.0.wrapping_sub(end.0).to_le_bytes();
    [CALL, a, b, c, d]
}

/// The site at `at`, for who wants to add to it; the registry is not changed but for slots.
pub(super) fn site(
    registry: &mut Registry,
    guest: &dyn Guest,
    kernel: &Kernel,
    at: Gva,
) -> Result<Arc<Site>, ProbeError> {
    match registry.sites.get(&at) {
        Some(site) => Ok(Arc::clone(site)),
        None => new_site(registry, guest, kernel, at).map(Arc::new),
    }
}

/// Makes a probe part of the site at `at`, which is new where there is none.
pub(super) fn join(
    registry: &mut Registry,
    guest: &dyn Guest,
    kernel: &Kernel,
    at: Gva,
    probe: &Arc<Probe>,
) -> Result<(), ProbeError> {
    let site = site(registry, guest, kernel, at)?;
    if probe.returns().is_some()
        && let Some(reserved) = kernel.reserved_for_returns(at)
    {
        return Err(ProbeError::Reserved { at, reserved });
    }
    let mut step = site.step;
    if probe.post_handler().is_some() {
        site.insn.supports_post()?;
        if site.insn.emulation().is_none() {
            step = Some(registry.slots.get(guest.hidden(), &site.insn, SlotKind::Stepped)?);
        }
    }
    // Changed where it is, and copied only while others have it: it may have very many probes.
    registry.sites.entry(at).or_insert(site);
    registry.change(at, |site| {
        site.step = step;
        site.probes.push(Arc::clone(probe));
    });
    Ok(())
}

fn new_site(
    registry: &mut Registry,
    guest: &dyn Guest,
    kernel: &Kernel,
    at: Gva,
) -> Result<Site, ProbeError> {
    if let Some(reserved) = kernel.reserved(at) {
        return Err(ProbeError::Reserved { at, reserved });
    }
    let insn = Arc::new(check_instruction(registry, kernel, at)?);
    if kernel.will_patch(at, u64::from(insn.len())) {
        return Err(ProbeError::NotFinal(at));
    }
    let found = kernel.memory().translate(at).map_err(|_| ProbeError::NotText(at))?;
    if !found.executable {
        return Err(ProbeError::NotText(at));
    }
    guest.ram().load_byte(found.gpa)?;
    let way = match insn.emulation() {
        Some(_) => Way::Emulate,
        None => Way::Slot(registry.slots.get(guest.hidden(), &insn, SlotKind::Boosted)?),
    };
    Ok(Site {
        at,
        gpa: found.gpa,
        insn,
        way,
        step: None,
        probes: Vec::new(),
        returning: Vec::new(),
        marks: Vec::new(),
        armed: false,
        clobbered: false,
    })
}

/// Reads the function around `at`, checks that an instruction starts there, and analyzes it.
fn check_instruction(
    registry: &Registry,
    kernel: &Kernel,
    at: Gva,
) -> Result<Displaced, ProbeError> {
    let bounds = kernel.symbols.function_at(at).ok_or(ProbeError::NotText(at))?;
    let bytes = registry.original_text(kernel, bounds.start, bounds.end)?;
    insn::check_boundary(bounds.start, &bytes, at).map_err(ProbeError::Boundary)?;
    let skip = usize::try_from(at.0.wrapping_sub(bounds.start.0)).unwrap_or(usize::MAX);
    let bytes = bytes.get(skip..).ok_or(ProbeError::NotText(at))?;
    Ok(insn::analyze(bytes, at, kernel.assurances())?)
}

/// Checks all that can be told from the definition alone.
pub(super) fn check(probe: &mut NewProbe) -> Result<(), ProbeError> {
    let definition = match probe {
        NewProbe::Kprobe(probe) => {
            if probe.definition.kind != ProbeKind::Kprobe {
                return Err(ProbeError::Kind("a return probe's definition given as a kprobe"));
            }
            &probe.definition
        }
        NewProbe::Kretprobe(probe) => {
            probe.definition.kind = ProbeKind::Kretprobe;
            if probe.data_size > DATA_SIZE_MAX {
                return Err(ProbeError::DataSize(probe.data_size));
            }
            &probe.definition
        }
    };
    check_place(definition)?;
    check_names(definition)?;
    check_kind(definition)?;
    check_actions(definition)
}

fn check_place(definition: &ProbeDefinition) -> Result<(), ProbeError> {
    match (&definition.symbol_name, definition.addr) {
        (Some(_), Some(_)) => Err(ProbeError::Place("both are given")),
        (None, None) => Err(ProbeError::Place("neither is given")),
        (None, Some(_)) if definition.offset != 0 => {
            Err(ProbeError::Place("an offset goes with a symbol; add it to the address"))
        }
        _ => Ok(()),
    }
}

fn check_names(definition: &ProbeDefinition) -> Result<(), ProbeError> {
    let bad = |what, name: &str| {
        let name = name.chars().take(NAME_MAX + 1).collect();
        Err(ProbeError::BadName { what, name })
    };
    for (what, name) in [("group", &definition.group), ("event", &definition.event)] {
        if let Some(name) = name
            && !is_event_name(name)
        {
            return bad(what, name);
        }
    }
    if definition.args.len() > ARGS_MAX {
        return Err(ProbeError::TooManyArgs(definition.args.len()));
    }
    let mut names = HashSet::new();
    for index in 0..definition.args.len() {
        let name = definition.arg_name(index);
        if name.len() > ARG_NAME_MAX || !is_event_name(&name) {
            return bad("argument", &name);
        }
        if !names.insert(name.clone()) {
            return Err(ProbeError::DuplicateArg(name));
        }
    }
    Arguments::check(definition, definition.filter.as_ref())
}

/// What belongs to return probes only.
fn check_kind(definition: &ProbeDefinition) -> Result<(), ProbeError> {
    if definition.kind == ProbeKind::Kretprobe {
        return match definition.maxactive {
            Some(maxactive) if !(1..=MAXACTIVE_MAX).contains(&maxactive) => {
                Err(ProbeError::Maxactive(maxactive))
            }
            _ => Ok(()),
        };
    }
    if definition.maxactive.is_some() {
        return Err(ProbeError::Kind("maxactive belongs to return probes (kind `r`)"));
    }
    if definition.return_mode != ReturnMode::default() {
        return Err(ProbeError::Kind("return_mode belongs to return probes (kind `r`)"));
    }
    let places = definition.actions.iter().filter_map(|action| match action {
        Action::WriteMem { to, .. } => Some(to),
        _ => None,
    });
    match definition.args.iter().map(|arg| &arg.body).chain(places).any(Fetch::is_of_return) {
        true => Err(ProbeError::Kind("$retval belongs to return probes (kind `r`)")),
        false => Ok(()),
    }
}

fn check_actions(definition: &ProbeDefinition) -> Result<(), ProbeError> {
    let actions = &definition.actions;
    if actions.iter().filter(|action| action.records()).count() > 1 {
        return Err(ProbeError::Action(
            "`record` and `stack` both write the event: give one of them, once",
        ));
    }
    if actions.contains(&Action::Count) && actions.iter().any(Action::records) {
        return Err(ProbeError::Action(
            "`count` means that no event is written: leave it, or `record`, out",
        ));
    }
    for (index, action) in actions.iter().enumerate() {
        match action {
            Action::SetReg { reg: Register::Ip | Register::Flags, .. } => {
                return Err(ProbeError::Action(
                    "`ip` and `flags` cannot be set: leave a function with `return`",
                ));
            }
            Action::WriteMem { to, .. } if to.parameter().is_some() => {
                return Err(ProbeError::Action(
                    "`write_mem` takes no parameter by its name: give its register",
                ));
            }
            Action::WriteMem { to, .. } if to.asks_for_types() || to.innermost().is_named() => {
                return Err(ProbeError::Action(
                    "`write_mem` takes no symbol, argument or member: give an address or a register",
                ));
            }
            Action::WriteMem { to, .. } if !to.reads_memory() => {
                return Err(ProbeError::Action(
                    "`write_mem` needs a place in memory: `+8(%di)`, `@0x...` or `$stack0`",
                ));
            }
            Action::WriteMem { size, .. } if !matches!(size, 1 | 2 | 4 | 8) => {
                return Err(ProbeError::Action("`write_mem` writes 1, 2, 4 or 8 bytes"));
            }
            Action::Return(_) if definition.kind == ProbeKind::Kretprobe => {
                return Err(ProbeError::Action(
                    "a return probe's function has returned: change its value by `set_reg` of `ax`",
                ));
            }
            Action::Return(_) if index + 1 < actions.len() => {
                return Err(ProbeError::Action("`return` leaves the function: it comes last"));
            }
            _ => {}
        }
    }
    Ok(())
}
