//! Recorded hits as filters see them.

use super::hit::Hit;
use super::show::{RecordedValue, show_symbol};
use crate::definition::{Field, FieldValue, Filter, ValueType};

/// The value of a field; `None` if it could not be read, or is not recorded.
pub(crate) fn field_value(field: Field, hit: &Hit) -> Option<FieldValue> {
    let Hit { origin, vcpu, record } = hit;
    let text = |text: String| Some(FieldValue::Text(text.into_bytes()));
    match field {
        Field::Arg { index, .. } => Some(FieldValue::Word((*record.args.get(index)?)?)),
        Field::Event => Some(FieldValue::Word(origin.event_id.into())),
        Field::Cpu => Some(FieldValue::Word((*vcpu).into())),
        Field::Pid => Some(FieldValue::Word(record.task?.pid.into())),
        Field::Comm => text(record.task?.name()),
        Field::At => Some(FieldValue::Word(origin.at.0)),
        Field::ReturnedTo => Some(FieldValue::Word(record.returned?.to.0)),
        Field::Known(number) => Some(FieldValue::Word(number)),
        Field::Text { index } => {
            if let Some(bytes) = recorded_text(hit, index) {
                // As the guest has it; text that is shown is UTF-8.
                return Some(FieldValue::Text(bytes.to_vec()));
            }
            match RecordedValue::of(origin.fields.get(index)?, record, index) {
                RecordedValue::Text(found) => text(found.into_owned()),
                RecordedValue::Number(ValueType::Symbol | ValueType::SymbolText, at) => {
                    text(show_symbol(origin.symbols.as_ref(), at))
                }
                RecordedValue::Fault | RecordedValue::Number(..) | RecordedValue::Array(_) => None,
            }
        }
        Field::UserText { index } => {
            let at = origin.user_texts.iter().position(|of| *of == index)?;
            Some(FieldValue::Text(record.bytes(origin.fields.len() + at)?.to_vec()))
        }
    }
}

/// Returns true if the record of a hit has the users' texts that a filter compares, though some may
/// not have been read. It has none where filters were evaluated in the hit.
pub(crate) fn has_texts(filter: &Filter<Field>, hit: &Hit) -> bool {
    let Hit { origin, record, .. } = hit;
    let texts = record.args.len().saturating_sub(origin.fields.len());
    let recorded = origin.user_texts.get(..texts).unwrap_or(&origin.user_texts);
    let is_missing =
        |field| matches!(field, Field::UserText { index } if !recorded.contains(&index));
    recorded.len() == origin.user_texts.len() || !filter.asks_for(&is_missing)
}

/// The bytes of an argument that is text in memory; `None` for others, and if it could not be read.
fn recorded_text(hit: &Hit, index: usize) -> Option<&[u8]> {
    let field = hit.origin.fields.get(index)?;
    let is_one = field.is_in_bytes() && field.count.is_none();
    hit.record.bytes(index).filter(|_| is_one)
}
