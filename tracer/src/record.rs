//! Records of events in the kernel's ring buffer, laid out as their files `format` say.

use exoprobe_introspect::SymbolTable;
use exoprobe_probes::definition::ValueType;
use exoprobe_probes::synthetic::{SyntheticDefinition, SyntheticType};
use exoprobe_probes::{FAULT, RecordedValue, TakenEvent, TraceEvent, show_symbol};

use crate::format::{MARK_ID, STACK_ID};
use crate::pages::DATA_MAX;
use crate::synthetic;

/// The records of an event: its own, and one of its back-trace. None if its number does not fit
/// into a record or is one of those of `ftrace`, or the fields of a synthetic event do not fit into
/// a page.
pub(crate) fn records(taken: &TakenEvent<'_>) -> Vec<Vec<u8>> {
    let TakenEvent { event, id, shapes, synthetic, .. } = taken;
    if let Some((_, RecordedValue::Text(text))) = event.args.first().filter(|_| event.is_mark) {
        return vec![mark(event, text)];
    }
    let is_free = |id: &u16| ![MARK_ID, STACK_ID].contains(id);
    let Some(id) = u16::try_from(*id).ok().filter(is_free) else { return Vec::new() };
    if let Some(definition) = synthetic {
        return made(event, id, definition).into_iter().collect();
    }
    let mut records = vec![hit(event, id, shapes)];
    if !event.stack.is_empty() {
        records.push(stack(event));
    }
    records
}

/// A record with the fields that every event has: of the flags nothing is known.
fn common(event: &TraceEvent<'_>, id: u16) -> Vec<u8> {
    let mut record = id.to_le_bytes().to_vec();
    record.extend_from_slice(&[0, 0]);
    record.extend_from_slice(&event.task.map_or(0, |task| task.pid).to_le_bytes());
    record
}

fn put(record: &mut Vec<u8>, number: u64, bytes: usize) {
    record.extend_from_slice(&number.to_le_bytes()[..bytes]);
}

/// The field `ip` is the address of the kernel's function that shows the text: there is none.
fn mark(event: &TraceEvent<'_>, text: &str) -> Vec<u8> {
    let mut record = common(event, MARK_ID);
    put(&mut record, 0, 8);
    record.extend_from_slice(text.as_bytes());
    record.push(0);
    record
}

fn stack(event: &TraceEvent<'_>) -> Vec<u8> {
    let mut record = common(event, STACK_ID);
    put(&mut record, event.stack.len() as u64, 8);
    event.stack.iter().for_each(|at| put(&mut record, at.0, 8));
    record
}

fn hit(event: &TraceEvent<'_>, id: u16, shapes: &[(ValueType, Option<u8>)]) -> Vec<u8> {
    let mut record = common(event, id);
    put(&mut record, event.at.0, 8);
    if let Some(to) = event.returned_to {
        put(&mut record, to.0, 8);
    }
    let mut texts = Vec::new();
    for ((_, value), (kind, count)) in event.args.iter().zip(shapes) {
        let each = match (value, count) {
            (RecordedValue::Array(each), Some(_)) => each.as_slice(),
            (one, _) => std::slice::from_ref(one),
        };
        for index in 0..usize::from(count.unwrap_or(1)) {
            let value = each.get(index).unwrap_or(&RecordedValue::Fault);
            if kind.shows_text() {
                texts.push((record.len(), Appended::Text(text_of(value, event.symbols))));
                put(&mut record, 0, kind.record_bytes());
            } else {
                let number = if let RecordedValue::Number(_, number) = value { *number } else { 0 };
                put(&mut record, number, kind.record_bytes());
            }
        }
    }
    append(&mut record, &texts);
    record
}

/// The record of a synthetic event: each field has the room of its `format`, of which texts of a
/// fixed size and numbers take the begin.
fn made(event: &TraceEvent<'_>, id: u16, definition: &SyntheticDefinition) -> Option<Vec<u8>> {
    let mut record = common(event, id);
    let mut appended = Vec::new();
    let fields = definition.fields.iter().zip(synthetic::fields(definition));
    for ((_, value), (field, layout)) in event.args.iter().zip(fields) {
        let place = record.len();
        record.resize(place + layout.room, 0);
        match (field.kind, value) {
            (SyntheticType::Number(_), RecordedValue::Number(_, number)) => {
                let bytes = &number.to_le_bytes()[..layout.size];
                record[place..place + bytes.len()].copy_from_slice(bytes);
            }
            (SyntheticType::Number(_), _) => {}
            (SyntheticType::Text(None), _) => {
                appended.push((place, Appended::Text(text_of(value, event.symbols))));
            }
            (SyntheticType::Stack(_), _) => {
                appended.push((place, Appended::Words(addresses(value))));
            }
            (SyntheticType::Text(Some(_)), _) => {
                let text = text_of(value, event.symbols);
                let text = cut(&text, layout.size - 1);
                record[place..place + text.len()].copy_from_slice(text.as_bytes());
            }
        }
    }
    let fits = record.len() + appended.len() <= DATA_MAX;
    fits.then(|| {
        append(&mut record, &appended);
        record
    })
}

/// The addresses of a back-trace; none if it is not known.
fn addresses(value: &RecordedValue<'_>) -> Vec<u64> {
    let RecordedValue::Array(each) = value else { return Vec::new() };
    let address = |value: &RecordedValue<'_>| match value {
        RecordedValue::Number(_, address) => Some(*address),
        _ => None,
    };
    each.iter().filter_map(address).collect()
}

fn text_of(value: &RecordedValue<'_>, symbols: Option<&SymbolTable>) -> String {
    match value {
        RecordedValue::Text(text) => text.as_ref().to_owned(),
        RecordedValue::Number(_, number) => show_symbol(symbols, *number),
        RecordedValue::Fault | RecordedValue::Array(_) => FAULT.to_owned(),
    }
}

/// A value whose bytes come after the fields of a record.
enum Appended {
    /// A text, with a NUL after it.
    Text(String),
    Words(Vec<u64>),
}

impl Appended {
    /// Its bytes, at most `room` and the NUL.
    fn bytes(&self, room: usize) -> Vec<u8> {
        match self {
            Self::Text(text) => [cut(text, room).as_bytes(), &[0]].concat(),
            Self::Words(words) => {
                words.iter().take(room / 8).flat_map(|word| word.to_le_bytes()).collect()
            }
        }
    }
}

/// Appends values, and writes at their places where they are: the length in the upper half of a
/// word, and the offset. What no page has room for is cut off.
fn append(record: &mut Vec<u8>, values: &[(usize, Appended)]) {
    for (index, (place, value)) in values.iter().enumerate() {
        let offset = record.len();
        // Each text that follows has its end at least.
        let room = DATA_MAX.saturating_sub(offset + values.len() - index);
        let bytes = value.bytes(room);
        record.extend_from_slice(&bytes);
        let [offset, length] =
            [offset, bytes.len()].map(|size| u32::try_from(size).expect("at most a page"));
        let word = (length << 16 | offset).to_le_bytes();
        record[*place..*place + word.len()].copy_from_slice(&word);
    }
}

/// The first characters of a text that have at most so many bytes.
fn cut(text: &str, max: usize) -> &str {
    let mut length = text.len().min(max);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    &text[..length]
}

#[cfg(test)]
mod tests {
    use exoprobe_guest::Gva;
    use exoprobe_introspect::TaskId;
    use exoprobe_probes::synthetic::{SyntheticCommand, parse_synthetic};
    use exoprobe_probes::{EventField, ProbeKind};
    use proptest::prelude::*;

    use super::*;

    fn event<'a>(args: Vec<(&'a str, RecordedValue<'a>)>) -> TraceEvent<'a> {
        let task = TaskId { pid: 1447, comm: *b"bash\0\0\0\0\0\0\0\0\0\0\0\0" };
        TraceEvent {
            name: "e",
            is_mark: false,
            is_synthetic: false,
            vcpu: 0,
            task: Some(task),
            micros: 0,
            at: Gva(0xffff_ffff_8100_0000),
            returned_to: None,
            symbols: None,
            args,
            stack: Vec::new(),
        }
    }

    fn taken<'a>(event: TraceEvent<'a>, shapes: &[(&str, Option<u8>)]) -> TakenEvent<'a> {
        let shape = |(kind, count): &(&str, Option<u8>)| (kind.parse().unwrap(), *count);
        let shapes = shapes.iter().map(shape).collect();
        TakenEvent { event, id: 7, nanos: 0, shapes, synthetic: None }
    }

    /// Offsets and sizes of the fields of a probe's event.
    fn layout(kind: ProbeKind, shapes: &[(ValueType, Option<u8>)]) -> Vec<(usize, usize)> {
        let field = |(kind, count): &(ValueType, Option<u8>)| EventField {
            name: "f".to_owned(),
            kind: *kind,
            count: *count,
        };
        let fields: Vec<EventField> = shapes.iter().map(field).collect();
        layout_of(&crate::format::text("e", 7, kind, &fields))
    }

    /// Offsets and sizes of the fields in a file `format`, without those of all events.
    fn layout_of(text: &str) -> Vec<(usize, usize)> {
        let number = |line: &str, name: &str| {
            let (_, rest) = line.split_once(name).unwrap();
            rest.split(';').next().unwrap().parse().unwrap()
        };
        let lines = text.lines().filter(|line| line.starts_with("\tfield:"));
        lines.skip(4).map(|line| (number(line, "offset:"), number(line, "size:"))).collect()
    }

    #[test]
    fn a_record_is_laid_out_as_its_format_says() {
        let number = |kind: &str, number| RecordedValue::Number(kind.parse().unwrap(), number);
        let numbers = vec![number("u16", 1), number("u16", 0x1234)];
        let texts = vec![RecordedValue::Text("x".into()), RecordedValue::Fault];
        let args = vec![
            ("a", number("s32", u64::MAX)),
            ("b", RecordedValue::Text("one".into())),
            ("c", RecordedValue::Array(numbers)),
            ("d", RecordedValue::Array(texts)),
            ("e", RecordedValue::Fault),
            ("f", number("symstr", 0x10)),
        ];
        let shapes = [
            ("s32", None),
            ("string", None),
            ("u16", Some(3)),
            ("string", Some(2)),
            ("u8", None),
            ("symstr", None),
        ];
        let taken = taken(event(args), &shapes);
        let [record] = &*records(&taken) else { panic!("one record") };
        assert_eq!(record[..8], [7, 0, 0, 0, 0xa7, 5, 0, 0]);
        let fields = layout(ProbeKind::Kprobe, &taken.shapes);
        let bytes = |index: usize| {
            let (offset, size): (usize, usize) = fields[index];
            &record[offset..offset + size]
        };
        assert_eq!(bytes(0), 0xffff_ffff_8100_0000_u64.to_le_bytes());
        assert_eq!(bytes(1), [0xff; 4]);
        assert_eq!(bytes(3), [1, 0, 0x34, 0x12, 0, 0]);
        assert_eq!(bytes(5), [0]);
        let text = |word: &[u8]| {
            let word = u32::from_le_bytes(word.try_into().unwrap());
            let (offset, length) = ((word & 0xffff) as usize, (word >> 16) as usize);
            std::str::from_utf8(&record[offset..offset + length]).unwrap()
        };
        assert_eq!(text(bytes(2)), "one\0");
        assert_eq!([text(&bytes(4)[..4]), text(&bytes(4)[4..])], ["x\0", "(fault)\0"]);
        assert_eq!(text(bytes(6)), "0x10\0");
        let (end, size) = fields[6];
        assert_eq!(record.len(), end + size + "one\0x\0(fault)\x000x10\0".len());
    }

    /// A synthetic event of these fields, and its record.
    fn made_of(fields: &str, args: Vec<RecordedValue<'_>>) -> (Vec<(usize, usize)>, Vec<Vec<u8>>) {
        let parsed = parse_synthetic(&format!("sy {fields}"));
        let Ok(SyntheticCommand::Define(definition)) = parsed else { panic!("{parsed:?}") };
        let args = args.into_iter().map(|value| ("f", value)).collect();
        let synthetic = Some(&definition);
        let records = records(&TakenEvent { synthetic, ..taken(event(args), &[]) });
        let layout = synthetic::fields(&definition);
        (layout_of(&crate::format::of_synthetic("sy", 7, &layout)), records)
    }

    #[test]
    fn a_synthetic_event_is_laid_out_as_its_format_says() {
        let number = |number| RecordedValue::Number("x64".parse().unwrap(), number);
        let text = |text: &'static str| RecordedValue::Text(text.into());
        let fields = "bool a; s16 b; pid_t c; unsigned long d; char e[4]; char f[]; gfp_t g; char h[]; u8 i; unsigned long[] j";
        let args = vec![
            number(1),
            number(0xfffe),
            number(0xffff_ffff),
            number(u64::MAX - 1),
            text("aéx"),
            text("dynamic"),
            number(0xcc0),
            RecordedValue::Fault,
            RecordedValue::Fault,
            RecordedValue::Array(vec![number(0x10), number(u64::MAX)]),
        ];
        let (layout, records) = made_of(fields, args);
        let [record] = &*records else { panic!("one record") };
        assert_eq!(record[..8], [7, 0, 0, 0, 0xa7, 5, 0, 0]);
        let bytes = |index: usize| {
            let (offset, size): (usize, usize) = layout[index];
            &record[offset..offset + size]
        };
        let expected: [&[u8]; 5] =
            [&[1], &[0xfe, 0xff], &[0xff; 4], &(u64::MAX - 1).to_le_bytes(), "aé\0".as_bytes()];
        assert_eq!([0, 1, 2, 3, 4].map(bytes), expected);
        assert_eq!((bytes(6), bytes(8)), (&[0xc0, 0xc, 0, 0][..], &[0][..]));
        let appended = |word: &[u8]| {
            let word = u64::from_le_bytes(word.try_into().unwrap());
            let (offset, length) = (word & 0xffff, word >> 16);
            let [offset, end] = [offset, offset + length].map(|at| usize::try_from(at).unwrap());
            &record[offset..end]
        };
        assert_eq!([5, 7].map(bytes).map(appended), [b"dynamic\0", b"(fault)\0"]);
        let words = [0x10, u64::MAX].map(u64::to_le_bytes).concat();
        assert_eq!(appended(bytes(9)), words);
        let end = layout[9].0 + 8;
        assert_eq!(record.len(), end + "dynamic\0(fault)\0".len() + words.len());
    }

    #[test]
    fn a_synthetic_event_that_no_page_has_room_for_has_no_record() {
        let of = |texts: usize| {
            let fields: String = (0..texts).map(|n| format!("char t{n}[256];")).collect();
            let args = vec![RecordedValue::Text("x".into()); texts];
            made_of(&fields, args).1.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!((of(15), of(16)), (vec![8 + 15 * 256], vec![]));
    }

    #[test]
    fn returns_back_traces_and_marks_have_records() {
        let mut returned = event(vec![]);
        returned.returned_to = Some(Gva(0x20));
        returned.stack = vec![Gva(0x30), Gva(0x40)];
        let found = records(&taken(returned, &[]));
        let words = |record: &[u8]| -> Vec<u64> {
            let words = record[8..].chunks(8);
            words.map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
        };
        assert_eq!(words(&found[0]), [0xffff_ffff_8100_0000, 0x20]);
        assert_eq!(layout(ProbeKind::Kretprobe, &[]), [(8, 8), (16, 8)]);
        assert_eq!((words(&found[1]), &found[1][..2]), (vec![2, 0x30, 0x40], &[0xfe, 0x7f][..]));
        let mut mark = event(vec![("buf", RecordedValue::Text("hello".into()))]);
        mark.is_mark = true;
        let [record] = &*records(&taken(mark, &[("string", None)])) else { panic!("one record") };
        assert_eq!((&record[..2], &record[16..]), (&[0xff, 0x7f][..], &b"hello\0"[..]));
    }

    #[test]
    fn an_event_whose_number_is_too_large_or_taken_has_no_record() {
        let of = |id| records(&TakenEvent { id, ..taken(event(vec![]), &[]) }).len();
        assert_eq!([1, 32_765, 32_766, 32_767, 32_768].map(of), [1, 1, 0, 0, 1]);
        assert_eq!([65_535, 65_536].map(of), [1, 0]);
    }

    proptest! {
        #[test]
        fn records_fit_into_a_page_and_texts_have_ends(
            texts in prop::collection::vec("[a-zé]{0,3000}", 1..20),
        ) {
            let value = |text: &String| ("t", RecordedValue::Text(text.clone().into()));
            let args = texts.iter().map(value).collect();
            let taken = taken(event(args), &vec![("string", None); texts.len()]);
            let [record] = &*records(&taken) else { panic!("one record") };
            prop_assert!(record.len() <= DATA_MAX);
            let is_cut = texts.iter().map(|text| text.len() + 5).sum::<usize>() > DATA_MAX - 16;
            for (index, text) in texts.iter().enumerate() {
                let place = 16 + 4 * index;
                let word = u32::from_le_bytes(record[place..place + 4].try_into().unwrap());
                let (offset, length) = ((word & 0xffff) as usize, (word >> 16) as usize);
                prop_assert_eq!(record[offset + length - 1], 0);
                let shown = std::str::from_utf8(&record[offset..offset + length - 1]).unwrap();
                prop_assert!(text.starts_with(shown) && (is_cut || text == shown));
            }
        }
    }
}
