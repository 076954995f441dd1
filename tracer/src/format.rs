//! The file `format` of an event: its fields in a record, and how they are printed (events.rst,
//! "Event formats").

use std::fmt::Write;

use exoprobe_probes::definition::{ValueType, Width};
use exoprobe_probes::{EventField, ProbeKind};

use crate::node::FtraceEvent;

/// Number of the event of texts of `trace_marker`. KernelShark reads numbers with a sign: a larger
/// one is no event there.
pub(crate) const MARK_ID: u16 = 0x7fff;
/// Number of the event of back-traces.
pub(crate) const STACK_ID: u16 = 0x7ffe;

/// Where the fields that every event has end.
const COMMON: usize = 8;
/// Bytes of an address.
const WORD: usize = 8;

/// The event's number.
pub(crate) fn ftrace_id(event: FtraceEvent) -> u16 {
    match event {
        FtraceEvent::Print => MARK_ID,
        FtraceEvent::KernelStack => STACK_ID,
    }
}

/// The text of the file of an event that is no probe's.
pub(crate) fn ftrace_text(event: FtraceEvent) -> String {
    let mut layout = Layout::common();
    let print = match event {
        FtraceEvent::Print => {
            layout.field("unsigned long ip", WORD, false);
            layout.field("char buf[]", 0, false);
            r#""tracing_mark_write: %s", REC->buf"#
        }
        FtraceEvent::KernelStack => {
            layout.field("int size", 4, true);
            layout.end += 4;
            layout.field("unsigned long caller[]", 0, false);
            r#""%d frames", REC->size"#
        }
    };
    let (name, id) = (event.name(), ftrace_id(event));
    layout.file(name, id.into(), print)
}

/// The text of the file.
pub(crate) fn text(name: &str, id: u32, kind: ProbeKind, fields: &[EventField]) -> String {
    let mut layout = Layout::common();
    let (shown, values): (&str, &[&str]) = match kind {
        ProbeKind::Kprobe => ("(%lx)", &["__probe_ip"]),
        ProbeKind::Kretprobe => ("(%lx <- %lx)", &["__probe_func", "__probe_ret_ip"]),
    };
    for value in values {
        layout.field(&format!("unsigned long {value}"), WORD, false);
    }
    let (mut formats, mut records) = (shown.to_owned(), String::new());
    for value in values {
        write!(records, ", REC->{value}").expect("a String takes everything");
    }
    for field in fields {
        layout.value(field);
        let (format, record) = print(field);
        write!(formats, " {}={format}", field.name)
            .and_then(|()| records.write_str(&record))
            .expect("a String takes everything");
    }
    layout.file(name, id, &format!("\"{formats}\"{records}"))
}

/// The text of the file of a synthetic event.
pub(crate) fn of_synthetic(name: &str, id: u32, fields: &[FormatField<'_>]) -> String {
    let mut layout = Layout::common();
    let (mut formats, mut records) = (Vec::new(), String::new());
    for field in fields {
        layout.field(&field.declaration, field.size, field.is_signed);
        layout.end += field.room - field.size;
        formats.push(format!("{}={}", field.name, field.print));
        let record = match field.read {
            Some(read) => format!(", {read}({})", field.name),
            None => format!(", REC->{}", field.name),
        };
        records.push_str(&record);
    }
    let formats = formats.join(", ");
    layout.file(name, id, &format!("\"{formats}\"{records}"))
}

/// A field of a synthetic event.
pub(crate) struct FormatField<'a> {
    /// Type and name.
    pub(crate) declaration: String,
    pub(crate) name: &'a str,
    pub(crate) size: usize,
    pub(crate) is_signed: bool,
    /// Bytes of a record that it takes.
    pub(crate) room: usize,
    /// How it is printed.
    pub(crate) print: &'static str,
    /// Reads it where it is elsewhere in the record.
    pub(crate) read: Option<&'static str>,
}

/// Fields, in order.
#[derive(Default)]
struct Layout {
    text: String,
    end: usize,
}

impl Layout {
    /// The fields of every event.
    fn common() -> Self {
        let mut layout = Self::default();
        for (ty, name, size, signed) in [
            ("unsigned short", "common_type", 2, false),
            ("unsigned char", "common_flags", 1, false),
            ("unsigned char", "common_preempt_count", 1, false),
            ("int", "common_pid", 4, true),
        ] {
            layout.field(&format!("{ty} {name}"), size, signed);
        }
        debug_assert_eq!(layout.end, COMMON, "the fields of every event");
        layout.text.push('\n');
        layout
    }

    /// The text of the file of an event.
    fn file(&self, name: &str, id: u32, print: &str) -> String {
        format!("name: {name}\nID: {id}\nformat:\n{}\nprint fmt: {print}\n", self.text)
    }

    fn field(&mut self, declaration: &str, size: usize, signed: bool) {
        let (offset, signed) = (self.end, u8::from(signed));
        writeln!(
            self.text,
            "\tfield:{declaration};\toffset:{offset};\tsize:{size};\tsigned:{signed};"
        )
        .expect("a String takes everything");
        self.end += size;
    }

    /// Declares a value as the kernel does: an array of texts with its size, other arrays without.
    fn value(&mut self, EventField { name, kind, count }: &EventField) {
        let ty = type_name(*kind);
        let declaration = match count {
            Some(count) if kind.shows_text() => format!("{ty}[{count}] {name}"),
            Some(_) => format!("{ty} {name}[]"),
            None => format!("{ty} {name}"),
        };
        let size = kind.record_bytes() * usize::from(count.unwrap_or(1));
        self.field(&declaration, size, kind.is_signed() || kind.shows_text());
    }
}

fn type_name(kind: ValueType) -> String {
    match kind {
        ValueType::Signed(width) => format!("s{}", width.bits()),
        ValueType::Char => "u8".to_owned(),
        ValueType::Text | ValueType::UserText | ValueType::SymbolText => {
            "__data_loc char[]".to_owned()
        }
        ValueType::Unsigned(_) | ValueType::Hex(_) | ValueType::Bits(_) | ValueType::Symbol => {
            format!("u{}", kind.width().bits())
        }
    }
}

/// How a value is printed, and from what.
fn print(EventField { name, kind, count }: &EventField) -> (String, String) {
    let long = |short: &str, long: &str| match kind.width() {
        Width::Quad => long.to_owned(),
        _ => short.to_owned(),
    };
    let format = match kind {
        ValueType::Unsigned(_) | ValueType::Bits(_) => long("%u", "%Lu"),
        ValueType::Signed(_) => long("%d", "%Ld"),
        ValueType::Hex(_) => long("0x%x", "0x%Lx"),
        ValueType::Char => "'%c'".to_owned(),
        ValueType::Symbol => "%pS".to_owned(),
        ValueType::Text | ValueType::UserText | ValueType::SymbolText => "\\\"%s\\\"".to_owned(),
    };
    let record = |place: &str| match kind.shows_text() {
        true => format!(", __get_str({place})"),
        false => format!(", REC->{place}"),
    };
    let Some(count) = count else { return (format, record(name)) };
    let formats = vec![format; usize::from(*count)].join(",");
    let records = (0..*count).map(|index| record(&format!("{name}[{index}]")));
    (format!("{{{formats}}}"), records.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, kind: &str, count: Option<u8>) -> EventField {
        EventField { name: name.to_owned(), kind: kind.parse().expect("a type"), count }
    }

    #[test]
    fn fields_lie_behind_one_another() {
        let fields = [
            field("a", "x64", None),
            field("b", "s32", None),
            field("c", "string", None),
            field("d", "u8", Some(3)),
            field("e", "symbol", None),
        ];
        let expected = "name: myprobe\nID: 7\nformat:\n\
            \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
            \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
            \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
            \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
            \tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n\
            \tfield:u64 a;\toffset:16;\tsize:8;\tsigned:0;\n\
            \tfield:s32 b;\toffset:24;\tsize:4;\tsigned:1;\n\
            \tfield:__data_loc char[] c;\toffset:28;\tsize:4;\tsigned:1;\n\
            \tfield:u8 d[];\toffset:32;\tsize:3;\tsigned:0;\n\
            \tfield:u64 e;\toffset:35;\tsize:8;\tsigned:0;\n\n\
            print fmt: \"(%lx) a=0x%Lx b=%d c=\\\"%s\\\" d={%u,%u,%u} e=%pS\", REC->__probe_ip, REC->a, REC->b, \
            __get_str(c), REC->d[0], REC->d[1], REC->d[2], REC->e\n";
        assert_eq!(text("myprobe", 7, ProbeKind::Kprobe, &fields), expected);
        let returns = text("r", 8, ProbeKind::Kretprobe, &[]);
        assert!(
            returns.ends_with(
                "\tfield:unsigned long __probe_func;\toffset:8;\tsize:8;\tsigned:0;\n\
            \tfield:unsigned long __probe_ret_ip;\toffset:16;\tsize:8;\tsigned:0;\n\n\
            print fmt: \"(%lx <- %lx)\", REC->__probe_func, REC->__probe_ret_ip\n"
            ),
            "{returns}"
        );
    }
}
