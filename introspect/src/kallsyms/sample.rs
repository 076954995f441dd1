//! A small kernel's tables, in every layout that there is: for tests and fuzzing.

use exoprobe_guest::paging::{PTE_PRESENT, PagingMode};
use exoprobe_guest::{Gpa, Gva};

use crate::MemoryImage;

/// Where the image is: its pages map physical memory from 0 on.
pub const BASE: Gva = Gva(0xffff_ffff_8100_0000);
const PAGES: usize = 40;
pub const MODE: PagingMode = PagingMode { cr3: 0, levels: 4 };
/// The page tables' end: the content of the image follows.
pub const TABLES: usize = 0x4000;

/// How a kernel lays its tables out.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Bytes that tables are aligned to.
    pub align: usize,
    /// Addresses of 64 bits, or offsets from a base, and those of per-CPU symbols absolute.
    pub addresses: Addresses,
    /// The addresses follow the tokens, as from 6.4 on.
    pub after_index: bool,
    /// Bytes of a marker.
    pub marker: usize,
    /// Order by name: between markers and tokens in 6.2 and 6.3, last from 6.4 on.
    pub order: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// 64 bits each.
    Absolute,
    /// From a base upwards.
    Upwards,
    /// From a base downwards, those of per-CPU symbols absolute.
    PerCpu,
}

pub const LAYOUTS: [(&str, Layout); 6] = [
    (
        "4.19",
        Layout {
            align: 8,
            addresses: Addresses::PerCpu,
            after_index: false,
            marker: 8,
            order: false,
        },
    ),
    (
        "4.19, not relocatable",
        Layout {
            align: 8,
            addresses: Addresses::Absolute,
            after_index: false,
            marker: 8,
            order: false,
        },
    ),
    (
        "5.4 to 6.1",
        Layout {
            align: 8,
            addresses: Addresses::PerCpu,
            after_index: false,
            marker: 4,
            order: false,
        },
    ),
    (
        "6.2",
        Layout {
            align: 8,
            addresses: Addresses::Upwards,
            after_index: false,
            marker: 4,
            order: true,
        },
    ),
    (
        "6.4 to 6.14",
        Layout {
            align: 8,
            addresses: Addresses::PerCpu,
            after_index: true,
            marker: 4,
            order: true,
        },
    ),
    (
        "tables aligned to 4",
        Layout {
            align: 4,
            addresses: Addresses::Upwards,
            after_index: true,
            marker: 4,
            order: true,
        },
    ),
];

/// Texts that stand for themselves, and some that are longer; several are not used, as in real
/// tables.
fn token(number: u8) -> String {
    match number {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' | b'.' => char::from(number).to_string(),
        0x80 => "T__x64_sys_".to_owned(),
        0x81 => "do_".to_owned(),
        0x82 => "read".to_owned(),
        _ => String::new(),
    }
}

fn compressed(text: &str) -> Vec<u8> {
    let (mut numbers, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.bytes().next() {
        let long = (0x80..=0x82).find(|number| rest.starts_with(&token(*number)));
        numbers.push(long.unwrap_or(first));
        rest = &rest[long.map_or(1, |number| token(number).len())..];
    }
    numbers
}

/// Symbols by address: per-CPU ones, text, data.
pub fn symbols() -> Vec<(u64, char, String)> {
    let mut all: Vec<(u64, char, String)> =
        (0..20).map(|n| (n * 64, 'A', format!("per_cpu_variable{n}"))).collect();
    all.push((BASE.0, 'T', "_text".to_owned()));
    all.push((BASE.0, 'T', "_stext".to_owned()));
    for n in 0..1000 {
        let name = match n % 5 {
            0 => format!("__x64_sys_call{n}"),
            1 => format!("do_read_{n}"),
            2 => "many_of_this_name".to_owned(),
            3 => format!("long_{}_{n}", "x".repeat(150)),
            _ => format!("f{n}.isra.0"),
        };
        all.push((BASE.0 + 0x1000 + n * 16, if n % 2 == 0 { 'T' } else { 't' }, name));
    }
    all.push((BASE.0 + 0x8000, 'T', "_etext".to_owned()));
    all.extend((0..50).map(|n| (BASE.0 + 0x9000 + n * 8, 'D', format!("variable{n}"))));
    all
}

struct Writer {
    bytes: Vec<u8>,
    align: usize,
}

impl Writer {
    fn table(&mut self, bytes: &[u8]) {
        while !self.bytes.len().is_multiple_of(self.align) {
            self.bytes.push(0);
        }
        self.bytes.extend_from_slice(bytes);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a small image")]
fn offsets(layout: Layout, all: &[(u64, char, String)]) -> Vec<u8> {
    let each = all.iter().flat_map(|(address, ..)| -> Vec<u8> {
        let distance = address.wrapping_sub(BASE.0);
        match layout.addresses {
            Addresses::Absolute => address.to_le_bytes().to_vec(),
            Addresses::PerCpu if *address < BASE.0 => (*address as u32).to_le_bytes().to_vec(),
            Addresses::PerCpu => (!(distance as u32)).to_le_bytes().to_vec(),
            Addresses::Upwards => (distance as u32).to_le_bytes().to_vec(),
        }
    });
    each.collect()
}

/// The tables as scripts/kallsyms writes them.
#[expect(clippy::cast_possible_truncation, reason = "small tables")]
pub fn tables(layout: Layout, all: &[(u64, char, String)]) -> Vec<u8> {
    let mut writer = Writer { bytes: vec![0x5a; 24], align: layout.align };
    let addresses = |writer: &mut Writer| {
        writer.table(&offsets(layout, all));
        if layout.addresses != Addresses::Absolute {
            writer.table(&BASE.0.to_le_bytes());
        }
    };
    if !layout.after_index {
        addresses(&mut writer);
    }
    writer.table(&(all.len() as u32).to_le_bytes());
    let (mut names, mut markers) = (Vec::new(), Vec::new());
    for (index, (_, kind, name)) in all.iter().enumerate() {
        if index % 256 == 0 {
            markers.extend_from_slice(&(names.len() as u64).to_le_bytes()[..layout.marker]);
        }
        let numbers = compressed(&format!("{kind}{name}"));
        match numbers.len() {
            short @ ..0x80 => names.push(short as u8),
            long => names.extend([long as u8 & 0x7f | 0x80, (long >> 7) as u8]),
        }
        names.extend(numbers);
    }
    writer.table(&names);
    writer.table(&markers);
    let order = vec![7; all.len() * 3];
    if layout.order && !layout.after_index {
        writer.table(&order);
    }
    let (mut texts, mut index) = (Vec::new(), Vec::new());
    for number in 0..=255 {
        index.extend_from_slice(&(texts.len() as u16).to_le_bytes());
        texts.extend_from_slice(token(number).as_bytes());
        texts.push(0);
    }
    writer.table(&texts);
    writer.table(&index);
    if layout.after_index {
        addresses(&mut writer);
        writer.table(&order);
    }
    writer.bytes
}

/// An image with these bytes at `at`.
pub fn image(bytes: &[u8], at: usize) -> MemoryImage {
    let mut memory = vec![0; PAGES << 12];
    let mut put = |at: usize, word: u64| memory[at..at + 8].copy_from_slice(&word.to_le_bytes());
    put(511 * 8, 0x1000 | PTE_PRESENT);
    put(0x1000 + 510 * 8, 0x2000 | PTE_PRESENT);
    put(0x2000 + 8 * 8, 0x3000 | PTE_PRESENT);
    (0..PAGES).for_each(|page| put(0x3000 + page * 8, (page as u64) << 12 | PTE_PRESENT));
    memory[at..at + bytes.len()].copy_from_slice(bytes);
    MemoryImage::new(Gpa(0), memory, MODE)
}
