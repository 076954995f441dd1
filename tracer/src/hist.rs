//! Text of the file `hist` (histogram.rst).

use std::fmt::{self, Write};

use exoprobe_introspect::{SymbolTable, printable};
use exoprobe_probes::trigger::HistogramNumber::{self, Signed, Unsigned};
use exoprobe_probes::trigger::{CountedEntry, HistogramField, HistogramKey, HistogramTable};
use exoprobe_probes::trigger::{
    Handler, HandlerAction, Modifier, SavedValue, Tracked, syscall_name,
};
use exoprobe_probes::{FAULT, ProbeError, show_function, show_symbol};

use crate::scope::Scope;

/// Characters of a bar (`.graph`).
const BAR: usize = 20;
/// Entries of one part of the text.
const PART: usize = 256;

/// A reader of a file `hist`, part by part: its text may be many times the histograms' memory.
///
/// It shows the histograms of an event at one time, in the order in which they were set.
pub(crate) struct HistReader {
    tables: Vec<Shown>,
    /// The histogram and the entry that come next.
    next: (usize, usize),
}

impl HistReader {
    /// Opens the file of an event.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub(crate) fn open(scope: Scope<'_>, event: (&str, &str)) -> Result<Self, ProbeError> {
        Ok(Self::new(scope.histogram_tables(event)?))
    }

    fn new(tables: Vec<HistogramTable>) -> Self {
        Self { tables: tables.into_iter().map(Shown::new).collect(), next: (0, 0) }
    }
}

impl Iterator for HistReader {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let (at, first) = self.next;
        let shown = self.tables.get(at)?;
        let table = &shown.table;
        let mut text = String::new();
        if first == 0 {
            let between = if at > 0 { "\n\n" } else { "" };
            let trigger = &table.trigger;
            text = format!("{between}# event histogram\n#\n# trigger info: {trigger}\n#\n\n");
        }
        for entry in table.entries.iter().skip(first).take(PART) {
            shown.write_entry(entry, &mut text).expect("a String takes everything");
        }
        self.next = (at, first + PART);
        if self.next.1 >= table.entries.len() {
            shown.write_snapshot(&mut text).expect("a String takes everything");
            text.push_str(&totals(table));
            self.next = (at + 1, 0);
        }
        Some(text)
    }
}

fn totals(HistogramTable { hits, dropped, entries, .. }: &HistogramTable) -> String {
    let entries = entries.len();
    format!("\nTotals:\n    Hits: {hits}\n    Entries: {entries}\n    Dropped: {dropped}\n")
}

/// A histogram, and what the shares of its values are of.
struct Shown {
    table: HistogramTable,
    /// The sum of each value over all entries, modulo 2^64, and its most in one entry.
    marks: Vec<(u64, u64)>,
}

impl Shown {
    fn new(table: HistogramTable) -> Self {
        let mut marks = vec![(0, 0); table.values.len()];
        for entry in &table.entries {
            for ((total, most), sum) in marks.iter_mut().zip(&entry.sums) {
                *total = bits(*sum).wrapping_add(*total);
                *most = bits(*sum).max(*most);
            }
        }
        Self { table, marks }
    }

    fn write_entry(&self, entry: &CountedEntry, out: &mut String) -> fmt::Result {
        let table = &self.table;
        self.write_keys(&entry.keys, out)?;
        if !table.no_hitcount {
            write!(out, " hitcount: {:>10}", entry.hits)?;
        }
        let values = table.values.iter().zip(&entry.sums).zip(&self.marks);
        // As in the kernel, operations are computed and not shown.
        for ((value, sum), marks) in values.filter(|((value, _), _)| !value.is_operation) {
            write_value(value, *sum, *marks, out)?;
        }
        if let Some(tracked) = &entry.tracked {
            self.write_tracked(tracked, out)?;
        }
        out.push('\n');
        Ok(())
    }

    fn write_keys(&self, keys: &[HistogramKey], out: &mut String) -> fmt::Result {
        out.push_str("{ ");
        for (index, (field, key)) in self.table.keys.iter().zip(keys).enumerate() {
            out.push_str(if index == 0 { "" } else { ", " });
            write_key(field, key, self.table.symbols.as_ref(), out)?;
        }
        // A back-trace ends its own last line.
        let is_open = matches!(keys.last(), Some(HistogramKey::Stack(_)));
        out.push_str(if is_open { "}" } else { " }" });
        Ok(())
    }

    /// The lines of an entry's handlers, but for those that take snapshots.
    fn write_tracked(&self, tracked: &Tracked, out: &mut String) -> fmt::Result {
        for (handler, value) in self.table.handlers.iter().zip(&tracked.values) {
            let Some(name) = handler.condition.shown() else { continue };
            let saved = match &handler.action {
                HandlerAction::Save(saved) => saved.as_slice(),
                HandlerAction::Trace { .. } => &[],
                HandlerAction::Snapshot => continue,
            };
            write!(out, "\n\t{name}: {value:>10}")?;
            for (field, value) in saved.iter().zip(&tracked.saved) {
                match value {
                    SavedValue::Number(number) => write!(out, "  {}: {number:>10}", field.name)?,
                    // Not saved.
                    SavedValue::Stack(_) => {}
                    SavedValue::Text(text) => {
                        write!(out, "  {}: {:<32}", field.name, printable(text))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The text about the last snapshot that a handler took.
    fn write_snapshot(&self, out: &mut String) -> fmt::Result {
        let takes = |handler: &&Handler| handler.action == HandlerAction::Snapshot;
        let handler = self.table.handlers.iter().find(takes);
        let Some((handler, taken)) = handler.zip(self.table.snapshot.as_ref()) else {
            return Ok(());
        };
        let (head, value) = (&handler.condition, taken.value);
        out.push_str("\nSnapshot taken (see tracing/snapshot).  Details:\n");
        write!(out, "\ttriggering value {{ {head} }}: {value:>10}")?;
        out.push_str("\ttriggered by event with key: ");
        self.write_keys(&taken.keys, out)?;
        out.push('\n');
        Ok(())
    }
}

fn write_value(
    value: &HistogramField,
    sum: HistogramNumber,
    (total, most): (u64, u64),
    out: &mut String,
) -> fmt::Result {
    let name = &value.field.name;
    match (value.field.modifier, sum) {
        (Modifier::Hex, _) => write!(out, "  {name}: {:>10x}", bits(sum)),
        (Modifier::Percent, _) => match share(bits(sum), total) {
            Some(share) => write!(out, "  {name} (%): {:>3}.{:02}", share / 100, share % 100),
            None => write!(out, "  {name} (%):[ERROR]"),
        },
        (Modifier::Graph, _) => match share(bits(sum), most) {
            Some(share) => {
                let len = usize::try_from(share).map_or(BAR, |share| share * BAR / 10_000);
                write!(out, "  {name}: {:<BAR$}", "#".repeat(len.min(BAR)))
            }
            None => write!(out, "  {name}: {:>BAR$}", "[ERROR]"),
        },
        (_, Signed(sum)) => write!(out, "  {name}: {sum:>10}"),
        (_, Unsigned(sum)) => write!(out, "  {name}: {sum:>10}"),
    }
}

/// The number as the kernel has it, without a sign.
fn bits(number: HistogramNumber) -> u64 {
    match number {
        Signed(number) => number.cast_unsigned(),
        Unsigned(number) => number,
    }
}

/// The part of `of` that a number is, in hundredths of a percent; `None` of a part of nothing.
fn share(number: u64, of: u64) -> Option<u64> {
    match (number, of) {
        (0, _) => Some(0),
        (_, 0) => None,
        _ => u64::try_from(u128::from(number) * 10_000 / u128::from(of)).ok(),
    }
}

fn write_key(
    field: &HistogramField,
    key: &HistogramKey,
    symbols: Option<&SymbolTable>,
    out: &mut String,
) -> fmt::Result {
    let name = &field.field.name;
    match key {
        HistogramKey::Number(number) => write_number(field, *number, symbols, out),
        HistogramKey::Signed(number) => write_number(field, number.cast_unsigned(), symbols, out),
        HistogramKey::Fault => write!(out, "{name}: {FAULT}"),
        HistogramKey::Text(text) => write!(out, "{name}: {:<50}", printable(text)),
        HistogramKey::Task(comm, pid) => write!(out, "{name}: {:<16}[{pid:>10}]", printable(comm)),
        HistogramKey::Stack(frames) => {
            match field.field.modifier {
                // As in the kernel, the first place is on the same line.
                Modifier::Stacktrace => write!(out, "{name}.stacktrace")?,
                _ => writeln!(out, "{name}:")?,
            }
            let line = |frame: &u64| writeln!(out, "         {}", show_symbol(symbols, *frame));
            frames.iter().try_for_each(line)
        }
    }
}

fn write_number(
    HistogramField { field, is_signed, is_symbol, .. }: &HistogramField,
    number: u64,
    symbols: Option<&SymbolTable>,
    out: &mut String,
) -> fmt::Result {
    let name = &field.name;
    match field.modifier {
        Modifier::Hex => write!(out, "{name}: {number:x}"),
        Modifier::Sym => {
            write!(out, "{name}: [{number:x}] {:<45}", show_function(symbols, number))
        }
        Modifier::SymOffset => {
            write!(out, "{name}: [{number:x}] {:<55}", show_symbol(symbols, number))
        }
        Modifier::Log2 => write!(out, "{name}: ~ 2^{number:<2}"),
        Modifier::Buckets(size) => {
            write!(out, "{name}: ~ {number}-{}", number.saturating_add(size - 1))
        }
        Modifier::None if *is_symbol => write!(out, "{name}: {}", show_symbol(symbols, number)),
        Modifier::Syscall => {
            write!(out, "{name}: {:<30}[{number:>3}]", syscall_name(number))
        }
        _ if *is_signed => write!(out, "{name}: {:>10}", number.cast_signed()),
        _ => write!(out, "{name}: {number:>10}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use exoprobe_probes::trigger::{HistField, SnapshotTaken};

    fn whole(tables: &[HistogramTable]) -> String {
        HistReader::new(tables.to_vec()).collect()
    }

    fn field(name: &str, modifier: Modifier) -> HistogramField {
        let field = HistField { name: name.to_owned(), modifier };
        HistogramField { field, is_signed: false, is_symbol: false, is_operation: false }
    }

    fn symbols() -> SymbolTable {
        let map = "ffffffff81000000 T _stext\nffffffff81000000 T first\nffffffff81000100 T second\nffffffff81000200 T _etext\n";
        SymbolTable::from_system_map(map).unwrap()
    }

    fn histogram(keys: Vec<HistogramField>, entries: &[(&[HistogramKey], u64)]) -> HistogramTable {
        let entry = |(keys, hits): &(&[HistogramKey], u64)| CountedEntry {
            keys: (*keys).into(),
            hits: *hits,
            sums: vec![],
            tracked: None,
        };
        HistogramTable {
            trigger: "LINE [active]".to_owned(),
            keys,
            values: vec![],
            no_hitcount: false,
            hits: entries.iter().map(|(_, hits)| hits).sum(),
            dropped: 0,
            entries: entries.iter().map(entry).collect(),
            handlers: vec![],
            snapshot: None,
            symbols: Some(symbols()),
        }
    }

    /// The line of an entry of one key and one hit.
    fn shown(modifier: Modifier, key: HistogramKey) -> String {
        let text = whole(&[histogram(vec![field("f", modifier)], &[(&[key], 1)])]);
        text.lines().nth(5).unwrap().replace(" } hitcount:          1", "|")
    }

    #[test]
    fn a_histogram_has_a_head_its_entries_and_totals() {
        let signed = HistogramField { is_signed: true, ..field("fd", Modifier::None) };
        let keys = vec![signed, field("cpu", Modifier::None)];
        let first = [HistogramKey::Signed(3), HistogramKey::Number(1)];
        let second = [HistogramKey::Signed(-1), HistogramKey::Number(0)];
        let mut table = histogram(keys, &[(&first, 2), (&second, 1)]);
        table.values = vec![field("len", Modifier::None), field("x", Modifier::Hex)];
        table.entries[0].sums = vec![Unsigned(30), Unsigned(255)];
        table.entries[1].sums = vec![Signed(-5), Signed(-1)];
        (table.hits, table.dropped) = (4, 1);
        let one = "# event histogram\n#\n# trigger info: LINE [active]\n#\n\n\
            { fd:          3, cpu:          1 } hitcount:          2  len:         30  x:         ff\n\
            { fd:         -1, cpu:          0 } hitcount:          1  len:         -5  x: ffffffffffffffff\n\
            \nTotals:\n    Hits: 4\n    Entries: 2\n    Dropped: 1\n";
        assert_eq!(whole(&[]), "");
        assert_eq!(whole(std::slice::from_ref(&table)), one);
        assert_eq!(whole(&[table.clone(), table]), format!("{one}\n\n{one}"));
    }

    /// Lines of Linux 6.12's own tracer.
    #[test]
    fn values_are_shown_by_their_modifiers() {
        let number = HistogramKey::Number;
        let entries: [(&[HistogramKey], u64); 2] = [(&[number(8192)], 1), (&[number(65536)], 3)];
        let table = |values: Vec<HistogramField>, sums: [u64; 2]| {
            let mut table = histogram(vec![field("n", Modifier::None)], &entries);
            for (entry, sum) in table.entries.iter_mut().zip(sums) {
                entry.sums = vec![Unsigned(sum); values.len()];
            }
            table.values = values;
            table
        };
        let lines = |table: HistogramTable| {
            whole(&[table]).lines().skip(5).take(2).map(str::to_owned).collect::<Vec<_>>()
        };
        let hits = ["hitcount"; 2].into_iter().zip([Modifier::Percent, Modifier::Graph]);
        let hits = table(hits.map(|(name, modifier)| field(name, modifier)).collect(), [1, 3]);
        let expected = [
            "{ n:       8192 } hitcount:          1  hitcount (%):  25.00  hitcount: ######              ",
            "{ n:      65536 } hitcount:          3  hitcount (%):  75.00  hitcount: ####################",
        ];
        assert_eq!(lines(hits), expected);
        let values = vec![field("n", Modifier::Graph), field("n", Modifier::Percent)];
        let mut shares = table(values, [8192, 3 * 65536]);
        shares.no_hitcount = true;
        let expected = [
            "{ n:       8192 }  n:                       n (%):   4.00",
            "{ n:      65536 }  n: ####################  n (%):  96.00",
        ];
        assert_eq!(lines(shares.clone()), expected);
        shares.entries[1].sums = vec![Signed(-8192); 2];
        let nothing = "{ n:       8192 }  n:                       n (%):[ERROR]";
        assert_eq!(lines(shares)[0], nothing, "the kernel's sums wrap around");
        let mut operation = table(vec![field("n", Modifier::None); 2], [5, 6]);
        operation.values[0].is_operation = true;
        let expected = [
            "{ n:       8192 } hitcount:          1  n:          5",
            "{ n:      65536 } hitcount:          3  n:          6",
        ];
        assert_eq!(lines(operation), expected, "an expression with an operator is not shown");
        let syscall = shown(Modifier::Syscall, number(8192));
        assert_eq!(syscall, "{ f: unknown_syscall               [8192]|");
    }

    #[test]
    fn parts_make_the_whole() {
        let keys: Vec<HistogramKey> = (0..PART as u64 + 1).map(HistogramKey::Number).collect();
        let entries: Vec<_> = keys.iter().map(|key| (std::slice::from_ref(key), 1)).collect();
        let table = |len: usize| histogram(vec![field("f", Modifier::None)], &entries[..len]);
        let lens = [PART + 1, 0, PART, 1];
        let mut parts = HistReader::new(lens.map(table).to_vec());
        let lines: Vec<usize> =
            parts.by_ref().map(|part| part.matches("hitcount:").count()).collect();
        assert_eq!(lines, [PART, 1, 0, PART, 1]);
        assert_eq!(parts.next(), None);
        let all = whole(&lens.map(table));
        assert_eq!(all, lens.map(|len| whole(&[table(len)])).join("\n\n"));
        assert_eq!(all.matches("Totals:").count(), lens.len());
    }

    #[test]
    fn keys_are_shown_by_their_modifiers() {
        let at = || HistogramKey::Number(0xffff_ffff_8100_0104);
        let number = HistogramKey::Number;
        let text = |text: &str| HistogramKey::Text(text.to_owned());
        let cases = [
            (shown(Modifier::Hex, number(20)), "{ f: 14|".to_owned()),
            (shown(Modifier::Log2, number(0)), "{ f: ~ 2^0 |".to_owned()),
            (shown(Modifier::Buckets(10), number(20)), "{ f: ~ 20-29|".to_owned()),
            (shown(Modifier::Usecs, number(7)), "{ f:          7|".to_owned()),
            (shown(Modifier::Sym, at()), format!("{{ f: [ffffffff81000104] {:<45}|", "second")),
            (
                shown(Modifier::SymOffset, at()),
                format!("{{ f: [ffffffff81000104] {:<55}|", "second+0x4/0x100"),
            ),
            (shown(Modifier::Sym, number(1)), format!("{{ f: [1] {:<45}|", "0x1")),
            (shown(Modifier::None, text("sh\u{1b}")), format!("{{ f: {:<50}|", "sh\\u{1b}")),
            (shown(Modifier::None, HistogramKey::Fault), "{ f: (fault)|".to_owned()),
            (
                shown(Modifier::Execname, HistogramKey::Task("sh".to_owned(), 8)),
                "{ f: sh              [         8]|".to_owned(),
            ),
        ];
        for (shown, expected) in cases {
            assert_eq!(shown, expected);
        }
        let symbol = HistogramField { is_symbol: true, ..field("f", Modifier::None) };
        let text = whole(&[histogram(vec![symbol], &[(&[at()], 1)])]);
        assert!(text.contains("{ f: second+0x4/0x100 } hitcount:          1\n"), "{text}");
    }

    /// Lines of Linux 6.12's own tracer.
    #[test]
    fn handlers_have_lines_of_their_entries_and_of_the_snapshot() {
        use exoprobe_probes::trigger::{TriggerCommand, TriggerKind, parse_trigger};
        let keys = vec![field("kk", Modifier::None), field("vv", Modifier::Hex)];
        let key = [HistogramKey::Number(30002), HistogramKey::Number(12)];
        let mut table = histogram(keys, &[(&key, 4)]);
        let command = "hist:keys=kk:mx=vv:onchange($mx).snapshot():onmax($mx).save(vv,comm)";
        let Ok(TriggerCommand::Add(trigger)) = parse_trigger(command) else { panic!() };
        let TriggerKind::Hist(hist) = trigger.kind else { panic!() };
        table.handlers = hist.handlers;
        let saved = vec![SavedValue::Number(12), SavedValue::Text("init\n".to_owned())];
        table.entries[0].tracked = Some(Arc::new(Tracked { values: vec![7, 12], saved }));
        let entry = "{ kk:      30002, vv: c } hitcount:          4\n\
            \tmax:         12  vv:         12  comm: init\\n                          \n";
        assert!(whole(&[table.clone()]).contains(&format!("{entry}\nTotals:\n")));
        table.snapshot = Some(SnapshotTaken { value: 12, keys: key.into() });
        let snapshot = "\nSnapshot taken (see tracing/snapshot).  Details:\n\ttriggering value \
            { onchange($mx) }:         12\ttriggered by event with key: { kk:      30002, vv: c }\n";
        assert!(whole(&[table]).contains(&format!("{entry}{snapshot}\nTotals:\n")));
    }

    #[test]
    fn a_back_trace_is_a_line_for_each_place() {
        let stack = HistogramKey::Stack(vec![0xffff_ffff_8100_0008, 0xffff_ffff_8100_0104]);
        let table = histogram(
            vec![field("stacktrace", Modifier::None)],
            &[(std::slice::from_ref(&stack), 1)],
        );
        let text = whole(&[table]);
        let expected = "{ stacktrace:\n         first+0x8/0x100\n         second+0x4/0x100\n\
            } hitcount:          1\n";
        assert!(text.contains(expected), "{text}");
        // Lines of Linux 6.12's own tracer.
        let keys = vec![field("v", Modifier::None), field("st", Modifier::Stacktrace)];
        let of_field = histogram(keys, &[(&[HistogramKey::Number(1), stack], 2)]);
        let expected = "{ v:          1, st.stacktrace         first+0x8/0x100\n         \
            second+0x4/0x100\n} hitcount:          2\n";
        let text = whole(&[of_field]);
        assert!(text.contains(expected), "{text}");
    }
}
