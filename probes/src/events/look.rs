//! Recorded hits as filters look at them.

use super::hit::Hit;
use super::show::{Shown, show_symbol};
use crate::definition::{Field, FieldValue, ValueType};

/// The value of a field; `None` where it could not be read, or is not recorded.
pub(crate) fn field_value(field: Field, hit: &Hit) -> Option<FieldValue> {
    let Hit { origin, vcpu, record } = hit;
    let text = |text: String| Some(FieldValue::Text(text.into_bytes()));
    match field {
        Field::Arg { index, .. } => Some(FieldValue::Word((*record.args.get(index)?)?)),
        Field::Cpu => Some(FieldValue::Word((*vcpu).into())),
        Field::Pid => Some(FieldValue::Word(record.task?.pid.into())),
        Field::Comm => text(record.task?.name()),
        Field::Text { index } => match Shown::of(origin.fields.get(index)?, record, index) {
            Shown::Text(found) => text(found.into_owned()),
            Shown::Number(ValueType::Symbol | ValueType::SymbolText, at) => {
                text(show_symbol(origin.symbols.as_ref(), at))
            }
            Shown::Fault | Shown::Number(..) | Shown::Array(_) => None,
        },
        // What was there then is not known any more.
        Field::UserText { .. } => None,
    }
}
