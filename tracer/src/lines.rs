//! Events as lines of the files `trace`, `trace_pipe` and `snapshot` (ftrace.rst, "Output format";
//! kprobetrace.rst).

use std::fmt::{self, Write};

use exoprobe_introspect::{SymbolTable, printable};
use exoprobe_probes::definition::{ValueType, Width};
use exoprobe_probes::{FAULT, RecordedValue, TraceEvent, TracePage, show_function, show_symbol};

use crate::options::{Options, TraceOption};

/// Name of the function that shows texts of `trace_marker`, in the kernel's tracer.
const MARK: &str = "tracing_mark_write";

/// Head of the file `trace`: how many events it shows, of how many that there were, and the number
/// of vCPUs. The events follow it.
pub(crate) fn header(events: u64, written: u64, vcpus: usize, options: Options) -> String {
    let begin = "# tracer: nop\n#\n";
    if !options.has(TraceOption::ContextInfo) {
        return begin.to_owned();
    }
    let columns = if options.has(TraceOption::IrqInfo) {
        "#                                _-----=> irqs-off/BH-disabled\n\
        #                               / _----=> need-resched\n\
        #                              | / _---=> hardirq/softirq\n\
        #                              || / _--=> preempt-depth\n\
        #                              ||| / _-=> migrate-disable\n\
        #                              |||| /     delay\n\
        #           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION\n\
        #              | |         |   |||||     |         |\n"
    } else {
        "#           TASK-PID     CPU#     TIMESTAMP  FUNCTION\n\
        #              | |         |         |         |\n"
    };
    let counts = format!("{events}/{written}   #P:{vcpus}");
    format!("{begin}# entries-in-buffer/entries-written: {counts}\n#\n{columns}")
}

/// Lines of a page; runs of lost events are lines `[LOST n EVENTS]`.
pub(crate) fn text(page: &TracePage, options: Options) -> String {
    part(page, (0, usize::MAX), options)
}

/// Lines of up to `max` events of a page, without its first `skipped`; empty after the last.
pub(crate) fn part(page: &TracePage, (skipped, max): (usize, usize), options: Options) -> String {
    let (mut text, mut place) = (String::new(), 0);
    for (lost, events) in page.runs() {
        if lost > 0 && (skipped..skipped.saturating_add(max)).contains(&place) {
            text.push_str(&format!("[LOST {lost} EVENTS]\n"));
        }
        for event in events {
            if (skipped..skipped.saturating_add(max)).contains(&place) {
                write_event(&event, options, &mut text).expect("a String takes everything");
            }
            place += 1;
        }
    }
    text
}

/// The task, the CPU and the time, as far as they are shown. The five flags are not known here:
/// they are dots.
fn context(event: &TraceEvent<'_>, options: Options) -> String {
    if !options.has(TraceOption::ContextInfo) {
        return String::new();
    }
    let comm = event.task.map_or_else(|| "<...>".to_owned(), |task| task.name());
    let pid = event.task.map_or(0, |task| task.pid);
    let (seconds, micros) = (event.micros / 1_000_000, event.micros % 1_000_000);
    let flags = if options.has(TraceOption::IrqInfo) { "....." } else { "" };
    let task = format!("{:>16}-{pid:<7} [{:03}]", printable(&comm), event.vcpu);
    format!("{task} {flags} {seconds:>5}.{micros:06}: ")
}

/// Appends an event's lines.
fn write_event(event: &TraceEvent<'_>, options: Options, out: &mut String) -> fmt::Result {
    let context = context(event, options);
    if let Some((_, RecordedValue::Text(text))) = event.args.first().filter(|_| event.is_mark) {
        return writeln!(out, "{context}{MARK}: {}", printable(text));
    }
    if event.is_synthetic {
        write!(out, "{context}{}:", event.name)?;
        let mut between = " ";
        for (name, value) in &event.args {
            write!(out, "{between}{name}=")?;
            write_made(value, event.symbols, out)?;
            // As in the kernel, a back-trace ends its own last line.
            between = if matches!(value, RecordedValue::Array(_)) { "" } else { " " };
        }
        return writeln!(out);
    }
    write!(out, "{context}{}: (", event.name)?;
    let symbols = event.symbols;
    let address = |at: u64| match options.has(TraceOption::SymAddr) {
        true => format!(" <{at:016x}>"),
        false => String::new(),
    };
    if let Some(to) = event.returned_to {
        write!(out, "{}{} <- ", show_symbol(symbols, to.0), address(to.0))?;
        match symbols.and_then(|symbols| symbols.resolve(event.at)) {
            Some(found) => out.push_str(found.name),
            None => write!(out, "{}", event.at)?,
        }
    } else {
        out.push_str(&show_symbol(symbols, event.at.0));
    }
    write!(out, "{})", address(event.at.0))?;
    for (name, value) in &event.args {
        write!(out, " {name}=")?;
        write_value(value, symbols, out)?;
    }
    out.push('\n');
    if !event.stack.is_empty() {
        writeln!(out, "{context}<stack trace>")?;
    }
    for at in &event.stack {
        let shown = match options.has(TraceOption::SymOffset) {
            true => show_symbol(symbols, at.0),
            false => show_function(symbols, at.0),
        };
        writeln!(out, " => {shown}{}", address(at.0))?;
    }
    Ok(())
}

/// Writes a value of a synthetic event. As in the kernel, numbers of 8 and 16 bits have no sign.
fn write_made(
    value: &RecordedValue<'_>,
    symbols: Option<&SymbolTable>,
    out: &mut String,
) -> fmt::Result {
    match value {
        RecordedValue::Number(ValueType::Signed(width), number) => match width {
            Width::Byte => write!(out, "{}", number & 0xff),
            Width::Word => write!(out, "{}", number & 0xffff),
            Width::Double | Width::Quad => write!(out, "{}", number.cast_signed()),
        },
        RecordedValue::Number(ValueType::Hex(_), number) => write!(out, "{number:x}"),
        RecordedValue::Number(_, number) => write!(out, "{number}"),
        RecordedValue::Text(text) => out.write_str(&printable(text)),
        RecordedValue::Fault => out.write_str(FAULT),
        RecordedValue::Array(frames) => {
            out.write_str("STACK:\n")?;
            frames.iter().try_for_each(|frame| match frame {
                RecordedValue::Number(_, at) => writeln!(out, "=> {}", show_symbol(symbols, *at)),
                _ => Ok(()),
            })
        }
    }
}

fn write_value(
    value: &RecordedValue<'_>,
    symbols: Option<&SymbolTable>,
    out: &mut String,
) -> fmt::Result {
    match value {
        RecordedValue::Fault => out.write_str(FAULT),
        RecordedValue::Text(text) => write!(out, "\"{}\"", printable(text)),
        RecordedValue::Array(all) => {
            for (index, one) in all.iter().enumerate() {
                out.write_str(if index == 0 { "{" } else { "," })?;
                write_value(one, symbols, out)?;
            }
            out.write_str("}")
        }
        RecordedValue::Number(kind, number) => match kind {
            ValueType::Char => {
                let byte = u8::try_from(number & 0xff).expect("8 bits");
                write!(out, "'{}'", printable(&char::from(byte).to_string()))
            }
            ValueType::Unsigned(_) | ValueType::Bits(_) => write!(out, "{number}"),
            ValueType::Signed(_) => write!(out, "{}", number.cast_signed()),
            ValueType::Symbol => out.write_str(&show_symbol(symbols, *number)),
            ValueType::SymbolText => write!(out, "\"{}\"", show_symbol(symbols, *number)),
            ValueType::Hex(_) | ValueType::Text | ValueType::UserText => write!(out, "{number:#x}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use exoprobe_guest::Gva;
    use exoprobe_introspect::{TaskId, printable_lines};
    use exoprobe_probes::definition::{Bits, Width};

    use super::*;

    const MAP: &str = "ffffffff81000000 T _stext\nffffffff81000000 T do_sys_open\n\
        ffffffff810000d6 T sys_open\nffffffff81000100 T _etext\n";
    const PREFIX: &str = "            bash-1447    [001] .....     0.000000:";

    fn event<'a>(
        name: &'a str,
        symbols: &'a SymbolTable,
        args: Vec<(&'a str, RecordedValue<'a>)>,
    ) -> TraceEvent<'a> {
        let task = TaskId { pid: 1447, comm: *b"bash\0\0\0\0\0\0\0\0\0\0\0\0" };
        TraceEvent {
            name,
            is_mark: false,
            is_synthetic: false,
            vcpu: 1,
            task: Some(task),
            micros: 0,
            at: Gva(0xffff_ffff_8100_0000),
            returned_to: None,
            symbols: Some(symbols),
            args,
            stack: Vec::new(),
        }
    }

    fn line(event: &TraceEvent<'_>) -> String {
        let mut text = String::new();
        write_event(event, Options::default(), &mut text).unwrap();
        text
    }

    #[test]
    fn a_line_of_the_tracer_cannot_steer_a_terminal() {
        let hostile = "\u{1b}[2J\u{9b}\n\u{202e}\u{200b}\u{e0041}";
        let symbols = SymbolTable::from_system_map(MAP).unwrap();
        let value = RecordedValue::Text(hostile.into());
        let mut event = event("my", &symbols, vec![("c", value)]);
        let comm = *b"\x1b\xc2\x9b\xe2\x80\xae\n\0\0\0\0\0\0\0\0\0";
        event.task = Some(TaskId { pid: 1, comm });
        let text = line(&event);
        assert_eq!(printable_lines(&text), text);
        assert_eq!(text.lines().count(), 1, "{text:?}");
        assert!(text.contains("\\u{1b}[2J\\u{9b}\\n\\u{202e}"), "{text:?}");
    }

    #[test]
    fn lines_are_those_of_the_tracer() {
        let symbols = SymbolTable::from_system_map(MAP).unwrap();
        let number = RecordedValue::Number;
        let bits: ValueType = "b4@4/8".parse().unwrap();
        assert!(matches!(bits, ValueType::Bits(Bits { .. })));
        let numbers = [1, 2, 0xffff].map(|n| number(ValueType::Hex(Width::Word), n));
        let texts = [RecordedValue::Text("one\ntwo".into()), RecordedValue::Fault];
        let args = vec![
            ("a", number(ValueType::Signed(Width::Double), u64::MAX)),
            ("b", RecordedValue::Fault),
            ("c", number(ValueType::Char, 0x41)),
            ("d", number(ValueType::Symbol, 0xffff_ffff_8100_00d9)),
            ("e", number(ValueType::Unsigned(Width::Byte), 65)),
            ("f", RecordedValue::Text("bash".into())),
            ("h", number(bits, 4)),
            ("i", RecordedValue::Array(numbers.into())),
            ("j", RecordedValue::Array(texts.into())),
        ];
        let values = "a=-1 b=(fault) c='A' d=sys_open+0x3/0x2a e=65 f=\"bash\" h=4 \
            i={0x1,0x2,0xffff} j={\"one\\ntwo\",(fault)}";
        assert_eq!(
            line(&event("my", &symbols, args)),
            format!("{PREFIX} my: (do_sys_open+0x0/0xd6) {values}\n")
        );
    }

    #[test]
    fn returns_and_back_traces_have_names_of_functions() {
        let symbols = SymbolTable::from_system_map(MAP).unwrap();
        let arg = RecordedValue::Number(ValueType::default(), 0x41);
        let mut event = event("ret", &symbols, vec![("rv", arg)]);
        event.returned_to = Some(Gva(0xffff_ffff_8100_00f1));
        event.stack = vec![event.at, Gva(0x10)];
        let call = "ret: (sys_open+0x1b/0x2a <- do_sys_open) rv=0x41";
        let stack = format!("{PREFIX} <stack trace>\n => do_sys_open\n => 0x10\n");
        assert_eq!(line(&event), format!("{PREFIX} {call}\n{stack}"));
    }

    /// Lines of Linux 6.12's own tracer.
    #[test]
    fn a_back_trace_of_a_synthetic_event_has_lines_of_its_own() {
        let symbols = SymbolTable::from_system_map(MAP).unwrap();
        let frame = |at| RecordedValue::Number(ValueType::Symbol, at);
        let stack = || RecordedValue::Array(vec![frame(0xffff_ffff_8100_00d9), frame(0x10)]);
        let number = || RecordedValue::Number(ValueType::Unsigned(Width::Quad), 1);
        let shown = |args| {
            let mut event = event("sy", &symbols, args);
            event.is_synthetic = true;
            line(&event)
        };
        let frames = "stack=STACK:\n=> sys_open+0x3/0x2a\n=> 0x10\n";
        let first = shown(vec![("stack", stack()), ("v", number()), ("w", number())]);
        assert_eq!(first, format!("{PREFIX} sy: {frames}v=1 w=1\n"));
        let last = shown(vec![("v", number()), ("stack", stack())]);
        assert_eq!(last, format!("{PREFIX} sy: v=1 {frames}\n"));
    }

    #[test]
    fn a_mark_is_a_text_after_the_context() {
        let symbols = SymbolTable::from_system_map(MAP).unwrap();
        let text = RecordedValue::Text("a\u{1b}b".into());
        let mut event = event("print", &symbols, vec![("buf", text)]);
        event.is_mark = true;
        assert_eq!(line(&event), format!("{PREFIX} tracing_mark_write: a\\u{{1b}}b\n"));
    }

    #[test]
    fn options_choose_what_a_line_shows() {
        let symbols = SymbolTable::from_system_map(MAP).unwrap();
        let mut event = event("my", &symbols, vec![]);
        event.stack = vec![event.at];
        let text = |option, on| {
            let mut text = String::new();
            write_event(&event, Options::default().with(option, on), &mut text).unwrap();
            text
        };
        let lines = "my: (do_sys_open+0x0/0xd6)\n<stack trace>\n => do_sys_open\n";
        assert_eq!(text(TraceOption::ContextInfo, false), lines);
        let flagless = text(TraceOption::IrqInfo, false);
        let begin = "            bash-1447    [001]      0.000000: my: (";
        assert!(flagless.starts_with(begin), "{flagless}");
        let offset = text(TraceOption::SymOffset, true);
        assert!(offset.ends_with(" => do_sys_open+0x0/0xd6\n"), "{offset}");
        let addresses = text(TraceOption::SymAddr, true);
        assert!(addresses.contains("(do_sys_open+0x0/0xd6 <ffffffff81000000>)\n"), "{addresses}");
        assert!(addresses.ends_with(" => do_sys_open <ffffffff81000000>\n"), "{addresses}");
        let plain = Options::default().with(TraceOption::ContextInfo, false);
        assert_eq!(header(1, 2, 3, plain), "# tracer: nop\n#\n");
    }
}
