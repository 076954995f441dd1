//! A filter's fields among a probe's arguments.

use crate::definition::{
    Argument, COMM_FIELD, CPU_FIELD, Field, FieldError, Filter, PID_FIELD, USER_TEXT, Width,
    WrittenFilter,
};
use crate::error::ProbeError;

/// Resolves the filter's fields.
///
/// # Errors
/// [`ProbeError::Filter`].
pub(super) fn resolve(
    filter: Option<&WrittenFilter>,
    list: &[Argument],
) -> Result<Option<Filter<Field>>, ProbeError> {
    let mut find = |name: &String, wants_text: bool| field(list, name, wants_text);
    let found = filter.map(|filter| filter.expression().resolve(&mut find)).transpose();
    found.map_err(|error| {
        let known =
            list.iter().map(|arg| arg.name.as_str()).chain([PID_FIELD, COMM_FIELD, CPU_FIELD]);
        ProbeError::Filter { error, known: known.collect::<Vec<_>>().join("`, `") }
    })
}

fn field(list: &[Argument], name: &str, wants_text: bool) -> Result<Field, FieldError> {
    let owned = || name.to_owned();
    if let Some(address) = name.strip_suffix(USER_TEXT) {
        return user_text(list, address, wants_text, owned());
    }
    let Some(index) = list.iter().position(|arg| arg.name == name) else {
        return match (name, wants_text) {
            (PID_FIELD, false) => Ok(Field::Pid),
            (PID_FIELD, true) => Err(FieldError::Number(owned())),
            (CPU_FIELD | "cpu", false) => Ok(Field::Cpu),
            (CPU_FIELD | "cpu", true) => Err(FieldError::Number(owned())),
            (COMM_FIELD | "COMM", true) => Ok(Field::Comm),
            (COMM_FIELD | "COMM", false) => Err(FieldError::Text(owned())),
            _ => Err(FieldError::NoSuch(owned())),
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

/// The text to which argument `address` points; `name` is the filter's name of the field.
fn user_text(
    list: &[Argument],
    address: &str,
    wants_text: bool,
    name: String,
) -> Result<Field, FieldError> {
    let Some(index) = list.iter().position(|arg| arg.name == address) else {
        return Err(FieldError::NoSuch(name));
    };
    let is_address = list[index].is_number() && list[index].kind.width() == Width::Quad;
    match (is_address, wants_text) {
        (false, _) => Err(FieldError::NoAddress(name)),
        (true, false) => Err(FieldError::Text(name)),
        (true, true) => Ok(Field::UserText { index }),
    }
}
