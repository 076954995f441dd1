//! Sorts raw symbols into the tables that queries use.

use exoprobe_guest::Gva;

use super::symbol::{KERNEL_HALF, SymbolKind, TextKind, TextRange};
use crate::name_hash::NameHash;

/// Most symbols a table may hold; a distribution kernel has some 150,000.
pub const MAX_SYMBOLS: usize = 4 << 20;
/// Most bytes all names together may take.
pub const MAX_NAME_BYTES: usize = 256 << 20;
/// Longest name kept, in bytes, twice what Linux itself keeps (`KSYM_NAME_LEN`, 512). Longer
/// names are left out, as `kallsyms` does.
pub const MAX_NAME_LEN: usize = 1024;

/// Reasons why well-formed symbols do not form a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// More symbols than any kernel has.
    #[error("more than {max} symbols")]
    TooManySymbols {
        /// The limit.
        max: usize,
    },
    /// Names longer than any kernel's.
    #[error("symbol names take more than {max} bytes")]
    TooManyNames {
        /// The limit in bytes.
        max: usize,
    },
    /// No function at a kernel address: not a kernel, or one of another architecture.
    #[error("no function lies at an x86-64 kernel address")]
    NoFunctions,
}

const FUNCTION: u8 = 1;
const GLOBAL: u8 = 1 << 1;
const TYPED: u8 = 1 << 2;

/// A symbol as a file has it.
pub(super) struct RawSymbol<'a> {
    pub(super) name: &'a str,
    pub(super) address: u64,
    /// 0 if the file does not say.
    pub(super) size: u64,
    pub(super) function: bool,
    pub(super) global: bool,
    /// The file says what it is (STT_FUNC); a bare label is not typed.
    pub(super) typed: bool,
}

/// One symbol at its link-time address; the name lies in [`Tables::names`].
#[derive(Clone, Copy, Debug)]
pub(super) struct SymbolRecord {
    pub(super) address: u64,
    pub(super) size: u64,
    name: u32,
    name_len: u16,
    flags: u8,
}

impl SymbolRecord {
    pub(super) fn is_function(&self) -> bool {
        self.flags & FUNCTION != 0
    }

    pub(super) fn kind(&self) -> SymbolKind {
        if self.is_function() { SymbolKind::Function } else { SymbolKind::Data }
    }

    pub(super) fn is_global(&self) -> bool {
        self.flags & GLOBAL != 0
    }

    fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

/// Addresses for which one function is the answer.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    end: u64,
    entry: u32,
}

/// The finished tables, all at link-time addresses.
#[derive(Debug)]
pub(super) struct Tables {
    names: String,
    /// Ascending by address, then by name.
    pub(super) entries: Vec<SymbolRecord>,
    /// Indices of `entries`, ascending by name, then by address.
    by_name: Vec<u32>,
    /// Of each name, the first index of `by_name`: quicker than a search where a name is looked up
    /// whole.
    exact: NameHash,
    /// Disjoint and ascending: overlapping functions are resolved here, once.
    segments: Vec<Segment>,
    /// Ascending by start.
    pub(super) text: Vec<TextRange>,
}

impl Tables {
    /// Bytes of all names.
    pub(super) fn name_bytes(&self) -> usize {
        self.names.len()
    }

    pub(super) fn name(&self, entry: &SymbolRecord) -> &str {
        name_in(&self.names, entry)
    }

    /// All entries from the first whose name is not below `name`, in order of their names.
    pub(super) fn by_name_from<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a SymbolRecord> {
        let below = |index: &u32| self.name(&self.entries[*index as usize]) < name;
        let from = self.by_name.partition_point(below);
        self.by_name[from..].iter().map(|index| &self.entries[*index as usize])
    }

    /// All entries of exactly this name.
    pub(super) fn named(&self, name: &str) -> impl Iterator<Item = &SymbolRecord> {
        let entry = |at: usize| &self.entries[self.by_name[at] as usize];
        let from = self.exact.find(name, |at| self.name(entry(at)));
        let rest = from.map_or(&[][..], |at| &self.by_name[at..]);
        let entries = rest.iter().map(|index| &self.entries[*index as usize]);
        entries.take_while(move |entry| self.name(entry) == name)
    }

    /// Returns the function that `address` resolves to.
    pub(super) fn covering(&self, address: u64) -> Option<&SymbolRecord> {
        let count = self.segments.partition_point(|segment| segment.start <= address);
        let segment = self.segments[..count].last()?;
        (address < segment.end).then(|| &self.entries[segment.entry as usize])
    }

    /// The text range that `address` lies in.
    pub(super) fn text_at(&self, address: u64) -> Option<&TextRange> {
        range_at(&self.text, address)
    }
}

fn range_at(text: &[TextRange], address: u64) -> Option<&TextRange> {
    let count = text.partition_point(|range| range.start.0 <= address);
    text[..count].last().filter(|range| address < range.end.0)
}

fn name_in<'a>(names: &'a str, entry: &SymbolRecord) -> &'a str {
    let start = entry.name as usize;
    &names[start..start + usize::from(entry.name_len)]
}

/// Collects symbols.
pub(super) struct Builder {
    names: String,
    entries: Vec<SymbolRecord>,
    text: Vec<TextRange>,
}

impl Builder {
    /// `symbols` and `name_bytes` are guesses that save growing; they are not trusted.
    pub(super) fn new(symbols: usize, name_bytes: usize) -> Self {
        Self {
            names: String::with_capacity(name_bytes.min(MAX_NAME_BYTES)),
            entries: Vec::with_capacity(symbols.min(MAX_SYMBOLS)),
            text: Vec::new(),
        }
    }

    /// Adds a range of text; empty ones and such below the kernel's half are left out.
    pub(super) fn text(&mut self, start: u64, end: u64, kind: TextKind) {
        if start >= KERNEL_HALF.0 && start < end {
            self.text.push(TextRange { start: Gva(start), end: Gva(end), kind });
        }
    }

    /// Adds a symbol, unless its name is one that no user would ask for.
    pub(super) fn push(&mut self, raw: &RawSymbol<'_>) -> Result<(), TableError> {
        if !is_kept(raw.name) {
            return Ok(());
        }
        if self.entries.len() == MAX_SYMBOLS {
            return Err(TableError::TooManySymbols { max: MAX_SYMBOLS });
        }
        let too_many = TableError::TooManyNames { max: MAX_NAME_BYTES };
        if self.names.len() + raw.name.len() > MAX_NAME_BYTES {
            return Err(too_many);
        }
        let name = u32::try_from(self.names.len()).map_err(|_| too_many)?;
        let name_len = u16::try_from(raw.name.len()).map_err(|_| too_many)?;
        self.names.push_str(raw.name);
        let flag = |set, bit| if set { bit } else { 0 };
        let flags = flag(raw.function && raw.address >= KERNEL_HALF.0, FUNCTION)
            | flag(raw.global, GLOBAL)
            | flag(raw.typed, TYPED);
        let entry = SymbolRecord { address: raw.address, size: raw.size, name, name_len, flags };
        self.entries.push(entry);
        Ok(())
    }

    /// Sorts and indexes what was collected of a kernel.
    pub(super) fn finish(self) -> Result<Tables, TableError> {
        let tables = self.index();
        match tables.entries.iter().any(SymbolRecord::is_function) {
            true => Ok(tables),
            false => Err(TableError::NoFunctions),
        }
    }

    /// Sorts and indexes what was collected, which may be nothing.
    pub(super) fn index(self) -> Tables {
        let Self { names, mut entries, mut text } = self;
        text.sort_unstable_by_key(|range| (range.start, range.end));
        entries.sort_unstable_by(|a, b| {
            let order = a.address.cmp(&b.address);
            order.then_with(|| name_in(&names, a).cmp(name_in(&names, b)))
        });
        demote_markers(&names, &mut entries, &text);
        fill_sizes(&mut entries, &text);
        let by_name = index_names(&names, &entries);
        let name = |at: usize| name_in(&names, &entries[by_name[at] as usize]);
        let exact = NameHash::of(by_name.len(), name);
        let segments = Sweep::over(&names, &entries);
        Tables { names, entries, by_name, exact, segments, text }
    }
}

/// Rejects the tool chain's own names (`$x`, `.L12`), names with control characters, and names that
/// look like a module and its symbol.
fn is_kept(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_NAME_LEN
        && !name.starts_with('$')
        && !name.starts_with(".L")
        && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':')
}

/// Makes data of the linker's end markers, which files list as text though they lie after the last
/// instruction: else they would seem to be functions that reach up to the next symbol.
fn demote_markers(names: &str, entries: &mut [SymbolRecord], text: &[TextRange]) {
    for entry in entries.iter_mut().filter(|entry| entry.is_function() && entry.size == 0) {
        let name = name_in(names, entry);
        let outside = || range_at(text, entry.address).is_none();
        // Another section's text may begin where the initial text ends.
        if matches!(name, "_etext" | "_einittext") || is_marker(name) && outside() {
            entry.flags &= !FUNCTION;
        }
    }
}

/// Sets the size of symbols that have none: up to the next higher symbol, within their text range.
fn fill_sizes(entries: &mut [SymbolRecord], text: &[TextRange]) {
    let mut higher = None;
    let mut same = None;
    for entry in entries.iter_mut().rev() {
        if same != Some(entry.address) {
            higher = same;
            same = Some(entry.address);
        }
        if entry.size != 0 {
            entry.size = entry.end() - entry.address;
            continue;
        }
        // A per-CPU offset does not reach up to the kernel.
        let crosses = |end| entry.address < KERNEL_HALF.0 && end >= KERNEL_HALF.0;
        let next = higher.filter(|end| !crosses(*end));
        let limit = range_at(text, entry.address).map(|range| range.end.0);
        let end = [next, limit].into_iter().flatten().min();
        entry.size = end.map_or(0, |end| end - entry.address);
    }
}

fn index_names(names: &str, entries: &[SymbolRecord]) -> Vec<u32> {
    // Most comparisons end in the first eight bytes; those are kept beside the index.
    let head = |entry: &SymbolRecord| {
        let name = name_in(names, entry).as_bytes();
        let mut bytes = [0; 8];
        let len = name.len().min(8);
        bytes[..len].copy_from_slice(&name[..len]);
        u64::from_be_bytes(bytes)
    };
    let mut keys: Vec<(u64, u32)> =
        (0u32..).zip(entries).map(|(index, entry)| (head(entry), index)).collect();
    keys.sort_unstable_by(|a, b| {
        let full = |key: &(u64, u32)| name_in(names, &entries[key.1 as usize]);
        a.0.cmp(&b.0).then_with(|| full(a).cmp(full(b))).then(a.1.cmp(&b.1))
    });
    keys.into_iter().map(|(_, index)| index).collect()
}

/// Which of several names at one address stands for it: the smallest rank.
fn rank<'a>(names: &'a str, entry: &SymbolRecord) -> impl Ord + use<'a> {
    let name = name_in(names, entry);
    let untyped = entry.flags & TYPED == 0;
    let local = !entry.is_global();
    (name.starts_with("__pfx_"), is_marker(name), untyped, local, name.len(), name)
}

/// The linker script's names for the ends of regions.
fn is_marker(name: &str) -> bool {
    let ends = ["text", "_start", "_end", "_begin"];
    name.starts_with('_') && ends.iter().any(|end| name.ends_with(end))
}

/// Flattens functions that may overlap: where several cover an address, the one that starts
/// nearest below it answers, and of those at one start the best [`rank`].
struct Sweep<'a> {
    entries: &'a [SymbolRecord],
    /// Functions begun, the one that answers on top; those that have ended leave when uncovered.
    open: Vec<u32>,
    segments: Vec<Segment>,
    at: u64,
}

impl<'a> Sweep<'a> {
    fn over(names: &str, entries: &'a [SymbolRecord]) -> Vec<Segment> {
        let mut sweep = Self { entries, open: Vec::new(), segments: Vec::new(), at: 0 };
        let mut functions: Vec<u32> = (0u32..)
            .zip(entries)
            .filter(|(_, e)| e.is_function())
            .map(|(index, _)| index)
            .collect();
        let entry = |index: &u32| &entries[*index as usize];
        for same in functions.chunk_by_mut(|a, b| entry(a).address == entry(b).address) {
            same.sort_unstable_by(|a, b| rank(names, entry(b)).cmp(&rank(names, entry(a))));
            sweep.advance(entry(&same[0]).address);
            sweep.open.extend_from_slice(same);
        }
        sweep.advance(u64::MAX);
        sweep.segments
    }

    fn advance(&mut self, to: u64) {
        while let Some(&top) = self.open.last() {
            let end = self.entries[top as usize].end();
            let stop = end.min(to);
            if self.at < stop {
                self.segments.push(Segment { start: self.at, end: stop, entry: top });
                self.at = stop;
            }
            if end > to {
                break;
            }
            self.open.pop();
        }
        self.at = to;
    }
}
