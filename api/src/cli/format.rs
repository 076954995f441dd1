//! Text for people.

use comfy_table::{CellAlignment, Table, presets};
use serde_json::Value;

use crate::client::EventRecord;

/// `text` on one line and with no control characters: the guest has a say in some of it, and must
/// not have one in what the terminal does.
pub(super) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// A line and a caret under the column `position`, in bytes from 0.
pub(super) fn caret(line: &str, position: usize) -> String {
    let before = line.char_indices().take_while(|(at, _)| *at < position);
    // A tab is as wide in both lines when it is one in both.
    let padding: String = before.map(|(_, c)| if c == '\t' { '\t' } else { ' ' }).collect();
    format!("  {line}\n  {padding}^")
}

/// A column of a table.
#[derive(Clone, Copy)]
pub(super) enum Column {
    /// A name, to the left.
    Text(&'static str),
    /// A number, to the right.
    Number(&'static str),
}

/// A table without lines, its columns two blanks apart.
pub(super) fn table(columns: &[Column], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().map(|column| match column {
        Column::Text(name) | Column::Number(name) => *name,
    }));
    for row in rows {
        table.add_row(row.iter().map(|cell| printable(cell)));
    }
    for (column, kind) in table.column_iter_mut().zip(columns) {
        column.set_padding((0, 2));
        if matches!(kind, Column::Number(_)) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// An event as ftrace's `trace` shows it, its back-trace on lines of their own.
pub(super) fn event_text(event: &EventRecord) -> String {
    let EventRecord { vcpu, time, event: name, symbol_name, offset, addr, .. } = event;
    let hit = match &event.ret_addr {
        Some(ret_addr) => format!("{ret_addr} <- {}", symbol_name.as_ref().unwrap_or(addr)),
        None => place(symbol_name.as_deref(), *offset, addr),
    };
    let comm = event.comm.as_deref().unwrap_or("<...>");
    let pid = event.pid.map_or("?".to_owned(), |pid| pid.to_string());
    let mut line = format!("{comm:>16}-{pid:<7} [{vcpu:03}] {time:>13.6}: {name}: ({hit})");
    for (name, value) in &event.args {
        line.push_str(&format!(" {name}={}", argument(value)));
    }
    let mut text = printable(&line);
    for frame in &event.stack {
        let place = place(frame.symbol_name.as_deref(), frame.offset, &frame.addr);
        text.push_str(&format!("\n        => {}", printable(&place)));
    }
    text
}

/// An argument's value, text in quotes as ftrace shows it. In JSON numbers in hexadecimal digits are text, too.
fn argument(value: &Value) -> String {
    match value {
        Value::String(text) if text != "(fault)" && !is_hexadecimal(text) => format!("\"{text}\""),
        other => scalar(other),
    }
}

fn is_hexadecimal(text: &str) -> bool {
    text.strip_prefix("0x").is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn place(symbol: Option<&str>, offset: u64, addr: &str) -> String {
    match symbol {
        Some(symbol) => format!("{symbol}+{offset:#x}"),
        None => addr.to_owned(),
    }
}

/// A value in a line: text without its quotes.
pub(super) fn scalar(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The members of a JSON object, one a line, those of inner objects below their name.
pub(super) fn members(value: &Value) -> String {
    let mut lines = Vec::new();
    collect(value, 0, &mut lines);
    let name_width = |(depth, name, _): &(usize, String, String)| depth * 2 + name.len();
    let width = lines.iter().map(name_width).max().unwrap_or(0);
    let mut text = String::new();
    for (depth, name, value) in lines {
        let line = format!(
            "{:indent$}{name:<rest$}  {value}",
            "",
            indent = depth * 2,
            rest = width - depth * 2
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn collect(value: &Value, depth: usize, lines: &mut Vec<(usize, String, String)>) {
    let Value::Object(object) = value else { return };
    for (name, value) in object {
        let inner = matches!(value, Value::Object(_));
        let shown = if inner { String::new() } else { printable(&scalar(value)) };
        lines.push((depth, printable(name), shown));
        collect(value, depth + 1, lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_cannot_write_to_the_terminal() {
        assert_eq!(printable("a\x1b[31m\nb\u{9b}é"), "a\\u{1b}[31m\\nb\\u{9b}é");
    }

    #[test]
    fn the_caret_stands_under_its_column() {
        assert_eq!(caret("p:x f", 4), "  p:x f\n      ^");
        assert_eq!(caret("é f", 3), "  é f\n    ^", "positions count bytes");
        assert_eq!(caret("a\tb", 2), "  a\tb\n   \t^");
        assert_eq!(caret("ab", 2), "  ab\n    ^", "behind the end");
        assert_eq!(caret("ab", 99), "  ab\n    ^");
    }

    #[test]
    fn tables_have_columns_and_no_trailing_blanks() {
        let columns = [Column::Text("NAME"), Column::Number("N"), Column::Text("Z")];
        let rows = [["a", "1", ""], ["long_one", "1234", "z"]];
        let text = table(&columns, rows.iter().map(|row| row.map(str::to_owned).to_vec()));
        assert_eq!(text, "NAME         N  Z\na            1\nlong_one  1234  z");
    }

    #[test]
    fn events_look_like_ftrace() {
        let mut event: EventRecord = serde_json::from_str(
            r#"{"seq":7,"time":12.5,"vcpu":1,"pid":1,"comm":"init","group":"kprobes","event":"getpid",
                "symbol_name":"__x64_sys_getpid","offset":4,"addr":"0xffffffff81000004",
                "args":{"arg1":"0x1f","b":-3,"c":"(fault)","d":"a\u001bb"}}"#,
        )
        .unwrap();
        assert_eq!(
            event_text(&event),
            "            init-1       [001]     12.500000: getpid: (__x64_sys_getpid+0x4) arg1=0x1f b=-3 c=(fault) d=\"a\\u{1b}b\""
        );
        event.symbol_name = None;
        event.args.clear();
        (event.pid, event.comm) = (None, None);
        assert_eq!(
            event_text(&event),
            "           <...>-?       [001]     12.500000: getpid: (0xffffffff81000004)"
        );
    }

    #[test]
    fn returns_tell_where_to_and_back_traces_follow() {
        let mut event: EventRecord = serde_json::from_str(
            r#"{"seq":7,"time":12.5,"vcpu":1,"group":"kprobes","event":"ret",
                "symbol_name":"vfs_read","offset":0,"addr":"0xffffffff81000000",
                "ret_addr":"0xffffffff81000104","args":{"arg1":"0x1"},
                "stack":[{"addr":"0xffffffff81000000","symbol_name":"vfs_read","offset":0},
                    {"addr":"0xffffffffc0000000","symbol_name":null,"offset":0}]}"#,
        )
        .unwrap();
        assert_eq!(
            event_text(&event),
            "           <...>-?       [001]     12.500000: ret: (0xffffffff81000104 <- vfs_read) arg1=0x1\n        \
             => vfs_read+0x0\n        => 0xffffffffc0000000"
        );
        event.stack.clear();
        event.symbol_name = None;
        assert_eq!(
            event_text(&event),
            "           <...>-?       [001]     12.500000: ret: (0xffffffff81000104 <- 0xffffffff81000000) arg1=0x1"
        );
    }

    #[test]
    fn objects_are_shown_member_by_member() {
        let value = serde_json::json!({"state": "stopped", "stopped": {"reason": "panic\x1b",
            "regs": {"rip": "0x1"}}, "exits": 5, "kernel": null});
        assert_eq!(
            members(&value),
            "state     stopped\nstopped\n  reason  panic\\u{1b}\n  regs\n    rip   0x1\n\
             exits     5\nkernel    -\n"
        );
    }
}
