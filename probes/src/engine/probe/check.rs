//! Checks everything in a definition that does not depend on the kernel.

use std::collections::HashSet;

use crate::definition::{
    ARG_NAME_MAX, ARGS_MAX, Action, Fetch, MAXACTIVE_MAX, NAME_MAX, ProbeDefinition, ProbeKind,
    Register, ReturnMode, is_event_name,
};
use crate::engine::arguments::list::Arguments;
use crate::engine::probe::handlers::{DATA_SIZE_MAX, NewProbe};
use crate::error::ProbeError;

/// Checks everything that the definition alone determines.
pub(crate) fn check(probe: &mut NewProbe) -> Result<(), ProbeError> {
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

/// Refuses fields that only return probes have.
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
