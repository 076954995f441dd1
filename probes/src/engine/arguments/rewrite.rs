//! Arguments as the tracer lists them when the kernel's types are known.

use exoprobe_introspect::Btf;
use exoprobe_introspect::btf::Kind;

use super::error::ParameterError;
use super::finder::{name_of, place_of};
use super::legacy;
use crate::definition::{BODY_MAX, Fetch, FetchArg, ProbeDefinition, ValueType, is_arg_name};
use crate::error::ProbeError;

/// Returns true if a definition contains something to rewrite.
pub(crate) fn is_due(definition: &ProbeDefinition) -> bool {
    let is_name = |arg: &FetchArg| matches!(arg.body, Fetch::NameOf { .. });
    definition.args.iter().any(|arg| bare(arg).is_some() || is_name(arg))
}

/// Gives each bare `$argN` the parameter's name, and replaces `%pd` and `%pD` by the address of the
/// name.
///
/// # Errors
/// [`ParameterError::NoSuch`], [`ParameterError::NoNames`].
pub(crate) fn rewrite(
    definition: &mut ProbeDefinition,
    function: Option<&str>,
    types: &Btf,
) -> Result<(), ProbeError> {
    for arg in &mut definition.args {
        if let (Some(n), Some(function)) = (bare(arg), function)
            && let Some(name) = parameter(n, function, types)?
        {
            arg.name = Some(name.clone());
            *without_suffix(&mut arg.body) = Fetch::Parameter(name);
        }
        if let Fetch::NameOf { what, base } = &arg.body {
            let body = name_of(*what, base, types)?;
            let written = FetchArg { name: None, body, kind: Some(ValueType::Text), count: None };
            // An argument that the language could not read stays unchanged.
            if written.to_string().len() <= BODY_MAX {
                *arg = FetchArg { name: arg.name.take(), ..written };
            }
        }
    }
    Ok(())
}

/// The N of an argument `$argN` without a name.
fn bare(arg: &FetchArg) -> Option<u16> {
    let body = match &arg.body {
        Fetch::NameOf { base, .. } => base,
        body => body,
    };
    match (&arg.name, body) {
        (None, Fetch::Argument(n)) => Some(*n),
        _ => None,
    }
}

/// The part before `:%pd` or `:%pD`.
fn without_suffix(body: &mut Fetch) -> &mut Fetch {
    match body {
        Fetch::NameOf { base, .. } => base,
        body => body,
    }
}

/// The name of parameter `n`, from 1; `None` if none is known of the function, or if the parameter
/// is not at `$argN`: it follows a struct by value.
fn parameter(n: u16, function: &str, types: &Btf) -> Result<Option<String>, ParameterError> {
    let Some(prototype) = types.function(function) else { return Ok(None) };
    let params = types.parameters(prototype);
    if params.is_empty() {
        // As in the kernel, `$argN` is the register then.
        return Ok(None);
    }
    let index = n - 1;
    let Some(param) = params.get(usize::from(index)) else {
        return match types.kind(prototype) {
            // `...`
            Kind::Prototype(it) if it.params().len() > params.len() => Ok(None),
            _ => {
                let has = params.into_iter().map(|param| param.name).collect();
                let (function, name) = (function.to_owned(), Fetch::Argument(n).to_string());
                Err(ParameterError::NoSuch { function, name, has })
            }
        };
    };
    let is_there = place_of(param).ok() == legacy::argument(index);
    Ok((is_there && is_arg_name(&param.name)).then(|| param.name.clone()))
}
