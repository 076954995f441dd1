//! Records of events in the kernel's ring buffer, laid out as their files `format` say.

use exoprobe_introspect::SymbolTable;
use exoprobe_probes::definition::ValueType;
use exoprobe_probes::{FAULT, RecordedValue, TakenEvent, TraceEvent, show_symbol};

use crate::pages::DATA_MAX;

/// Number of the event of texts of `trace_marker`. KernelShark reads numbers with a sign: a larger
/// one is no event there.
pub(crate) const MARK_ID: u16 = 0x7fff;
/// Number of the event of back-traces.
pub(crate) const STACK_ID: u16 = 0x7ffe;

/// The records of an event: its own, and one of its back-trace. None if its number does not fit
/// into a record or is one of the two above, and none of a synthetic event.
pub(crate) fn records(taken: &TakenEvent<'_>) -> Vec<Vec<u8>> {
    let TakenEvent { event, id, shapes, .. } = taken;
    if let Some((_, RecordedValue::Text(text))) = event.args.first().filter(|_| event.is_mark) {
        return vec![mark(event, text)];
    }
    let is_free = |id: &u16| ![MARK_ID, STACK_ID].contains(id);
    let Some(id) = u16::try_from(*id).ok().filter(is_free) else { return Vec::new() };
    if event.is_synthetic {
        return Vec::new();
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
                texts.push((record.len(), text_of(value, event.symbols)));
                put(&mut record, 0, kind.record_bytes());
            } else {
                let number = if let RecordedValue::Number(_, number) = value { *number } else { 0 };
                put(&mut record, number, kind.record_bytes());
            }
        }
    }
    append_texts(&mut record, &texts);
    record
}

fn text_of(value: &RecordedValue<'_>, symbols: Option<&SymbolTable>) -> String {
    match value {
        RecordedValue::Text(text) => text.as_ref().to_owned(),
        RecordedValue::Number(_, number) => show_symbol(symbols, *number),
        RecordedValue::Fault | RecordedValue::Array(_) => FAULT.to_owned(),
    }
}

/// Appends texts, and writes at their places where they are: the length in the upper half of a
/// word, and the offset. What no page has room for is cut off.
fn append_texts(record: &mut Vec<u8>, texts: &[(usize, String)]) {
    for (index, (place, text)) in texts.iter().enumerate() {
        let offset = record.len();
        // Each text that follows has its end at least.
        let room = DATA_MAX.saturating_sub(offset + texts.len() - index);
        let mut length = text.len().min(room);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        record.extend_from_slice(&text.as_bytes()[..length]);
        record.push(0);
        let [offset, length] =
            [offset, length + 1].map(|size| u32::try_from(size).expect("at most a page"));
        let word = (length << 16 | offset).to_le_bytes();
        record[*place..*place + word.len()].copy_from_slice(&word);
    }
}

#[cfg(test)]
mod tests {
    use exoprobe_guest::Gva;
    use exoprobe_introspect::TaskId;
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
        TakenEvent { event, id: 7, nanos: 0, shapes: shapes.iter().map(shape).collect() }
    }

    /// Offsets and sizes of the fields in a file `format`, without those of all events.
    fn layout(kind: ProbeKind, shapes: &[(ValueType, Option<u8>)]) -> Vec<(usize, usize)> {
        let field = |(kind, count): &(ValueType, Option<u8>)| EventField {
            name: "f".to_owned(),
            kind: *kind,
            count: *count,
        };
        let fields: Vec<EventField> = shapes.iter().map(field).collect();
        let text = crate::format::text("e", 7, kind, &fields);
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
