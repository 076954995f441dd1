//! Symbols of a `System.map`: the sorted output of `nm`, one `address type name` a line.

use super::TextKind;
use super::build::{Builder, RawSymbol, TableError, Tables};

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineProblem {
    /// Not three fields.
    #[error("expected `address type name`")]
    Fields,
    /// The first field is not a hexadecimal number of at most 16 digits.
    #[error("the address is not a 64-bit hexadecimal number")]
    Address,
    /// The second field is not one of `nm`'s single characters.
    #[error("the type is not a single letter")]
    Type,
}

/// Why a `System.map` gives no symbol table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SystemMapError {
    /// A line is malformed.
    #[error("line {line}: {problem}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        problem: LineProblem,
    },
    /// What Debian installs as `/boot/System.map-*` in its newer releases: one line of prose.
    #[error(
        "this is Debian's placeholder; the real System.map is in the linux-image-...-dbg package"
    )]
    Placeholder,
    /// A symbol that every x86-64 kernel's map has is not there: the file was cut short or filtered.
    #[error("no symbol {name}, which bounds the kernel's text: the map is not complete")]
    NoTextBounds {
        /// The missing symbol.
        name: &'static str,
    },
    /// The bounds of the kernel's text are in the wrong order.
    #[error("{end} does not lie above {start}")]
    BadTextBounds {
        /// The symbol that should be lower.
        start: &'static str,
        /// The symbol that should be higher.
        end: &'static str,
    },
    /// The symbols make no table.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// What Debian's placeholder has in place of a name, after an address and a type.
const PLACEHOLDER: &str = "The real System.map";

struct Line<'a> {
    address: u64,
    kind: u8,
    name: &'a str,
}

/// Addresses of the symbols that bound the kernel's text.
#[derive(Default)]
struct Bounds {
    text: Option<u64>,
    stext: Option<u64>,
    etext: Option<u64>,
    sinittext: Option<u64>,
    einittext: Option<u64>,
}

pub(super) fn parse(text: &str) -> Result<Tables, SystemMapError> {
    if text.lines().next().is_some_and(|line| line.contains(PLACEHOLDER)) {
        return Err(SystemMapError::Placeholder);
    }
    // A line takes 19 bytes beside its name, and an average one 45.
    let mut builder = Builder::new(text.len() / 40, text.len() / 2);
    let mut bounds = Bounds::default();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let at = |problem| SystemMapError::Line { line: number + 1, problem };
        let line = parse_line(line).map_err(at)?;
        bounds.note(&line);
        builder.push(&RawSymbol {
            name: line.name,
            address: line.address,
            size: 0,
            function: matches!(line.kind, b't' | b'T' | b'w' | b'W'),
            global: line.kind.is_ascii_uppercase() || line.kind == b'w',
            typed: true,
        })?;
    }
    bounds.add_to(&mut builder)?;
    Ok(builder.finish()?)
}

fn parse_line(line: &str) -> Result<Line<'_>, LineProblem> {
    let mut fields = line.split_ascii_whitespace();
    let (Some(address), Some(kind), Some(name), None) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(LineProblem::Fields);
    };
    // from_str_radix would take a sign.
    if !address.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(LineProblem::Address);
    }
    let address = u64::from_str_radix(address, 16).map_err(|_| LineProblem::Address)?;
    match kind.as_bytes() {
        &[kind] if kind.is_ascii_alphabetic() || kind == b'-' || kind == b'?' => {
            Ok(Line { address, kind, name })
        }
        _ => Err(LineProblem::Type),
    }
}

impl Bounds {
    fn note(&mut self, line: &Line<'_>) {
        let bound = match line.name {
            "_text" => &mut self.text,
            "_stext" => &mut self.stext,
            "_etext" => &mut self.etext,
            "_sinittext" => &mut self.sinittext,
            "_einittext" => &mut self.einittext,
            _ => return,
        };
        bound.get_or_insert(line.address);
    }

    fn add_to(&self, builder: &mut Builder) -> Result<(), SystemMapError> {
        // `_text` lies first where both exist: the boot code between them is text as well.
        let start = match (self.text, self.stext) {
            (Some(text), Some(stext)) => Some(text.min(stext)),
            (text, stext) => text.or(stext),
        };
        let start = start.ok_or(SystemMapError::NoTextBounds { name: "_stext" })?;
        let end = self.etext.ok_or(SystemMapError::NoTextBounds { name: "_etext" })?;
        if start >= end {
            return Err(SystemMapError::BadTextBounds { start: "_stext", end: "_etext" });
        }
        builder.text(start, end, TextKind::Core);
        if let (Some(start), Some(end)) = (self.sinittext, self.einittext) {
            if start > end {
                let (start, end) = ("_sinittext", "_einittext");
                return Err(SystemMapError::BadTextBounds { start, end });
            }
            builder.text(start, end, TextKind::Init);
        }
        Ok(())
    }
}
