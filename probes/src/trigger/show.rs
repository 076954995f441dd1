//! The file `hist` (histogram.rst).

use std::cmp::Ordering;
use std::fmt::Write;

use exoprobe_guest::Gva;
use exoprobe_introspect::{SymbolTable, printable};

use super::command::{Modifier, SortKey};
use super::hist::{Entry, Found, KeyPart, Table};
use crate::definition::Argument;
use crate::events::show_symbol;

impl Table {
    /// Its text, below a line that describes it.
    pub(crate) fn text(
        &self,
        line: &str,
        list: &[Argument],
        symbols: Option<&SymbolTable>,
    ) -> String {
        let mut text = format!("# event histogram\n#\n# trigger info: {line}#\n\n");
        for (key, entry) in self.sorted() {
            self.print(key, entry, list, symbols, &mut text).expect("a String takes everything");
        }
        let Self { hits, dropped, .. } = self;
        let total = self.entries.len();
        text + &format!(
            "\nTotals:\n    Hits: {hits}\n    Entries: {total}\n    Dropped: {dropped}\n"
        )
    }

    /// Its entries, in the order that the command requests.
    pub(super) fn sorted(&self) -> Vec<(&Vec<KeyPart>, &Entry)> {
        let mut entries: Vec<(&Vec<KeyPart>, &Entry)> = self.entries.iter().collect();
        entries.sort_by(|a, b| self.order(*a, *b));
        entries
    }

    fn order(&self, a: (&Vec<KeyPart>, &Entry), b: (&Vec<KeyPart>, &Entry)) -> Ordering {
        let by = |key: &SortKey| {
            let order = self.compare(&key.field, a, b);
            if key.descending { order.reverse() } else { order }
        };
        let chosen = self.hist.sort.iter().map(by).fold(Ordering::Equal, Ordering::then);
        // Makes the text the same each time.
        chosen.then_with(|| a.0.cmp(b.0))
    }

    fn compare(
        &self,
        field: &str,
        a: (&Vec<KeyPart>, &Entry),
        b: (&Vec<KeyPart>, &Entry),
    ) -> Ordering {
        let is_it = |found: &Found| found.field.name == field;
        if let Some(value) = self.values.iter().position(is_it) {
            let sum = |entry: &Entry| entry.sums.get(value).copied().unwrap_or_default();
            return match self.values[value].is_signed {
                true => sum(a.1).cast_signed().cmp(&sum(b.1).cast_signed()),
                false => sum(a.1).cmp(&sum(b.1)),
            };
        }
        match self.keys.iter().position(is_it) {
            Some(key) => a.0.get(key).cmp(&b.0.get(key)),
            None => a.1.hits.cmp(&b.1.hits),
        }
    }

    fn print(
        &self,
        key: &[KeyPart],
        entry: &Entry,
        list: &[Argument],
        symbols: Option<&SymbolTable>,
        out: &mut String,
    ) -> std::fmt::Result {
        out.push_str("{ ");
        for (index, (found, part)) in self.keys.iter().zip(key).enumerate() {
            out.push_str(if index == 0 { "" } else { ", " });
            print_key(found, part, list, symbols, out)?;
        }
        // A back-trace ends its own last line.
        let is_open = matches!(key.last(), Some(KeyPart::Stack(_)));
        write!(out, "{}}} hitcount: {:>10}", if is_open { "" } else { " " }, entry.hits)?;
        for (value, sum) in self.values.iter().zip(&entry.sums) {
            let name = &value.field.name;
            match value.field.modifier {
                Modifier::Hex => write!(out, "  {name}: {sum:>10x}")?,
                _ if value.is_signed => write!(out, "  {name}: {:>10}", sum.cast_signed())?,
                _ => write!(out, "  {name}: {sum:>10}")?,
            }
        }
        out.push('\n');
        Ok(())
    }
}

fn print_key(
    found: &Found,
    part: &KeyPart,
    list: &[Argument],
    symbols: Option<&SymbolTable>,
    out: &mut String,
) -> std::fmt::Result {
    let name = &found.field.name;
    let number = match part {
        KeyPart::Number(number) => *number,
        KeyPart::Signed(number) => number.cast_unsigned(),
        KeyPart::Fault => return write!(out, "{name}: (fault)"),
        KeyPart::Text(text) => return write!(out, "{name}: {:<35}", printable(text)),
        KeyPart::Task(comm, pid) => {
            return write!(out, "{name}: {:<16}[{pid:>10}]", printable(comm));
        }
        KeyPart::Stack(frames) => {
            writeln!(out, "{name}:")?;
            return frames
                .iter()
                .try_for_each(|frame| writeln!(out, "         {}", show_symbol(symbols, *frame)));
        }
    };
    let of_arg = list.iter().find(|arg| arg.name == *name);
    match found.field.modifier {
        Modifier::Hex => write!(out, "{name}: {number:x}"),
        Modifier::Sym => {
            let found = symbols.and_then(|symbols| symbols.resolve(Gva(number)));
            let symbol = found.map(|found| found.qualified_name()).unwrap_or_default();
            write!(out, "{name}: [{number:x}] {symbol:<45}")
        }
        Modifier::SymOffset => {
            let found = symbols.and_then(|symbols| symbols.resolve(Gva(number)));
            let symbol =
                found.map(|found| format!("{}+{:#x}", found.qualified_name(), found.offset));
            write!(out, "{name}: [{number:x}] {:<55}", symbol.unwrap_or_default())
        }
        Modifier::Log2 => write!(out, "{name}: ~ 2^{number:<2}"),
        Modifier::Buckets(size) => {
            write!(out, "{name}: ~ {number}-{}", number.saturating_add(size - 1))
        }
        Modifier::None if of_arg.is_some_and(|arg| super::hist::is_symbol(arg.kind)) => {
            write!(out, "{name}: {}", show_symbol(symbols, number))
        }
        Modifier::None | Modifier::Usecs | Modifier::Execname => match part {
            KeyPart::Signed(number) => write!(out, "{name}: {number:>10}"),
            _ => write!(out, "{name}: {number:>10}"),
        },
    }
}
