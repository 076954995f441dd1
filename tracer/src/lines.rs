//! Events as lines of the files `trace`, `trace_pipe` and `snapshot` (ftrace.rst, "Output format";
//! kprobetrace.rst).

use std::fmt::{self, Write};

use exoprobe_introspect::{SymbolTable, printable};
use exoprobe_probes::definition::ValueType;
use exoprobe_probes::{FAULT, RecordedValue, TraceEvent, TracePage, show_symbol};

/// Head of the file `trace`: how many events it shows, of how many that there were, and the number
/// of vCPUs. The events follow it.
pub(crate) fn header(events: u64, written: u64, vcpus: usize) -> String {
    format!(
        "# tracer: nop\n\
        #\n\
        # entries-in-buffer/entries-written: {events}/{written}   #P:{vcpus}\n\
        #\n\
        #                                _-----=> irqs-off/BH-disabled\n\
        #                               / _----=> need-resched\n\
        #                              | / _---=> hardirq/softirq\n\
        #                              || / _--=> preempt-depth\n\
        #                              ||| / _-=> migrate-disable\n\
        #                              |||| /     delay\n\
        #           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION\n\
        #              | |         |   |||||     |         |\n"
    )
}

/// Lines of a page; runs of lost events are lines `[LOST n EVENTS]`.
pub(crate) fn text(page: &TracePage) -> String {
    part(page, 0, usize::MAX)
}

/// Lines of up to `max` events of a page, without its first `skipped`; empty after the last.
pub(crate) fn part(page: &TracePage, skipped: usize, max: usize) -> String {
    let (mut text, mut place) = (String::new(), 0);
    for (lost, events) in page.runs() {
        if lost > 0 && (skipped..skipped.saturating_add(max)).contains(&place) {
            text.push_str(&format!("[LOST {lost} EVENTS]\n"));
        }
        for event in events {
            if (skipped..skipped.saturating_add(max)).contains(&place) {
                write_event(&event, &mut text).expect("a String takes everything");
            }
            place += 1;
        }
    }
    text
}

/// Appends an event's lines. The five flags are not known here: they are dots.
fn write_event(event: &TraceEvent<'_>, out: &mut String) -> fmt::Result {
    let comm = event.task.map_or_else(|| "<...>".to_owned(), |task| task.name());
    let pid = event.task.map_or(0, |task| task.pid);
    let (seconds, micros) = (event.micros / 1_000_000, event.micros % 1_000_000);
    let task = format!("{:>16}-{pid:<7} [{:03}] .....", printable(&comm), event.vcpu);
    let time = format!("{seconds:>5}.{micros:06}");
    write!(out, "{task} {time}: {}: (", event.name)?;
    let symbols = event.symbols;
    match event.returned_to {
        None => out.push_str(&show_symbol(symbols, event.at.0)),
        Some(to) => {
            let function = symbols.and_then(|symbols| symbols.resolve(event.at));
            write!(out, "{} <- ", show_symbol(symbols, to.0))?;
            match function {
                Some(found) => out.push_str(found.name),
                None => write!(out, "{}", event.at)?,
            }
        }
    }
    out.push(')');
    for (name, value) in &event.args {
        write!(out, " {name}=")?;
        write_value(value, symbols, out)?;
    }
    out.push('\n');
    if !event.stack.is_empty() {
        writeln!(out, "{task} {time}: <stack trace>")?;
    }
    for address in &event.stack {
        match symbols.and_then(|symbols| symbols.resolve(*address)) {
            Some(found) => writeln!(out, " => {}", found.name)?,
            None => writeln!(out, " => {address}")?,
        }
    }
    Ok(())
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
        write_event(event, &mut text).unwrap();
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
}
