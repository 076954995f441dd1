//! The counts as a table.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};
use exoprobe_tests::counts::{
    BY_INT3, FILTERED, HostKind, OPTIMIZED, OWN_EVENT, Report, RowCounts,
};

/// A report as text: the table, and below it what a reader of the numbers must know.
pub(crate) fn text(report: &Report) -> String {
    let HostKind { kvm, kernel, .. } = &report.host;
    let (turns, rounds) = (report.turns, report.rounds);
    let mut text = format!(
        "Per hit, on {kvm}, Linux {kernel}: {} hits less {turns}, of each the least of {rounds} rounds.\n\n",
        2 * turns
    );
    text.push_str(&table(&report.rows));
    text.push('\n');
    for note in notes(report) {
        writeln!(text, "\n{note}").expect("a string takes all");
    }
    text
}

fn table(rows: &[RowCounts]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let names = rows.first().map(cells).unwrap_or_default();
    let names = names.into_iter().map(|(name, _)| name.replacen(' ', "\n", 1));
    table.set_header(["row".to_owned()].into_iter().chain(names));
    for row in rows {
        let counts = cells(row).into_iter().map(|(_, text)| text);
        table.add_row([row.name.clone()].into_iter().chain(counts));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index > 1 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

fn notes(report: &Report) -> Vec<String> {
    let missing = report.missing.iter();
    let has_instructions = report.rows.iter().any(|row| row.all_instructions.is_some());
    let mut notes: Vec<String> =
        missing.map(|(column, reason)| format!("No {column}: {reason}.")).collect();
    if report.rows.iter().any(|row| row.guest_instructions == Some(-1.0)) {
        notes.push(
            "-1 guest instructions: the VMM does the probed instruction's work, and the guest, \
             which runs it without the probe, does not run it."
                .to_owned(),
        );
    }
    notes.extend(ratios(report));
    notes.extend(report.ratio(FILTERED, BY_INT3).filter(|_| has_instructions).map(|times| {
        format!(
            "With filters of system calls, `{BY_INT3}` takes {times:.3} times the instructions."
        )
    }));
    if report.host.software {
        notes.push("KVM's emulator counts an int3 as emulated.".to_owned());
    }
    notes
}

/// The ratio of an optimized hit's cost to that of others with the same four registers.
fn ratios(report: &Report) -> Option<String> {
    let of_int3 = report.ratio(OPTIMIZED, BY_INT3);
    let of_own = report.ratio(OPTIMIZED, OWN_EVENT)?;
    let instructions = if of_int3.is_some() { "instructions" } else { "guest's instructions" };
    let of_int3 = of_int3.map(|part| format!("{part:.4} of `{BY_INT3}` (asked: 0.03), and "));
    Some(format!(
        "Of the {instructions}, `{OPTIMIZED}` takes {}1/{:.1} of `{OWN_EVENT}` (asked: 1/20).",
        of_int3.unwrap_or_default(),
        of_own.recip()
    ))
}

/// All counts as text, by the name of their column.
fn cells(row: &RowCounts) -> Vec<(String, String)> {
    let kinds: Vec<String> = row.exits.iter().map(|(kind, n)| format!("{kind} {n}")).collect();
    let exits = if kinds.is_empty() { "0".to_owned() } else { kinds.join(", ") };
    let count = |count: Option<f64>| count.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let columns = row.columns().map(|(column, value)| (column.to_string(), count(value)));
    [("exits to user space".to_owned(), exits)].into_iter().chain(columns).collect()
}
