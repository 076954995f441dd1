//! Text for people.

use comfy_table::{CellAlignment, Table, presets};
pub(super) use exoprobe_introspect::{printable, printable_json, printable_lines};
use serde_json::Value;

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
    fn the_caret_stands_under_its_column() {
        assert_eq!(caret("p:x f", 4), "  p:x f\n      ^");
        assert_eq!(caret("é f", 3), "  é f\n    ^", "positions count bytes");
        assert_eq!(caret("a\tb", 2), "  a\tb\n   \t^");
        assert_eq!(caret("ab", 2), "  ab\n    ^", "after the end");
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
