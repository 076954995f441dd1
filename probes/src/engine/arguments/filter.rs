//! A filter's fields among the arguments of a probe, or the fields of a synthetic event.

use crate::definition::{
    Argument, COMM_FIELD, CPU_FIELD, Field, FieldError, Filter, PID_FIELD, ProbeKind, USER_TEXT,
    Width, WrittenFilter, common_field,
};
use crate::error::ProbeError;

/// Resolves the filter's fields; `kind` is the probe's, a synthetic event has none.
///
/// # Errors
/// [`ProbeError::Filter`].
pub(super) fn resolve(
    filter: Option<&WrittenFilter>,
    kind: Option<ProbeKind>,
    list: &[Argument],
) -> Result<Option<Filter<Field>>, ProbeError> {
    let mut find = |name: &String, wants_text: bool| field(kind, list, name, wants_text);
    let found = filter.map(|filter| filter.expression().resolve(&mut find)).transpose();
    found.map_err(|error| {
        let known =
            list.iter().map(|arg| arg.name.as_str()).chain([PID_FIELD, COMM_FIELD, CPU_FIELD]);
        ProbeError::Filter { error, known: known.collect::<Vec<_>>().join("`, `") }
    })
}

fn field(
    kind: Option<ProbeKind>,
    list: &[Argument],
    name: &str,
    wants_text: bool,
) -> Result<Field, FieldError> {
    let owned = || name.to_owned();
    if let Some(address) = name.strip_suffix(USER_TEXT) {
        return user_text(list, address, wants_text, owned());
    }
    let Some(index) = list.iter().position(|arg| arg.name == name) else {
        let found = common_field(kind, name).ok_or_else(|| FieldError::NoSuch(owned()))?;
        return match (found == Field::Comm, wants_text) {
            (true, false) => Err(FieldError::Text(owned())),
            (false, true) => Err(FieldError::Number(owned())),
            _ => Ok(found),
        };
    };
    let arg = &list[index];
    match (arg.count, arg.is_number(), wants_text) {
        (Some(_), _, _) => Err(FieldError::Array(owned())),
        (None, true, false) => Ok(Field::Arg { index, kind: arg.kind }),
        (None, true, true) => Err(FieldError::Number(owned())),
        (None, false, true) => Ok(Field::Text { index }),
        (None, false, false) => Err(FieldError::Text(owned())),
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
