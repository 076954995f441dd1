//! A filter's fields among the arguments of a probe, or the fields of a synthetic event.

use std::ops::Range;

use exoprobe_introspect::SymbolTable;

use crate::definition::{
    Argument, COMM_FIELD, CPU_FIELD, Field, FieldError, FieldUse, Filter, FilterFunction,
    PID_FIELD, ProbeKind, USER_TEXT, Width, WrittenFilter, common_field,
};
use crate::error::ProbeError;

/// Resolves the filter's fields, and its functions by these symbols; `kind` is the probe's, a
/// synthetic event has none.
///
/// # Errors
/// [`ProbeError::Filter`].
pub(super) fn resolve(
    filter: Option<&WrittenFilter>,
    kind: Option<ProbeKind>,
    list: &[Argument],
    symbols: Option<&SymbolTable>,
) -> Result<Option<Filter<Field>>, ProbeError> {
    let function = |name: &String, function: &FilterFunction| {
        let found = symbols.and_then(|symbols| function.addresses(symbols));
        found.ok_or_else(|| FieldError::NoFunction(name.clone()))
    };
    resolve_by(filter, kind, list, function)
}

/// Checks the filter's fields; which functions there are is not known yet.
///
/// # Errors
/// [`ProbeError::Filter`].
pub(super) fn check(
    filter: Option<&WrittenFilter>,
    kind: Option<ProbeKind>,
    list: &[Argument],
) -> Result<(), ProbeError> {
    resolve_by(filter, kind, list, |_, _| Ok(0..0)).map(drop)
}

fn resolve_by(
    filter: Option<&WrittenFilter>,
    kind: Option<ProbeKind>,
    list: &[Argument],
    mut function: impl FnMut(&String, &FilterFunction) -> Result<Range<u64>, FieldError>,
) -> Result<Option<Filter<Field>>, ProbeError> {
    let mut find = |name: &String, of: FieldUse| field(kind, list, name, of);
    let found = filter.map(|filter| filter.expression().resolve(&mut find, &mut function));
    found.transpose().map_err(|error| {
        let known =
            list.iter().map(|arg| arg.name.as_str()).chain([PID_FIELD, COMM_FIELD, CPU_FIELD]);
        ProbeError::Filter { error, known: known.collect::<Vec<_>>().join("`, `") }
    })
}

fn field(
    kind: Option<ProbeKind>,
    list: &[Argument],
    name: &str,
    of: FieldUse,
) -> Result<Field, FieldError> {
    let owned = || name.to_owned();
    if let Some(address) = name.strip_suffix(USER_TEXT) {
        return user_text(list, address, of == FieldUse::Text, owned());
    }
    let Some(index) = list.iter().position(|arg| arg.name == name) else {
        let found = common_field(kind, name).ok_or_else(|| FieldError::NoSuch(owned()))?;
        return match (found, of) {
            (Field::Comm, FieldUse::Text) => Ok(found),
            (Field::Comm, FieldUse::Number) => Err(FieldError::Text(owned())),
            (_, FieldUse::Text) => Err(FieldError::Number(owned())),
            (_, FieldUse::Number) | (Field::At | Field::ReturnedTo, FieldUse::Function) => {
                Ok(found)
            }
            (_, FieldUse::Function) => Err(FieldError::NoAddress(owned())),
        };
    };
    let arg = &list[index];
    let is_quad = arg.is_number() && arg.kind.width() == Width::Quad;
    match (arg.count, arg.is_number(), of) {
        (Some(_), _, _) => Err(FieldError::Array(owned())),
        (None, _, FieldUse::Function) if !is_quad => Err(FieldError::NoAddress(owned())),
        (None, true, FieldUse::Number | FieldUse::Function) => {
            Ok(Field::Arg { index, kind: arg.kind })
        }
        (None, true, FieldUse::Text) => Err(FieldError::Number(owned())),
        (None, false, FieldUse::Text) => Ok(Field::Text { index }),
        (None, false, FieldUse::Number | FieldUse::Function) => Err(FieldError::Text(owned())),
    }
}

/// The text to which argument `address` points, or which it is; `name` is the filter's name of the
/// field.
fn user_text(
    list: &[Argument],
    address: &str,
    wants_text: bool,
    name: String,
) -> Result<Field, FieldError> {
    let Some(index) = list.iter().position(|arg| arg.name == address) else {
        return Err(FieldError::NoSuch(name));
    };
    let arg = &list[index];
    let is_address = arg.is_number() && arg.kind.width() == Width::Quad;
    match (is_address, wants_text) {
        (false, true) if arg.count.is_none() && !arg.is_number() => Ok(Field::Text { index }),
        (false, _) => Err(FieldError::NoAddress(name)),
        (true, false) => Err(FieldError::Text(name)),
        (true, true) => Ok(Field::UserText { index }),
    }
}
